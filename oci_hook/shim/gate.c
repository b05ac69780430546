#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "cuda_card.h"
#include "gate_inside.h"
#include "layout.h"
#include "real.h"

#define STORE(p, x) __atomic_store_n(p, x, __ATOMIC_RELEASE)
#define LOAD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define SCALE_MAX 1000u
#define STEP_MAX (2500 * GH_US) /* no sleep at the gate is longer, whatever was announced */
#define UNMARKED (100 * GH_US)  /* an unknown command that cannot be measured */
#define KAPPA 4u
#define RESUME_LOSS (GH_MS / 2 + 60 * GH_US)
#define PAGE_TRIES 1000
#define ALONE_TRIES 1000
#define STUCK_AFTER (10 * GH_MS) /* beyond what it should take, were it only sliced */
#define UNCOUNTED_MOST (500 * GH_MS) /* for a driver's queue to run empty */

uint64_t gate_now(const struct gh_gate *g) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * GH_S + (uint64_t)t.tv_nsec) / g->scale;
}

/* ---- setting up ---- */

static const struct gh_card_page *map_card_page(unsigned card) {
    char path[] = GH_SHARE_DIR "/00/card";
    char *at = path + sizeof GH_SHARE_DIR;
    if (card > 9)
        *at++ = (char)('0' + card / 10);
    *at++ = (char)('0' + card % 10);
    strcpy(at, "/card");
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    struct stat st;
    void *p = MAP_FAILED;
    if (fd < 0)
        return NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size >= (off_t)GH_CARD_PAGE_SIZE)
        p = mmap(NULL, GH_CARD_PAGE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return p == MAP_FAILED ? NULL : p;
}

/* The page as it is, unless it cannot be read or is none: then what was known of it stays. */
static void read_page(struct gh_gate *g) {
    struct gh_card_page copy;
    for (int i = 0; g->page && i < PAGE_TRIES; i++) {
        uint32_t seq = __atomic_load_n(&g->page->seq, __ATOMIC_ACQUIRE);
        if (seq & 1)
            continue;
        if (seq == g->seq)
            return;
        memcpy(&copy, g->page, sizeof copy);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (LOAD(&g->page->seq) != seq)
            continue;
        g->seq = seq;
        if (copy.magic != GH_CARD_MAGIC || copy.version != GH_CARD_VERSION || copy.size != GH_CARD_PAGE_SIZE)
            return;
        if (!g->scale)
            g->scale = copy.time_scale < 1 ? 1 : copy.time_scale > SCALE_MAX ? SCALE_MAX : copy.time_scale;
        g->view.present = copy.present | 1ull << g->me;
        g->tiers = copy.tiers;
        for (unsigned k = 0; k < GH_SLOTS; k++) {
            if (k == g->me && !(copy.present >> k & 1))
                continue; /* our grant is gone, our processes are not yet: as before */
            g->view.share[k] = copy.slot[k].share;
            if (g->view.share[k].cap > GH_PPM)
                g->view.share[k].cap = GH_PPM;
            if (!(copy.present >> k & 1) || g->born[k] != copy.slot[k].born) {
                slot_close(&g->peer[k]);
                g->view.slot[k] = (struct gh_slot){0};
            }
            g->born[k] = copy.slot[k].born;
        }
        return;
    }
}

static const uint32_t no_page; /* its seq */

static struct gh_gate *make_gate(const struct gh_card_policy *policy, uint32_t class_, unsigned card,
                                 struct gate_fast *fast) {
    struct gh_gate *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return NULL;
    g->card = card;
    g->me = policy->slot - 1;
    g->fast = fast;
    g->seq = UINT32_MAX;
    g->page = map_card_page(card);
    gh_rules_default(&g->view.rules);
    g->view.present = 1ull << g->me;
    g->view.share[g->me] = (struct gh_share){
        .class_ = (uint8_t)class_,
        .weight = GH_WEIGHT_ONE,
        .cap = policy->compute_limit && policy->compute_limit < 100 ? policy->compute_limit * (GH_PPM / 100) : 0};
    read_page(g);
    if (!g->scale)
        g->scale = 1;
    if (!slot_attach(&g->own_slot, card)) {
        munmap(g, sizeof *g);
        return NULL;
    }
    uint64_t now = gate_now(g);
    g->looked = g->view.seen = g->needed_at = now;
    g->seen[0] = (struct seen){.at = now, .clear_at = now + CLEAR_AFTER, .contexts = 1};
    g->contexts = 1;
    if (g->own_slot.inherited) /* killed in its tenure, and started anew at once: that is not ours */
        gate_yield(g, now);
    fast->seq = g->page ? &g->page->seq : &no_page;
    atomic_store(&fast->open, UINT64_MAX);
    return g;
}

