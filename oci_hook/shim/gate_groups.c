/* Tiers 1 and 2: controls of the channel groups behind this process's contexts, where the GPU page lets it use them
 * (`gpu-hook gpus --probe` found that they work there). Only simulated drivers offer them to programs.
 *
 * Tier 1: who has lower classes beside it takes long time slices, and who has higher ones short ones; but not beside
 * equals, with whom it would share unfairly or by many switches. Tier 2: the pacer stops the groups while a higher
 * class keeps this one frozen, if what is in flight would not end of itself in the time that the higher one waits. */
#define _GNU_SOURCE
#include "gate_inside.h"
#include "real.h"

#define SHORT_US 200u
#define LONG_US 20000u
#define UNKNOWN (GROUP_NOTHING - 1)
enum { SLICE_US = 1, OFF = 2, PREEMPT = 3 };

typedef CUresult (*control_function)(CUcontext, int, uint64_t);

static control_function control(void) {
    static _Atomic(uintptr_t) found; /* 1: there is none */
    uintptr_t p = atomic_load_explicit(&found, memory_order_acquire);
    if (!p) {
        p = (uintptr_t)gh_real_find("gpuHookSimulatedTsgControl");
        p = p ? p : 1;
        atomic_store_explicit(&found, p, memory_order_release);
    }
    return p == 1 ? NULL : (control_function)p;
}

static uint64_t slice_for(const struct gh_gate *g, bool frozen) {
    bool higher = false, lower = false, equal = false;
    if (!(g->tiers & GH_TIER_SLICE))
        return 0;
    for (uint64_t left = g->view.present & ~(1ull << g->me); left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        int above = (int)g->view.share[i].class_ - (int)g->view.share[g->me].class_;
        higher |= above > 0 && !g->view.slot[i].dead;
        lower |= above < 0;
        equal |= above == 0;
    }
    if (higher)
        return frozen || !equal ? SHORT_US : 0;
    return lower && !equal ? LONG_US : 0;
}

static struct group *group_of(struct gh_gate *g, CUcontext context, bool make) {
    struct group *bare = NULL;
    for (unsigned i = 0; i < GROUPS; i++) {
        if (g->group[i].context == context)
            return &g->group[i];
        if (!bare && !g->group[i].context)
            bare = &g->group[i];
    }
    if (make && bare)
        *bare = (struct group){.context = context, .slice = UNKNOWN};
    return make ? bare : NULL;
}

/* Whether there is a slice to set, which is then recorded as set. */
static bool to_set(struct gh_gate *g, struct group *p, bool frozen) {
    uint64_t want = slice_for(g, frozen);
    if (p->changing || p->slice == want || (p->slice == UNKNOWN && !(g->tiers & GH_TIER_SLICE)))
        return false;
    p->slice = want;
    return true;
}

uint64_t groups_enter(struct gh_gate *g, CUcontext context) {
    if ((!(g->tiers & (GH_TIER_SLICE | GH_TIER_STOP)) && !g->grouped) || !control())
        return GROUP_NOTHING;
    g->grouped = true;
    struct group *p = group_of(g, context, true);
    if (!p || !to_set(g, p, false))
        return GROUP_NOTHING;
    p->changing = true;
    return p->slice;
}

void groups_slice(struct gh_gate *g, CUcontext context, uint64_t slice) {
    control()(context, SLICE_US, slice);
    if (!gh_lock(&g->lock))
        return;
    struct group *p = group_of(g, context, false);
    if (p)
        p->changing = false;
    gh_unlock(&g->lock);
}

void groups_halt(struct gh_gate *g, uint64_t now, bool halted) {
    if (g->halted == halted)
        return;
    gate_look(g, now, true); /* until here, time was shared out in another way */
    if (halted)
        g->halt[++g->halts % HALTS] = (struct halt){now, UINT64_MAX};
    else
        g->halt[g->halts % HALTS].end = now;
    g->halted = halted;
}

void groups_pace(struct gh_gate *g, uint64_t now, bool frozen) {
    if (!g->grouped)
        return;
    uint64_t most = g->view.rules.drain_max;
    frozen &= g->launched - front_kept(g) != g->done;
    if (!frozen || !g->frozen_since)
        g->frozen_since = frozen ? now : 0;
    bool lasts = frozen && (g->stopped || gh_residue(&g->own, now) > most || now - g->frozen_since > most);
    g->stopped = lasts && g->tiers & GH_TIER_STOP;
    for (unsigned i = 0; i < GROUPS; i++) {
        struct group *p = &g->group[i];
        bool slice = p->context && to_set(g, p, lasts), off = g->stopped;
        if (!p->context || p->changing || (!slice && p->off == off))
            continue;
        CUcontext context = p->context;
        uint64_t us = p->slice;
        bool change = p->off != off, preempt = slice && lasts;
        p->off = off;
        p->changing = true;
        gh_unlock(&g->lock);
        if (slice)
            control()(context, SLICE_US, us);
        if (change)
            control()(context, OFF, off);
        if (preempt)
            control()(context, PREEMPT, 0);
        gh_lock(&g->lock);
        p->changing = false;
    }
}

void groups_leave(struct gh_gate *g, CUcontext context) {
    for (unsigned i = 0; i < GROUPS; i++) {
        struct group *p = &g->group[i];
        if (!p->context || (context && p->context != context))
            continue;
        for (int k = 0; k < 50 && p->changing; k++) { /* a thread of ours is in the driver with it */
            gh_unlock(&g->lock);
            slot_sleep(NULL, 0, GH_MS);
            gh_lock(&g->lock);
        }
        struct group was = *p;
        *p = (struct group){0};
        if (!was.off)
            continue;
        gh_unlock(&g->lock);
        control()(was.context, OFF, 0);
        gh_lock(&g->lock);
    }
}

uint64_t groups_stopped(const struct gh_gate *g, uint64_t since, uint64_t now) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < HALTS; i++) {
        uint64_t from = max64(g->halt[i].begin, since), to = min64(g->halt[i].end, now);
        if (g->halt[i].begin && to > from)
            sum += to - from;
    }
    return sum;
}

uint64_t groups_bound(const struct gh_gate *g, uint64_t bound) {
    const struct gh_rules *r = &g->view.rules; /* what is short ends of itself; for the rest, a look and a step */
    return g->tiers & GH_TIER_STOP && control() ? min64(bound, r->drain_max + LOOK_EVERY + r->pacer_max) : bound;
}
