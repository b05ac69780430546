/* The gate's accounting: what we know of other containers' work, what we publish of ours, and what it is charged. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "gate/gate_inside.h"

#define STUCK_AFTER (10 * GH_MS)     /* longer than it should take if it were only time-sliced */
#define UNCOUNTED_MOST (500 * GH_MS) /* until a driver's queue has run empty */

/* ---- what we know of the others ---- */

static const struct seen *last_seen(const struct gh_gate *g) { return &g->seen[g->looks % HISTORY]; }

void gate_look(struct gh_gate *g, uint64_t now, bool must) {
    if (!must && now - g->looked < LOOK_EVERY)
        return;
    if (g->page && WORD_LOAD_RELAXED(&g->page->seq) != g->seq)
        gate_read_page(g);
    uint64_t elapsed = now - g->looked, top = g->view.slot[g->me].v;
    uint32_t contexts = 1 + g->siblings;
    for (unsigned i = 0; i < GH_SLOTS; i++)
        if (g->view.present >> i & 1)
            top = max64(top, g->view.slot[i].v);
    for (uint64_t left = g->view.present & ~(1ull << g->me); left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left), theirs;
        struct gh_slot before = g->view.slot[i];
        g->view.slot[i] =
            slot_read(&g->peer[i], g->gpu, i, g->born[i], now, &g->view.rules, &before, elapsed, top, &theirs);
        contexts += theirs;
    }
    const struct seen *last = last_seen(g);
    struct seen next = {.at = now, .contexts = contexts, .mine = last->mine};
    if (!g->halted)
        next.mine += gh_sliced(now - last->at, last->contexts);
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

void gate_ask(struct gh_gate *g) {
    if (slot_may_lock(&g->own_slot)) {
        struct slot_own copy = g->own_slot;
        gh_unlock(&g->lock);
        slot_lock(&copy);
        if (gh_lock(&g->lock))
            slot_locked(&g->own_slot, &copy);
    }
    for (unsigned i = 0; i < GH_SLOTS; i++)
        if (slot_may_ask(&g->peer[i])) {
            struct slot_peer copy = g->peer[i];
            gh_unlock(&g->lock);
            slot_ask(&copy);
            if (gh_lock(&g->lock))
                slot_answered(&g->peer[i], &copy);
            return; /* one at a time, since each may take long */
        }
}

bool gate_asks(const struct gh_gate *g) {
    for (uint64_t left = g->view.present & ~(1ull << g->me); left; left &= left - 1)
        if (slot_may_ask(&g->peer[__builtin_ctzll(left)]))
            return true;
    return false;
}

uint64_t gate_own_part(const struct gh_gate *g, uint64_t now, uint64_t elapsed, bool *clean) {
    uint64_t begin = now - min64(elapsed, now);
    const struct seen *then = last_seen(g), *last = then;
    for (uint64_t back = 1; then->at > begin && back < HISTORY && back <= g->looks; back++)
        then = &g->seen[(g->looks - back) % HISTORY];
    *clean = then->clear_at <= begin;
    if (now <= begin)
        return elapsed;
    uint64_t until = last->mine + (g->halted ? 0 : gh_sliced(now - min64(last->at, now), last->contexts));
    uint64_t from = then->mine + gh_sliced(begin - min64(then->at, begin), then->contexts);
    return min64(until > from ? until - from : 0, elapsed);
}

void gate_halt(struct gh_gate *g, uint64_t now, bool halted) {
    if (g->halted == halted)
        return;
    gate_look(g, now, true); /* account for the time so far by the old state */
    if (halted)
        g->halt[++g->halts % HALTS] = (struct halt){now, UINT64_MAX};
    else
        g->halt[g->halts % HALTS].end = now;
    g->halted = halted;
}

uint64_t gate_halted(const struct gh_gate *g, uint64_t since, uint64_t now) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < HALTS; i++) {
        uint64_t from = max64(g->halt[i].begin, since), to = min64(g->halt[i].end, now);
        if (g->halt[i].begin && to > from)
            sum += to - from;
    }
    return sum;
}

/* ---- what we publish of us ---- */

/* An overdue stream is blocked, perhaps by a launch that we hold at the gate: its work does not count. Exception: it
 * may be behind launches made before counting began, which tell nothing of it nor of the tenant's gaps. */
