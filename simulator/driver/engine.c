/* The simulated GPU's time: computes a later state from a state and the rings of work. It has no other input and makes
 * no system call. Any process may have written anything to the rings and the state, so every index is checked, and
 * every step moves time on or finishes a work.
 *
 * Physics: contexts with work take turns of one time slice each. Switching costs more when the context that loses its
 * turn still has work. Within a context, the kernels at the heads of its channels run at the same time as far as there
 * are SMs, by priority, then in the order of their launches. Copies to and from the host use one copy engine per
 * direction and no time slice. Marks, waits and writes take no time. */
#include "gpu.h"

#include <string.h>

#define SHORTEST_SLICE_NS 10000ull /* limits the number of steps of one computation */
#define MOST_STEPS 2000000u        /* of one computation; after that, time jumps to the end */
#define NEVER UINT64_MAX

enum phase { PHASE_IDLE, PHASE_SWITCH, PHASE_RUN };

struct run {
    const struct gpu_file *file;
    struct gpu_state *s;
    unsigned queues, groups;
    uint64_t t, now;
};

static void account(struct gpu_busy *b, uint64_t from, uint64_t ns) {
    b->total_ns += ns;
    while (ns) {
        uint64_t period = from / GPU_PERIOD_NS, room = (period + 1) * GPU_PERIOD_NS - from;
        uint64_t part = ns < room ? ns : room;
        if (b->period != period) {
            b->last_ns = b->period + 1 == period ? b->ns : 0;
            b->period = period;
            b->ns = 0;
        }
        b->ns += part;
        from += part;
        ns -= part;
    }
}

unsigned gpu_utilisation(const struct gpu_busy *b, uint64_t now_ns) {
    uint64_t period = now_ns / GPU_PERIOD_NS - 1;
    uint64_t ns = b->period == period ? b->ns : b->period == period + 1 ? b->last_ns : 0;
    return ns >= GPU_PERIOD_NS ? 100 : (unsigned)((ns * 100 + GPU_PERIOD_NS / 2) / GPU_PERIOD_NS);
}

/* The work at a queue's head, NULL if none was submitted by time t; then *at is when the next one will be, or NEVER. */
static const struct gpu_work *head_of(struct run *r, unsigned i, uint64_t *at) {
    const struct gpu_queue *q = &r->file->queue[i];
    struct gpu_progress *p = &r->s->queue[i];
    uint64_t tail = atomic_load_explicit(&q->tail, memory_order_acquire);
    uint64_t cut = atomic_load_explicit(&q->cut, memory_order_relaxed);
    if (cut > tail)
        cut = tail;
    *at = NEVER;
    if (p->head < cut || tail - p->head > GPU_RING) { /* the work is void, or the numbers are impossible */
        p->head = p->head < cut && tail - p->head <= GPU_RING ? cut : tail;
        p->began = 0;
    }
    if (p->head == tail)
        return NULL;
    const struct gpu_work *w = &q->ring[p->head % GPU_RING];
    if (w->submit_ns > r->now + 1000000000) /* impossible: some process scribbled here; do not wait for it */
        return w;
    *at = w->submit_ns;
    return w->submit_ns <= r->t ? w : NULL;
}

static void finish(struct run *r, unsigned i) {
    r->s->queue[i].head++;
    r->s->queue[i].began = 0;
}

static bool depends(const struct run *r, const struct gpu_work *w) {
    if (w->other >= r->queues)
        return false;
    return r->s->queue[w->other].head <= w->seq &&
           atomic_load_explicit(&r->file->queue[w->other].tail, memory_order_acquire) > w->seq;
}

static bool met(const struct gpu_work *w, uint64_t t, uint64_t *at) {
    if (!atomic_load_explicit(&w->met, memory_order_acquire))
        return false;
    if (w->met_ns > t && w->met_ns < *at)
        *at = w->met_ns;
    return w->met_ns <= t;
}