struct gates *gates_make(struct gh_state *st) {
    struct gates *none = NULL, *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                            -1, 0);
    struct gh_card_policy policy;
    uint32_t cards = 1, class_ = 0;
    if (made == MAP_FAILED)
        return NULL;
    if (!gh_lock(&st->gates_lock))
        return NULL;
    none = atomic_load(&st->gates);
    if (none) {
        gh_unlock(&st->gates_lock);
        munmap(made, sizeof *made);
        return none;
    }
    for (unsigned card = 0; card < cards && card < GH_POLICY_CARDS; card++) {
        if (!gh_policy_card(st, card, &policy, &cards, &class_))
            break; /* no policy: no memory either */
        if (card >= cards || !policy.slot || policy.slot > GH_SLOTS || policy.flags & GH_CARD_WHOLE)
            continue;
        struct gh_gate *g = make_gate(&policy, class_, card, &made->fast[made->count]);
        if (g) {
            made->of_card[card] = g;
            made->gate[made->count++] = g;
        }
    }
    atomic_store_explicit(&st->gates, made, memory_order_release);
    gh_unlock(&st->gates_lock);
    return made;
}

/* ---- what is known of the others ---- */

static const struct seen *last_seen(const struct gh_gate *g) { return &g->seen[g->looks % HISTORY]; }

void gate_look(struct gh_gate *g, uint64_t now, bool must) {
    if (!must && now - g->looked < LOOK_EVERY)
        return;
    if (g->page && LOAD(&g->page->seq) != g->seq)
        read_page(g);
    uint64_t elapsed = now - g->looked, top = g->view.slot[g->me].v;
    uint32_t contexts = 1 + g->siblings;
    for (unsigned i = 0; i < GH_SLOTS; i++)
        if (g->view.present >> i & 1)
            top = max64(top, g->view.slot[i].v);
    for (uint64_t left = g->view.present & ~(1ull << g->me); left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left), theirs;
        struct gh_slot before = g->view.slot[i];
        g->view.slot[i] = slot_read(&g->peer[i], g->card, i, g->born[i], now, &g->view.rules, &before, elapsed, top,
                                    &theirs);
        contexts += theirs;
    }
    const struct seen *last = last_seen(g);
    struct seen next = {.at = now, .contexts = contexts, .mine = last->mine};
    if (!g->halted)
        next.mine += (now - last->at) / last->contexts;
    if (g->mode == GH_ROTATE && last->contexts > g->siblings + 1)
        g->busy_lost += (now - last->at) / last->contexts * (last->contexts - 1 - g->siblings);
    if (contexts > 1)
        next.clear_at = UINT64_MAX;
    else
        next.clear_at = last->clear_at == UINT64_MAX ? now + CLEAR_AFTER : last->clear_at;
    g->seen[++g->looks % HISTORY] = next;
    g->contexts = contexts;
    g->looked = g->view.seen = now;
}

uint64_t gate_shared(const struct gh_gate *g, uint64_t now, uint64_t elapsed, bool *clean) {
    uint64_t begin = now - min64(elapsed, now);
    const struct seen *then = last_seen(g), *last = then;
    for (uint64_t back = 1; then->at > begin && back < HISTORY && back <= g->looks; back++)
        then = &g->seen[(g->looks - back) % HISTORY];
    *clean = then->clear_at <= begin;
    if (now <= begin)
        return elapsed;
    uint64_t until = last->mine + (g->halted ? 0 : (now - min64(last->at, now)) / last->contexts);
    uint64_t from = then->mine + (begin - min64(then->at, begin)) / then->contexts;
    return min64(until > from ? until - from : 0, elapsed);
}

/* ---- what the others may know of us ---- */

static struct gh_slot_head *head_of(struct gh_gate *g) { return &g->own_slot.page->head; }

static bool has_peers(const struct gh_gate *g) { return (g->view.present & ~(1ull << g->me)) != 0; }

/* What is not a guess of an estimate. */
static uint64_t sure(uint64_t estimate) { return estimate >= GH_COST_UNKNOWN ? estimate - GH_COST_UNKNOWN : estimate; }

/* A stream's first commands take far longer than they should: they wait for something, maybe for what is at the gate. Or
 * for what was launched uncounted before them, which says nothing of them nor of the tenant's gaps. */
