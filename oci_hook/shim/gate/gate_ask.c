/* One decision: what gh_decide is told, and what becomes of its answer. */
#define _GNU_SOURCE
#include "gate/gate_state.h"

#define KAPPA 4u
#define RESUME_LOSS (GH_MS / 2 + 60 * GH_US)

/* Our cost of a return of lower classes to the GPU: their window, and the rest of a command longer than that, with
 * which the GPU divides its time while we have work. */
static uint64_t loss(struct gh_gate *g) {
    struct gate_memory *m = &g->memory;
    uint64_t burst = usage_burst(&g->usage);
    uint64_t met = peers_lower_residue(&g->peers);
    m->met = max64(met, m->met - m->met / 8);
    return peers_rules(&g->peers)->window_guarded + RESUME_LOSS + min64(m->met, burst);
}

void gate_woken(struct gh_gate *g, uint64_t now) {
    const struct gh_slot *mine = peers_mine(&g->peers);
    gate_look(g, now, true);
    if (mine->active_at)
        gh_gap_seen(&g->memory.gaps, now - mine->idle_since);
    uint64_t most = loss(g);
    if (!peers_share(&g->peers)->linger)
        slot_linger(&g->own_slot, gh_linger(&g->memory.gaps, most, KAPPA));
    slot_awake(&g->own_slot, now);
    usage_wake(&g->usage, peers_view(&g->peers), peers_me(&g->peers));
    gate_refresh(g, now);
}

/* Input of gh_decide about this process, but for its siblings. */
static struct gh_own told(const struct gh_gate *g, uint64_t now, uint64_t came, bool behind) {
    struct gh_own own = g->memory.own, work = inflight_own(&g->inflight);
    const struct gh_share *share = peers_share(&g->peers);
    /* The window is for the whole container: the other processes with work are taken to use as much of it. */
    own.inflight = gh_residue(&work, now) * (usage_siblings(&g->usage) + 1);
    own.running_cost = 0;
    own.waited = age64(now, came);
    own.siblings = 0;
    own.peers = peers_costs(&g->peers);
    own.idle = inflight_idle(&g->inflight) && !behind;
    if (behind) /* what waits for something does not count otherwise */
        own.inflight = add64(own.inflight, 2 * GH_UNKNOWN_MOST * GH_COST_UNKNOWN);
    if (share->cap)
        own.bucket = usage_bucket(&g->usage, share->cap, peers_savings(&g->peers, now), now);
    return own;
}

static void remember(struct gh_gate *g, const struct gh_decision *d, uint64_t now) {
    struct gh_own *own = &g->memory.own;
    own->ahead = d->ahead;
    if (d->mode == GH_DRAIN)
        peers_drain(&g->peers, now);
    g->memory.last = *d;
    g->memory.decided = true;
    g->memory.spare = d->go ? d->spare / (usage_siblings(&g->usage) + 1) : 0;
    g->memory.spare_seen = peers_view(&g->peers)->seen;
    if (d->takes && d->probe_until)
        own->probed_at = now;
    usage_set_turns(&g->usage, d->mode == GH_ROTATE);
}

struct gh_decision gate_ask(struct gh_gate *g, uint64_t now, uint64_t came, uint64_t cost, bool behind) {
    if (peers_count(&g->peers, g->memory.decided ? &g->memory.last : NULL, now, usage_charged(&g->usage)))
        slot_ignores(&g->own_slot);
    const struct gh_rules *r = peers_rules(&g->peers);
    struct gh_own own = told(g, now, came, behind);
    uint64_t seen = 0;
    if (cost > r->window_guarded) /* no window is smaller */
        own.siblings = slot_siblings(&g->own_slot, now, r->heartbeat_stale, &seen);
    struct gh_decision d = gh_decide(peers_view(&g->peers), peers_me(&g->peers), &own, now, cost);
    bool unknown = cost >= GH_COST_UNKNOWN;
    if (d.go && d.lone && !slot_launches_long(&g->own_slot, seen, came, now, unknown)) {
        own.siblings = GH_S, own.waited = 0;
        d = gh_decide(peers_view(&g->peers), peers_me(&g->peers), &own, now, cost);
    }
    if (d.go && !d.lone && unknown)
        slot_launches_unknown(&g->own_slot, now);
    else if (!d.go && d.lone && own.idle)
        slot_waits_long(&g->own_slot, came, now);
    if (d.go && (d.lone || unknown))
        slot_had_unknown(&g->own_slot, inflight_unknown(&g->inflight));
    remember(g, &d, now);
    slot_mode(&g->own_slot, d.mode, d.go || d.on != GH_ON_SLOT ? 0 : (uint8_t)(d.slot + 1), now);
    if (d.go || d.held)
        slot_active(&g->own_slot, now);
    if (d.takes) {
        slot_claim(&g->own_slot, d.epoch, d.start, d.end, d.probe_until);
        gate_tenure_begin(g, now);
        slot_wake(&g->own_slot);
    } else if (!d.go && usage_in_tenure(&g->usage) && (d.on == GH_ON_SLOT || d.mode == GH_CAPPED)) {
        gate_tenure_end(g, now, inflight_empty(&g->inflight));
        gate_yield(g, now);
    }
    return d;
}

bool gate_spare(struct gh_gate *g, uint64_t now, uint64_t estimate) {
    struct gate_memory *m = &g->memory;
    if (!m->spare || m->spare_seen != peers_view(&g->peers)->seen || peers_old(&g->peers, now) ||
        estimate > min64(m->spare, peers_rules(&g->peers)->window))
        return false;
    m->spare -= estimate;
    return true;
}

bool gate_is_frozen(const struct gh_gate *g, uint64_t now, struct gh_decision *d) {
    struct gh_own own = g->memory.own, work = inflight_own(&g->inflight);
    own.inflight = work.inflight;
    own.running_since = work.running_since;
    own.running_cost = work.running_cost;
    *d = gh_decide(peers_view(&g->peers), peers_me(&g->peers), &own, now, 0);
    return !d->go && d->mode == GH_FROZEN && d->on == GH_ON_SLOT;
}