static bool is_kernel(const struct gpu_work *w) { return w->kind == WORK_KERNEL || w->kind == WORK_SPIN; }

/* Does the works that take no time, and gives the copy engines work. *at: when this must run again. False: the log of
 * marks is full. */
static bool front_end(struct run *r, uint64_t *at) {
    struct gpu_state *s = r->s;
    *at = NEVER;
    for (int k = 0; k < 2; k++)
        if (s->copying[k] && (s->copying[k] > r->queues || s->copy_end_ns[k] <= r->t)) {
            if (s->copying[k] <= r->queues && s->queue[s->copying[k] - 1].began)
                finish(r, s->copying[k] - 1);
            s->copying[k] = 0;
        }
    for (bool again = true; again;) {
        again = false;
        for (unsigned i = 0; i < r->queues; i++) {
            const struct gpu_work *w;
            uint64_t then;
            while ((w = head_of(r, i, &then)) && !is_kernel(w)) {
                if (w->kind == WORK_TO || w->kind == WORK_FROM) {
                    unsigned k = w->kind == WORK_FROM;
                    if (!s->copying[k] && !s->queue[i].began) {
                        s->copying[k] = i + 1;
                        s->copy_end_ns[k] = r->t + w->duration_ns < r->t ? NEVER : r->t + w->duration_ns;
                        s->queue[i].began = 1;
                        if (w->duration_ns == 0) {
                            s->copying[k] = 0;
                            finish(r, i);
                            again = true;
                            continue;
                        }
                    }
                    break;
                }
                if ((w->kind == WORK_AFTER && depends(r, w)) || (w->kind == WORK_WAIT && !met(w, r->t, at)))
                    break;
                if (w->kind == WORK_MARK) {
                    if (s->logged >= GPU_LOG)
                        return false;
                    s->log[s->logged++] = (struct gpu_logged){i, 0, s->queue[i].head, r->t};
                }
                finish(r, i);
                again = true;
            }
            if (then > r->t && then < *at)
                *at = then;
        }
    }
    for (int k = 0; k < 2; k++)
        if (s->copying[k] && s->copy_end_ns[k] < *at)
            *at = s->copy_end_ns[k];
    return true;
}

static bool on(const struct run *r, unsigned g) {
    const struct gpu_group *group = &r->file->group[g];
    uint32_t owner = atomic_load_explicit(&group->owner, memory_order_relaxed) - 1;
    return owner < GPU_SLOTS && !(r->s->exited[owner / 64] >> owner % 64 & 1);
}

/* The groups that have kernels to run, one bit each. */
static void runnable(struct run *r, uint64_t bits[GPU_GROUPS / 64]) {
    memset(bits, 0, GPU_GROUPS / 8);
    for (unsigned i = 0; i < r->queues; i++) {
        uint64_t at;
        const struct gpu_work *w = head_of(r, i, &at);
        uint32_t g = r->file->queue[i].group;
        if (w && is_kernel(w) && g < r->groups && on(r, g))
            bits[g / 64] |= 1ull << g % 64;
    }
}

static bool has(const uint64_t *bits, unsigned g) { return bits[g / 64] >> g % 64 & 1; }

/* The group whose turn is next after this one (which comes last); -1: no group has work. */
static int next_turn(const struct run *r, const uint64_t *bits, unsigned after) {
    for (unsigned k = 1; k <= r->groups; k++) {
        unsigned g = (after + k) % r->groups;
        if (has(bits, g))
            return (int)g;
    }
    return -1;
}

static uint64_t slice_of(const struct run *r) {
    uint64_t slice = r->file->head.slice_ns;
    return slice > SHORTEST_SLICE_NS ? slice : SHORTEST_SLICE_NS;
}

static void begin_turn(struct run *r, unsigned g) {
    r->s->phase = PHASE_RUN;
    r->s->current = g + 1;
    r->s->slice_end_ns = r->t + slice_of(r);
}