static bool is_stuck(struct gh_gate *g, const struct track *k, uint64_t since, uint64_t estimate, uint64_t now) {
    if (k->done_at < g->uncounted_at && now - min64(g->uncounted_at, now) < UNCOUNTED_MOST) {
        g->unsure = true;
        return false;
    }
    since = max64(since, k->done_at);
    since += gate_halted(g, since, now);
    if (now - min64(since, now) < gate_sure(estimate) * g->contexts + STUCK_AFTER)
        return false;
    g->stuck += k->batch_estimate;
    g->stuck_commands += k->batch;
    for (unsigned n = k->first; n; n = g->marker[n - 1].next) {
        g->stuck += g->marker[n - 1].estimate;
        g->stuck_commands += g->marker[n - 1].count;
    }
    return true;
}

/* Finds the oldest commands in flight: since when they may have been running, and their estimated GPU time. */
static void find_running(struct gh_gate *g, uint64_t now) {
    uint64_t at = UINT64_MAX, cost = 0;
    g->stuck = g->stuck_commands = 0;
    for (unsigned i = 0; i < TRACKS; i++) {
        const struct track *k = &g->track[i];
        if (!k->used || (!k->first && !k->batch))
            continue;
        const struct marker *m = k->first ? &g->marker[k->first - 1] : NULL;
        uint64_t since = m ? m->submitted : k->first_at, estimate = m ? m->estimate : k->batch_estimate;
        if (!is_stuck(g, k, since, estimate, now) && since < at) {
            at = since;
            cost = estimate;
        }
    }
    g->own.inflight = g->inflight - min64(g->stuck, g->inflight);
    at = max64(g->done_at, at == UINT64_MAX ? 0 : at);
    g->own.running_since = at + gate_halted(g, at, now);
    g->own.running_cost = cost;
}

/* GPU time used so far: what was charged, and the elapsed part of the running commands. */
static uint64_t worked(struct gh_gate *g, uint64_t now) {
    uint64_t more = 0;
    if (g->launched != g->done)
        more = min64(now - min64(g->own.running_since, now), g->own.running_cost);
    return WORD_LOAD_RELAXED(&gate_head(g)->charged) + more;
}

/* Saturation is learned while nobody else has work: only then are gaps the tenant's own. Time in which the next launch
 * waits for the tenant's window counts as used, since such gaps are not its own either. */
void gate_count_clear(struct gh_gate *g, uint64_t now) {
    uint64_t clear_at = last_seen(g)->clear_at, charge = worked(g, now);
    if (clear_at <= g->counted_at) {
        g->clear += now - g->counted_at;
        /* The charge may have fallen, if what ran was estimated to run for longer. */
        g->clear_charged += g->full ? now - g->counted_at : charge - g->counted_charge;
    }
    g->counted_at = now;
    g->counted_charge = charge;
}

static void tenure_observe(struct gh_gate *g, bool idle) {
    struct gh_slot_head *h = gate_head(g);
    uint64_t until = idle ? g->clear_at_idle : g->clear, charged = idle ? g->charged_at_idle : g->clear_charged;
    if (until > g->tenure_clear && !g->unsure) {
        int64_t had = (int64_t)(charged - g->tenure_charged);
        uint32_t duty =
            gh_saturation(WORD_LOAD_RELAXED(&h->duty), had > 0 ? (uint64_t)had : 0, until - g->tenure_clear);
        WORD_STORE_RELEASE(&h->duty, duty);
        WORD_STORE_RELEASE(&h->saturated, gh_saturated(WORD_LOAD_RELAXED(&h->saturated), duty));
    }
    g->tenure_clear = g->clear;
    g->tenure_charged = g->clear_charged;
    g->unsure = false;
}

void gate_tenure_begin(struct gh_gate *g, uint64_t now) {
    if (g->tenure)
        return;
    gate_count_clear(g, now);
    g->tenure = true;
    g->unsure = false;
    g->tenure_clear = g->clear;
    g->tenure_charged = g->clear_charged;
}

void gate_tenure_end(struct gh_gate *g, uint64_t now, bool idle) {
    gate_count_clear(g, now);
    tenure_observe(g, idle);
    g->tenure = false;
}