static bool is_stuck(struct gh_gate *g, const struct track *k, uint64_t since, uint64_t estimate, uint64_t now) {
    if (k->done_at < g->uncounted_at && now - min64(g->uncounted_at, now) < UNCOUNTED_MOST) {
        g->unsure = true;
        return false;
    }
    since = max64(since, k->done_at);
    since += groups_stopped(g, since, now);
    if (now - min64(since, now) < sure(estimate) * g->contexts + STUCK_AFTER)
        return false;
    g->stuck += k->batch_estimate;
    g->stuck_commands += k->batch;
    for (unsigned n = k->first; n; n = g->mark[n - 1].next) {
        g->stuck += g->mark[n - 1].estimate;
        g->stuck_commands += g->mark[n - 1].count;
    }
    return true;
}

/* The oldest commands in flight: since when they can have been running, and how long they should. */
static void find_running(struct gh_gate *g, uint64_t now) {
    uint64_t at = UINT64_MAX, cost = 0;
    g->stuck = g->stuck_commands = 0;
    for (unsigned i = 0; i < TRACKS; i++) {
        const struct track *k = &g->track[i];
        if (!k->used || (!k->first && !k->batch))
            continue;
        const struct mark *m = k->first ? &g->mark[k->first - 1] : NULL;
        uint64_t since = m ? m->submitted : k->first_at, estimate = m ? m->estimate : k->batch_estimate;
        if (!is_stuck(g, k, since, estimate, now) && since < at) {
            at = since;
            cost = estimate;
        }
    }
    g->own.inflight = g->inflight - min64(g->stuck, g->inflight);
    at = max64(g->done_at, at == UINT64_MAX ? 0 : at);
    g->own.running_since = at + groups_stopped(g, at, now);
    g->own.running_cost = cost;
}

/* GPU time had so far: what was charged, and the present command's part. */
static uint64_t worked(struct gh_gate *g, uint64_t now) {
    uint64_t more = 0;
    if (g->launched != g->done)
        more = min64(now - min64(g->own.running_since, now), g->own.running_cost);
    return LOAD(&head_of(g)->charged) + more;
}

/* Saturation is learned from times in which nobody else had work for a while: only then is it the tenant's own doing.
 * Nor is it its doing that the card runs dry while its next launch waits for the own window. */
static void count_clear(struct gh_gate *g, uint64_t now) {
    uint64_t clear_at = last_seen(g)->clear_at, charge = worked(g, now);
    if (clear_at <= g->counted_at) {
        g->clear += now - g->counted_at;
        /* Charged may be less than before, when what ran was reckoned to run for longer. */
        g->clear_charged += g->full ? now - g->counted_at : charge - g->counted_charge;
    }
    g->counted_at = now;
    g->counted_charge = charge;
}

static void tenure_observe(struct gh_gate *g, bool idle) {
    struct gh_slot_head *h = head_of(g);
    uint64_t until = idle ? g->clear_at_idle : g->clear, charged = idle ? g->charged_at_idle : g->clear_charged;
    if (until > g->tenure_clear && !g->unsure) {
        uint32_t duty = gh_saturation(LOAD(&h->duty), (int64_t)(charged - g->tenure_charged) > 0 ? charged - g->tenure_charged : 0,
                                      until - g->tenure_clear);
        STORE(&h->duty, duty);
        STORE(&h->saturated, gh_saturated(LOAD(&h->saturated), duty));
    }
    g->tenure_clear = g->clear;
    g->tenure_charged = g->clear_charged;
    g->unsure = false;
}

static void tenure_begin(struct gh_gate *g, uint64_t now) {
    if (g->tenure)
        return;
    count_clear(g, now);
    g->tenure = true;
    g->unsure = false;
    g->tenure_clear = g->clear;
    g->tenure_charged = g->clear_charged;
}

void gate_tenure_end(struct gh_gate *g, uint64_t now, bool idle) {
    count_clear(g, now);
    tenure_observe(g, idle);
    g->tenure = false;
}