static void change_turn(struct run *r, unsigned g, uint64_t cost) {
    r->s->phase = PHASE_SWITCH;
    r->s->current = g + 1;
    r->s->switch_end_ns = r->t + (cost < 100000000 ? cost : 100000000);
}

/* True if the head of queue a starts before the head of queue b of the same group: by priority, then by the time of
 * the launch. Without the latter, a stream that is always full would keep the others waiting for ever. */
static bool goes_before(const struct run *r, unsigned a, unsigned b) {
    const struct gpu_queue *p = &r->file->queue[a], *q = &r->file->queue[b];
    if (p->priority != q->priority)
        return p->priority < q->priority;
    return p->ring[r->s->queue[a].head % GPU_RING].submit_ns < q->ring[r->s->queue[b].head % GPU_RING].submit_ns;
}

/* Fills `set` with the queues whose kernels run now, returns how many. *shortest: time left of the one that ends first. */
static unsigned resident(struct run *r, unsigned g, uint16_t *set, uint64_t *shortest) {
    uint32_t sms = r->file->head.sm_count ? r->file->head.sm_count : 1, used = 0;
    unsigned n = 0;
    uint16_t rest[GPU_QUEUES];
    unsigned n_rest = 0;
    *shortest = NEVER;
    for (unsigned i = 0; i < r->queues; i++) {
        uint64_t at, ignored = NEVER;
        const struct gpu_work *w = r->file->queue[i].group == g ? head_of(r, i, &at) : NULL;
        if (!w || !is_kernel(w))
            continue;
        struct gpu_progress *p = &r->s->queue[i];
        if (!p->began) {
            rest[n_rest++] = (uint16_t)i;
            continue;
        }
        if (w->kind == WORK_SPIN)
            p->left_ns = met(w, r->t, &ignored) ? 0 : NEVER;
        used += w->width && w->width < sms ? w->width : sms;
        set[n++] = (uint16_t)i;
        if (p->left_ns < *shortest)
            *shortest = p->left_ns;
    }
    while (n_rest) {
        unsigned best = 0;
        for (unsigned k = 1; k < n_rest; k++)
            if (goes_before(r, rest[k], rest[best]))
                best = k;
        unsigned i = rest[best];
        const struct gpu_work *w = &r->file->queue[i].ring[r->s->queue[i].head % GPU_RING];
        uint32_t width = w->width && w->width < sms ? w->width : sms;
        if (n && used + width > sms)
            break;
        struct gpu_progress *p = &r->s->queue[i];
        uint64_t ignored = NEVER;
        p->began = 1;
        p->left_ns = w->kind == WORK_SPIN ? (met(w, r->t, &ignored) ? 0 : NEVER) : w->duration_ns;
        used += width;
        set[n++] = (uint16_t)i;
        if (p->left_ns < *shortest)
            *shortest = p->left_ns;
        rest[best] = rest[--n_rest];
    }
    return n;
}

/* Lowers *at to the time at which a spinning kernel's value was seen, which ends it. */
static void spins(const struct run *r, const uint16_t *set, unsigned n, uint64_t *at) {
    for (unsigned k = 0; k < n; k++) {
        const struct gpu_queue *q = &r->file->queue[set[k]];
        const struct gpu_work *w = &q->ring[r->s->queue[set[k]].head % GPU_RING];
        if (w->kind == WORK_SPIN)
            met(w, r->t, at);
    }
}