void gate_publish(struct gh_gate *g, uint64_t now) {
    struct gh_slot_head *h = gate_head(g);
    bool was_busy = g->view.slot[g->me].launched != g->view.slot[g->me].done;
    unsigned blocked = prequeue_blocked(g);
    uint64_t launched = g->launched - blocked;
    bool busy = launched != g->done;
    slot_keep(&g->own_slot);
    struct gh_slot_process *record = g->own_slot.process;
    find_running(g, now);
    uint64_t residue = gh_residue(&g->own, now);
    WORD_STORE_RELEASE(&record->residue, residue - min64(residue, prequeue_pending(g)));
    uint64_t sure = gate_sure(g->own.inflight);
    WORD_STORE_RELEASE(&record->uncharged, sure - (blocked ? min64(sure, prequeue_pending(g)) : 0));
    WORD_STORE_RELEASE(&record->done_at, g->done_at);
    WORD_STORE_RELEASE(&record->done, g->done);
    WORD_STORE_RELEASE(&record->launched, launched);
    WORD_STORE_RELEASE(&record->held, (uint16_t)min64(g->holding + blocked, UINT16_MAX));
    gate_show_waiting(g);
    WORD_STORE_RELEASE(&record->heartbeat, now);
    if (busy || was_busy || g->holding)
        WORD_STORE_RELEASE(&h->active_at, now);
    if (g->wanting)
        slot_wanted(&g->own_slot, g->wanting, now);
    g->wanting = busy || blocked || g->entering ? now : 0;
    gate_count_clear(g, now);
    unsigned contexts;
    struct gh_slot *s = &g->view.slot[g->me];
    *s = gh_slot_view(g->own_slot.page, sizeof *g->own_slot.page, now, g->view.rules.heartbeat_stale, &contexts);
    if (record == &g->own_slot.unseen && busy) { /* no record is free, so the file does not show us */
        s->launched += launched - g->done;
        contexts++;
    }
    g->siblings = contexts - (busy && contexts);
    if (was_busy && s->launched == s->done) {
        g->clear_at_idle = g->clear;
        g->charged_at_idle = g->clear_charged;
        WORD_STORE_RELEASE(&h->idle_since, now);
        s->idle_since = now;
        if (gate_has_peers(g))
            slot_wake(&g->own_slot); /* lower classes count the linger from now */
    }
    if (g->tenure && busy && g->clear > g->tenure_clear + 2 * GH_MS)
        tenure_observe(g, false);
}

void gate_yield(struct gh_gate *g, uint64_t now) {
    struct gh_slot_head *h = gate_head(g);
    if (WORD_LOAD_RELAXED(&h->end) > now)
        WORD_STORE_RELEASE(&h->end, now);
    if (gate_has_peers(g))
        slot_wake(&g->own_slot);
}

void gate_raise_v(struct gh_gate *g, uint64_t charge) {
    uint64_t *v = &gate_head(g)->v, old = WORD_LOAD_RELAXED(v);
    uint32_t weight = charge ? gh_weight(&g->view, g->me, g->looked) : 1;
    for (;;) {
        uint64_t next = charge ? gh_charge(old, charge, weight) : max64(old, gh_wake_v(&g->view, g->me));
        if (__atomic_compare_exchange_n(v, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return;
    }
}

void gate_take_credit(struct gh_gate *g, uint64_t now, int64_t charge) {
    uint64_t *credit = &gate_head(g)->credit, old = WORD_LOAD_RELAXED(credit);
    uint32_t cap = g->view.share[g->me].cap;
    while (cap && !__atomic_compare_exchange_n(credit, &old, cost_take(old, cap, g->view.rules.burst, now, charge),
                                               false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

/* While a collective waits for its peers, the cap's bucket neither fills nor empties. If the wait were charged in full,
 * each side would wait at its cap and so make the other side wait, longer each time. */
static int64_t of_bucket(const struct gh_gate *g, uint64_t charge, uint64_t waited) {
    waited = min64(waited, charge);
    return (int64_t)(charge - waited + waited / 1000 * g->view.share[g->me].cap / (GH_PPM / 1000));
}

void gate_retire(struct gh_gate *g, uint64_t now, uint32_t count, uint64_t estimate, uint64_t charge, uint64_t waited) {
    /* Streams ran in parallel: together they are charged no more than the time that has passed. */
    uint64_t wall = now - min64(g->busy_since, now);
    if (g->busy_track > TRACKS)
        wall -= min64(g->busy_lost, wall);
    charge = min64(charge, wall - min64(g->busy_charged, wall));
    g->busy_charged += charge;
    g->done += count;
    g->done_at = now;
    g->inflight = g->done == g->launched ? 0 : g->inflight - min64(g->inflight, estimate);
    g->own.inflight = g->inflight;
    gate_take_credit(g, now, of_bucket(g, charge, waited) - (int64_t)gate_sure(estimate));
    if (charge)
        gate_raise_v(g, charge);
    __atomic_add_fetch(&gate_head(g)->charged, charge, __ATOMIC_RELAXED);
    WORD_STORE_RELEASE(&gate_head(g)->preempt_bound, gh_window(&g->view, g->me) + g->long_one);
    __atomic_add_fetch(&g->done_word, 1, __ATOMIC_RELEASE);
    if (g->waiting)
        syscall(SYS_futex, &g->done_word, 129 /* FUTEX_WAKE_PRIVATE */, INT32_MAX, NULL, NULL, 0);
}