void gate_publish(struct gh_gate *g, uint64_t now) {
    struct gh_slot_head *h = head_of(g);
    bool was_busy = g->view.slot[g->me].launched != g->view.slot[g->me].done;
    unsigned kept = front_kept(g);
    uint64_t launched = g->launched - kept;
    bool busy = launched != g->done;
    slot_keep(&g->own_slot, now);
    struct gh_sub_slot *sub = g->own_slot.sub;
    find_running(g, now);
    uint64_t residue = gh_residue(&g->own, now);
    STORE(&sub->residue, residue - min64(residue, front_behind(g)));
    STORE(&sub->done_at, g->done_at);
    STORE(&sub->done, g->done);
    STORE(&sub->launched, launched);
    STORE(&sub->held, g->holding + kept);
    STORE(&sub->waiting, g->entering);
    STORE(&sub->heartbeat, now);
    if (busy || was_busy || g->holding)
        STORE(&h->active_at, now);
    if (g->wanting)
        slot_wanted(&g->own_slot, g->wanting, now);
    g->wanting = busy || kept || g->entering ? now : 0;
    count_clear(g, now);
    unsigned contexts;
    struct gh_slot *s = &g->view.slot[g->me];
    *s = gh_slot_view(g->own_slot.page, sizeof *g->own_slot.page, now, g->view.rules.heartbeat_stale, &contexts);
    if (sub == &g->own_slot.spare && busy) { /* all are taken: the page does not show us */
        s->launched += launched - g->done;
        contexts++;
    }
    g->siblings = contexts - (busy && contexts);
    if (was_busy && s->launched == s->done) {
        g->clear_at_idle = g->clear;
        g->charged_at_idle = g->clear_charged;
        STORE(&h->idle_since, now);
        s->idle_since = now;
        if (has_peers(g))
            slot_wake(&g->own_slot); /* lower classes count their linger from here */
    }
    if (g->tenure && busy && g->clear > g->tenure_clear + 2 * GH_MS)
        tenure_observe(g, false);
}

void gate_yield(struct gh_gate *g, uint64_t now) {
    struct gh_slot_head *h = head_of(g);
    if (LOAD(&h->end) > now)
        STORE(&h->end, now);
    if (has_peers(g))
        slot_wake(&g->own_slot);
}