/* One step: time moves to the next change, at most to r->now. False: the log of marks is full. */
static bool step(struct run *r) {
    struct gpu_state *s = r->s;
    uint64_t at, bits[GPU_GROUPS / 64];
    if (!front_end(r, &at))
        return false;
    if (at > r->now)
        at = r->now;
    runnable(r, bits);
    if (s->current > r->groups || s->phase > PHASE_RUN) {
        s->current = 0;
        s->phase = PHASE_IDLE;
    }
    unsigned current = s->current ? s->current - 1 : 0;
    int next = next_turn(r, bits, s->current ? current : r->groups - 1);
    if (s->phase == PHASE_SWITCH) {
        if (s->switch_end_ns > r->t + 100000000)
            s->switch_end_ns = r->t;
        if (s->switch_end_ns > r->t) {
            r->t = s->switch_end_ns < at ? s->switch_end_ns : at;
            return true;
        }
        if (next >= 0 && !has(bits, current)) /* its process exited during the switch */
            change_turn(r, (unsigned)next, r->file->head.switch_idle_ns);
        else
            begin_turn(r, current);
        return true;
    }
    if (next < 0) {
        s->phase = PHASE_IDLE;
        r->t = at;
        return true;
    }
    if (s->phase == PHASE_IDLE) {
        if (!s->current || has(bits, current))
            begin_turn(r, s->current ? current : (unsigned)next);
        else
            change_turn(r, (unsigned)next, r->file->head.switch_idle_ns);
        return true;
    }
    if (!has(bits, current)) {
        change_turn(r, (unsigned)next, r->file->head.switch_idle_ns);
        return true;
    }
    /* The slice timer keeps running while no other context wants the GPU; later only its phase counts. */
    uint64_t slice = slice_of(r);
    bool others = next != (int)current;
    if (s->slice_end_ns > r->t + slice)
        s->slice_end_ns = r->t + slice;
    if (s->slice_end_ns < r->t)
        s->slice_end_ns += ((r->t - s->slice_end_ns) / slice + 1) * slice;
    if (s->slice_end_ns <= r->t) {
        if (others) {
            change_turn(r, (unsigned)next, r->file->head.switch_ns);
            return true;
        }
        s->slice_end_ns = r->t + slice;
    }
    uint16_t set[GPU_QUEUES];
    uint64_t run, until = at;
    unsigned n = resident(r, current, set, &run);
    spins(r, set, n, &until);
    if (others && s->slice_end_ns < until)
        until = s->slice_end_ns;
    if (run > until - r->t)
        run = until - r->t;
    uint32_t owner = atomic_load(&r->file->group[current].owner);
    account(&s->busy, r->t, run);
    if (owner - 1 < GPU_SLOTS)
        account(&s->slot[owner - 1], r->t, run);
    for (unsigned k = 0; k < n; k++) {
        struct gpu_progress *p = &s->queue[set[k]];
        if (p->left_ns != NEVER)
            p->left_ns -= run;
        if (!p->left_ns)
            finish(r, set[k]);
    }
    r->t += run;
    return true;
}

static bool compute(const struct gpu_file *f, struct gpu_state *s, uint64_t now, int queue, uint64_t seq) {
    struct run r = {f, s, gpu_queues(f), gpu_groups(f), s->now_ns < now ? s->now_ns : now, now};
    bool whole = true;
    if (s->logged > GPU_LOG)
        s->logged = 0;
    /* At least one step, also if no time passes: works that take no time are done at once. */
    uint64_t ignored;
    for (unsigned i = 0; i < MOST_STEPS && r.groups && (r.t < now || i == 0); i++) {
        /* A mark is done when the kernel before it is, not at the next change of something else. */
        if (queue >= 0 && (!(whole = front_end(&r, &ignored)) || s->queue[queue].head > seq))
            break;
        if (!(whole = step(&r)))
            break;
    }
    if (whole && r.t >= now && r.groups)
        whole = front_end(&r, &ignored);
    if (queue < 0 && whole)
        r.t = now;
    s->now_ns = r.t;
    return whole;
}

bool engine_run(const struct gpu_file *f, struct gpu_state *s, uint64_t now) { return compute(f, s, now, -1, 0); }

bool engine_run_until(const struct gpu_file *f, struct gpu_state *s, uint64_t now, int queue, uint64_t seq) {
    return compute(f, s, now, queue, seq);
}