static void raise_v(struct gh_gate *g, uint64_t charge) {
    uint64_t *v = &head_of(g)->v, old = LOAD(v);
    uint32_t weight = charge ? gh_weight(&g->view, g->me, g->looked) : 1;
    for (;;) {
        uint64_t next = charge ? gh_charge(old, charge, weight) : max64(old, gh_wake_v(&g->view, g->me));
        if (__atomic_compare_exchange_n(v, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return;
    }
}

static void take_credit(struct gh_gate *g, uint64_t now, int64_t charge) {
    uint64_t *credit = &head_of(g)->credit, old = LOAD(credit);
    uint32_t cap = g->view.share[g->me].cap;
    while (cap && !__atomic_compare_exchange_n(credit, &old, cost_take(old, cap, g->view.rules.burst, now, charge),
                                               false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

/* The cap's bucket stands still while a collective waits. Were that charged in full, the other side would wait in its
 * turn until it is paid, and each would make the other wait longer and longer. */
static int64_t of_bucket(const struct gh_gate *g, uint64_t charge, uint64_t waited) {
    waited = min64(waited, charge);
    return (int64_t)(charge - waited + waited / 1000 * g->view.share[g->me].cap / (GH_PPM / 1000));
}

void gate_retire(struct gh_gate *g, uint64_t now, uint32_t count, uint64_t estimate, uint64_t charge, uint64_t waited) {
    /* Streams beside each other: each command was measured, but a second has only a second. */
    uint64_t wall = now - min64(g->busy_since, now);
    if (g->busy_track > TRACKS)
        wall -= min64(g->busy_lost, wall);
    charge = min64(charge, wall - min64(g->busy_charged, wall));
    g->busy_charged += charge;
    g->done += count;
    g->done_at = now;
    g->inflight = g->done == g->launched ? 0 : g->inflight - min64(g->inflight, estimate);
    g->own.inflight = g->inflight;
    take_credit(g, now, of_bucket(g, charge, waited) - (int64_t)sure(estimate));
    if (charge)
        raise_v(g, charge);
    __atomic_add_fetch(&head_of(g)->charged, charge, __ATOMIC_RELAXED);
    STORE(&head_of(g)->preempt_bound, groups_bound(g, gh_window(&g->view, g->me) + g->long_one));
    __atomic_add_fetch(&g->done_word, 1, __ATOMIC_RELEASE);
    if (g->waiting)
        syscall(SYS_futex, &g->done_word, 129 /* FUTEX_WAKE_PRIVATE */, INT32_MAX, NULL, NULL, 0);
}

/* ---- the decision ---- */

static bool anybody_awake(const struct gh_gate *g) {
    for (uint64_t left = g->view.present & ~(1ull << g->me); left; left &= left - 1) {
        const struct gh_slot *s = &g->view.slot[__builtin_ctzll(left)];
        uint64_t last = max64(s->heartbeat, s->active_at);
        if (last && !s->dead && (last >= g->looked || g->looked - last < g->view.rules.active_within))
            return true;
    }
    return false;
}

/* Nobody to share with, nothing to count: until somebody comes, launches do not ask. */
static void set_open(struct gh_gate *g, uint64_t now) {
    uint64_t tick = gate_ticks();
    struct gate_fast *f = g->fast;
    bool ready = true;
    g->wanting = 0;
    STORE(&head_of(g)->idle_since, now);
    STORE(&head_of(g)->active_at, now);
    STORE(&g->own_slot.sub->heartbeat, now);
    if (!has_peers(g)) {
        atomic_store_explicit(&f->fresh, 0, memory_order_relaxed);
    } else if (!g->tick0) {
        g->tick0 = tick;
        g->clock0 = now;
        ready = false;
    } else {
        uint64_t ns = (now - g->clock0) * g->scale;
        ready = ns >= GH_MS && tick > g->tick0;
        if (ready) {
            double rate = (double)(tick - g->tick0) / (double)ns;
            atomic_store_explicit(&f->fresh, (uint64_t)(rate * (double)(LOOK_EVERY * g->scale)) | 1,
                                  memory_order_relaxed);
        }
    }
    atomic_store_explicit(&f->looked, tick, memory_order_relaxed);
    atomic_store_explicit(&f->open, ready ? (g->page ? g->seq : 0) : UINT64_MAX, memory_order_release);
}

/* From here on launches are counted. */
static void set_closed(struct gh_gate *g, uint64_t now) {
    if (atomic_load_explicit(&g->fast->open, memory_order_relaxed) != UINT64_MAX)
        g->uncounted_at = now;
    atomic_store_explicit(&g->fast->open, UINT64_MAX, memory_order_relaxed);
}

static void woken(struct gh_gate *g, uint64_t now) {
    struct gh_slot_head *h = head_of(g);
    const struct gh_slot *s = &g->view.slot[g->me];
    gate_look(g, now, true);
    if (s->active_at)
        gh_gap_seen(&g->gaps, now - s->idle_since);
    if (!g->view.share[g->me].linger)
        STORE(&h->linger, gh_linger(&g->gaps, g->view.rules.window_guarded + RESUME_LOSS, KAPPA));
    STORE(&h->woke_at, now);
    raise_v(g, 0);
}

static struct gh_decision ask(struct gh_gate *g, uint64_t now, uint64_t cost) {
    struct gh_slot_head *h = head_of(g);
    struct gh_own own = g->own;
    /* The window is the container's: each process with work has its part of it. */
    own.inflight = gh_residue(&g->own, now) * (g->siblings + 1);
    own.running_cost = 0;
    own.idle = g->launched - g->done == g->stuck_commands;
    if (g->view.share[g->me].cap)
        own.bucket = cost_bucket(LOAD(&h->credit), g->view.share[g->me].cap, g->view.rules.burst, now);
    struct gh_decision d = gh_decide(&g->view, g->me, &own, now, cost);
    if (d.distrust_until != g->own.distrust_until)
        __atomic_add_fetch(&h->distrusts, 1, __ATOMIC_RELAXED);
    g->own.distrust_until = d.distrust_until;
    g->own.distrust_for = d.distrust_for;
    g->own.ahead = d.ahead;
    g->mode = d.mode;
    g->own.held_since = gh_held_since(&g->own, &d, now);
    uint8_t by = d.go || d.on != GH_ON_SLOT ? 0 : (uint8_t)(d.slot + 1);
    if (LOAD(&h->mode) != d.mode || LOAD(&h->mode_by) != by) {
        STORE(&h->mode, d.mode);
        STORE(&h->mode_by, by);
        STORE(&h->mode_since, now);
    }
    if (d.go || d.held)
        STORE(&h->active_at, now);
    if (d.claim) {
        STORE(&h->end, 0); /* half a claim is none */
        STORE(&h->start, d.start);
        STORE(&h->probe_until, d.probe_until);
        STORE(&h->epoch, d.epoch);
        STORE(&h->end, d.end);
        if (d.probe_until)
            g->own.probed_at = now;
        tenure_begin(g, now);
        slot_wake(&g->own_slot);
    } else if (!d.go && g->tenure && (d.on == GH_ON_SLOT || d.mode == GH_CAPPED)) {
        gate_tenure_end(g, now, g->launched == g->done);
        gate_yield(g, now);
    }
    return d;
}

/* Sleeps as the decision says; false: it came back at once. Entered and left with the lock. */
static bool rest(struct gh_gate *g, const struct gh_decision *d, uint64_t now, bool plainly) {
    uint64_t step = d->until > now ? d->until - now : 0;
    const uint32_t *word = NULL;
    uint32_t seen = 0;
    step = min64(step, STEP_MAX);
    if (d->mode == GH_DRAIN)
        step = min64(step, g->view.rules.pacer_min);
    if (d->on == GH_ON_SLOT) {
        word = g->peer[d->slot].mapped ? &g->peer[d->slot].mapped->head.word : NULL;
        seen = g->peer[d->slot].word;
    } else if (d->on == GH_ON_OWN_DONE) {
        word = &g->done_word;
        seen = LOAD(&g->done_word);
    } else if (d->on == GH_ON_POLICY && g->page) {
        word = &g->page->seq;
        seen = g->seq;
    }
    bool full = d->on == GH_ON_OWN_DONE && d->held;
    count_clear(g, now);
    g->waiting++;
    g->full += full;
    gh_unlock(&g->lock);
    slot_sleep(plainly ? NULL : word, seen, max64(plainly ? GH_US * 50 : step, GH_US) * g->scale);
    bool locked = gh_lock(&g->lock);
    (void)locked;
    uint64_t then = gate_now(g);
    count_clear(g, then);
    g->waiting--;
    g->full -= full;
    return then - now >= min64(step, 20 * GH_US);
}

static struct gh_gate *gate_of(CUcontext *context) {
    struct gh_state *st = gh_here();
    struct gates *all = gates_here();
    if (!st || !all || REAL(cuCtxGetCurrent)(context) || !*context)
        return NULL;
    struct place at = current_place(st);
    return at.card < 0 || at.card >= GH_POLICY_CARDS ? NULL : all->of_card[at.card];
}

static bool has_lower(const struct gh_gate *g) {
    for (uint64_t left = g->view.present; left; left &= left - 1)
        if (g->view.share[__builtin_ctzll(left)].class_ < g->view.share[g->me].class_)
            return true;
    return false;
}

/* That there is work after a time without: who keeps a command ready behind a word has it to close. */
static void tell_lower(struct gh_gate *g) {
    if (g->tell)
        slot_wake(&g->own_slot);
    g->tell = false;
}

/* Until the driver may be asked. False: nothing is to be kept of this launch. */
static bool admit(struct gh_gate *g, uint64_t key, CUcontext context, CUstream stream, bool *front) {
    bool held = false;
    unsigned early = 0;
    g->tell = false;
    uint64_t came = 0;
    g->entering++;
    for (bool first = true;; first = false) {
        marks_poll(g);
        uint64_t now = gate_now(g);
        came = first ? now : came;
        gate_publish(g, now);
        gate_look(g, now, !first);
        const struct gh_slot *s = &g->view.slot[g->me];
        if (first && s->launched == s->done && now - min64(s->idle_since, now) > g->view.rules.wake_idle) {
            woken(g, now);
            gate_publish(g, now);
            g->tell = has_lower(g);
        }
        struct gh_decision d = ask(g, now, cost_estimate(cost_of(&g->costs, key)));
        *front = front_may(g, &d, context, stream, cost_of(&g->costs, key));
        if (*front) {
            d.go = 1;
            d.held = 0;
        }
        if (held != (d.held != 0)) {
            held = d.held;
            g->holding += held ? 1 : -1u;
            gate_publish(g, now);
            tell_lower(g);
        }
        if (d.go) {
            STORE(&g->own_slot.sub->waiting, --g->entering);
            if (!first)
                slot_waited(&g->own_slot, (now - came) * g->scale);
            if (d.mode == GH_OPEN && !g->view.share[g->me].cap && g->launched == g->done && !anybody_awake(g)) {
                set_open(g, now);
                g->uncounted_at = now;
                return false;
            }
            set_closed(g, now);
            g->needed_at = now;
            return true;
        }
        set_closed(g, now);
        early = rest(g, &d, now, early > 3) ? 0 : early + 1;
    }
}

/* A small window is refilled by what is seen to be done: it takes more markers. */
static uint64_t batch_time(const struct gh_gate *g) { return min64(BATCH_TIME, gh_window(&g->view, g->me) / 2); }

static bool is_collective(struct gh_gate *g, uint64_t key, CUfunction f) {
    struct name *known = &g->name[key / 2 % NAMES];
    uint64_t was = atomic_load_explicit(&known->key, memory_order_relaxed);
    const char *name = NULL;
    if (!f || (was | 1) == (key | 1))
        return f && was & 1;
    if ((REAL(cuFuncGetName)(&name, f) && REAL(cuKernelGetName)(&name, f)) || !name)
        name = ""; /* drivers before 12.3 */
    bool is = cost_is_collective(name);
    atomic_store_explicit(&known->key, (key & ~1ull) | is, memory_order_relaxed);
    return is;
}

void gate_enter(struct gate_ticket *t, CUstream stream, uint64_t key, CUfunction f) {
    CUcontext context = NULL;
    *t = (struct gate_ticket){.key = key};
    struct gh_gate *g = gate_of(&context);
    if (!stream)
        stream = (CUstream)CU_STREAM_LEGACY;
    if (!g || marks_capturing(stream))
        return;
    bool collective = is_collective(g, key, f);
    if (!gh_lock(&g->lock))
        return;
    cost_of(&g->costs, key)->collective = collective;
    bool front;
    if (!admit(g, key, context, stream, &front)) {
        gh_unlock(&g->lock);
        return;
    }
    uint64_t now = gate_now(g);
    struct cost *cost = cost_of(&g->costs, key);
    t->estimate = cost_estimate(cost);
    t->stream = stream;
    t->track = marks_track(g, context, stream);
    struct track *k = t->track ? &g->track[t->track - 1] : NULL;
    if (k) {
        t->queued = k->batch || k->first;
        t->timed = cost_due(cost, front || k->batch + 1 >= BATCH_COMMANDS ||
                                      k->batch_estimate + t->estimate >= batch_time(g));
        if (t->timed || k->thread) /* nobody but this thread can mark its stream later */
            t->mark = marks_take(g, context);
    }
    if (!t->mark && t->estimate >= GH_COST_UNKNOWN)
        t->estimate = UNMARKED;
    if (g->launched == g->done) {
        g->busy_since = g->done_at = now;
        g->busy_charged = g->busy_lost = 0;
        g->busy_track = t->track;
    } else if (g->busy_track != t->track) {
        g->busy_track = TRACKS + 1;
    }
    g->launched++;
    g->inflight += t->estimate;
    g->own.inflight = g->inflight;
    take_credit(g, now, (int64_t)sure(t->estimate));
    if (k) {
        k->first_at = k->batch ? k->first_at : now;
        k->batch++;
        k->batch_estimate += t->estimate;
        k->last_at = now;
        k->entered++;
        t->gate = g;
    } else { /* more streams than we can follow: charged, not waited for */
        gate_retire(g, now + t->estimate, 1, t->estimate, t->estimate, 0);
    }
    gate_publish(g, now);
    tell_lower(g);
    uint64_t slice = groups_enter(g, context);
    gh_unlock(&g->lock);
    if (front)
        front_put(g, context, stream, t->estimate);
    if (slice != GROUP_NOTHING)
        groups_slice(g, context, slice);
    if (t->mark)
        g->mark[t->mark - 1].begun = gate_now(g);
    if (t->mark && (!marks_ready(&g->mark[t->mark - 1], context) ||
                    (t->timed && REAL(cuEventRecord)(g->mark[t->mark - 1].begin, stream))))
        t->timed = false;
}

CUresult gate_leave(struct gate_ticket *t, CUresult r) {
    struct gh_gate *g = t->gate;
    if (!g)
        return r;
    struct mark *m = t->mark ? &g->mark[t->mark - 1] : NULL;
    uint64_t launched_at = gate_now(g);
    bool marked = m && r == CUDA_SUCCESS && m->context && !REAL(cuEventRecord)(m->end, t->stream);
    if (!gh_lock(&g->lock))
        return r;
    struct track *k = &g->track[t->track - 1];
    if (k->entered) /* its context is not gone meanwhile */
        k->entered--;
    if (r != CUDA_SUCCESS && k->batch) {
        k->batch--;
        k->batch_estimate -= min64(t->estimate, k->batch_estimate);
        gate_retire(g, gate_now(g), 1, t->estimate, 0, 0);
    }
    if (marked && k->batch) {
        m->key = t->key;
        m->sampled = t->estimate;
        m->timed = t->timed;
        m->queued = t->queued;
        m->begun = launched_at - min64(m->begun, launched_at);
        marks_link(g, t->track, t->mark);
    } else if (m) {
        marks_give(g, t->mark);
    }
    if (!marked && t->estimate >= GH_COST_UNKNOWN && k->batch) { /* it cannot be measured after all */
        k->batch_estimate -= min64(t->estimate - UNMARKED, k->batch_estimate);
        g->inflight -= min64(t->estimate - UNMARKED, g->inflight);
        g->own.inflight = g->inflight;
        take_credit(g, gate_now(g), (int64_t)UNMARKED - (int64_t)sure(t->estimate));
    }
    pacer_need(g);
    gh_unlock(&g->lock);
    return r;
}

/* ---- what the program does besides ---- */

uint64_t gate_before_sync(void) {
    struct gh_state *st = gh_here();
    struct gates *all = st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
    for (uint32_t i = 0; all && i < all->count; i++)
        if (atomic_load(&all->gate[i]->launched) != atomic_load(&all->gate[i]->done))
            return gate_now(all->gate[i]) + 1;
    return 0;
}

void gate_synchronised(uint64_t before, CUstream stream, bool whole) {
    CUcontext context = NULL;
    struct gh_gate *g = before ? gate_of(&context) : NULL;
    if (!stream)
        stream = (CUstream)CU_STREAM_LEGACY;
    if (!g || !gh_lock(&g->lock))
        return;
    marks_poll(g);
    uint64_t now = gate_now(g);
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &g->track[i];
        if (k->used && k->context == context && (whole || (k->stream == stream && !k->thread)) && !k->entered &&
            !k->first && k->last_at < before)
            marks_flush(g, i + 1, now);
    }
    gate_publish(g, now);
    gh_unlock(&g->lock);
}

static struct gates *existing(void) {
    struct gh_state *st = gh_here();
    return st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
}

/* Takes the lock when no thread of ours is in the driver with an event or this stream; NULL: with any. False: one does
 * not come back. */
static bool lock_alone(struct gh_gate *g, CUstream stream) {
    for (int i = 0; i < ALONE_TRIES && gh_lock(&g->lock); i++) {
        void *with = atomic_load(&g->tailing);
        if (stream ? with != (void *)((uintptr_t)stream + 1) : !with && !g->polling)
            return true;
        gh_unlock(&g->lock);
        slot_sleep(NULL, 0, GH_MS);
    }
    return false;
}

void gate_stream_leaves(CUstream stream) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        if (!gh_lock(&g->lock))
            continue;
        for (unsigned n = 0; n < TRACKS; n++) {
            struct track *k = &g->track[n];
            if (!k->used || k->stream != stream || k->thread)
                continue;
            unsigned mark = k->batch ? marks_take(g, k->context) : 0;
            CUcontext context = k->context;
            gh_unlock(&g->lock);
            struct mark *m = mark ? &g->mark[mark - 1] : NULL;
            bool marked = m && !marks_capturing(stream) && marks_ready(m, context) && !REAL(cuEventRecord)(m->end, stream);
            gh_lock(&g->lock);
            if (m)
                m->timed = 0;
            if (marked && k->batch)
                marks_link(g, n + 1, mark);
            else if (mark)
                marks_give(g, mark);
            marks_flush(g, n + 1, gate_now(g));
            k->stream = (CUstream)~(uintptr_t)0; /* the next stream of that name is another one */
        }
        gh_unlock(&g->lock);
        if (lock_alone(g, stream))
            gh_unlock(&g->lock);
    }
}

void gate_context_leaves(CUcontext context) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        if (!lock_alone(g, NULL))
            continue;
        front_leave(g, context);
        groups_leave(g, context);
        uint64_t now = gate_now(g);
        for (unsigned n = 0; n < TRACKS; n++) {
            struct track *k = &g->track[n];
            if (!k->used || k->context != context)
                continue;
            while (k->first) {
                unsigned mark = k->first;
                struct mark *m = &g->mark[mark - 1];
                k->first = m->next;
                uint64_t most = now - min64(now, m->submitted); /* more it did not have, if nothing is known of it */
                gate_retire(g, now, m->count, m->estimate, m->estimate < GH_COST_UNKNOWN ? m->estimate : most, 0);
                marks_give(g, mark);
            }
            k->last = 0;
            marks_flush(g, n + 1, now);
            k->used = 0;
        }
        for (unsigned n = 0; n < MARKS; n++) /* its events go with it */
            if (g->mark[n].context == context)
                g->mark[n].context = NULL;
        gate_publish(g, now);
        gh_unlock(&g->lock);
    }
}

void gate_forget(uint64_t key) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++)
        if (gh_lock(&all->gate[i]->lock)) {
            cost_forget(&all->gate[i]->costs, key);
            gh_unlock(&all->gate[i]->lock);
        }
}
