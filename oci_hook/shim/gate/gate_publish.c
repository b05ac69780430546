/* Exchange with other gates: looks at others, values that we publish, finished work. */
#define _GNU_SOURCE
#include "gate/gate_state.h"

/* ---- looks ---- */

void gate_look(struct gh_gate *g, uint64_t now, bool must) {
    if (!must && !peers_old(&g->peers, now))
        return;
    uint32_t cap = peers_share(&g->peers)->cap;
    struct peers_said others = peers_look(&g->peers, now, usage_siblings(&g->usage) + 1);
    if (!cap && peers_share(&g->peers)->cap)
        usage_cap_begins(&g->usage, now);
    usage_looked(&g->usage, now, others.contexts, others.believed, inflight_halted(&g->inflight));
}

/* ---- our own slot ---- */

void gate_count(struct gh_gate *g, uint64_t now) {
    usage_count(&g->usage, now, inflight_running(&g->inflight, now), g->threads.full);
}

/* Commands that other containers may take as being on the GPU. */
static uint64_t shown(const struct gh_gate *g) {
    return inflight_launched(&g->inflight) - prequeue_blocked(&g->prequeue);
}

/* The container has nothing in flight any more. */
static void went_idle(struct gh_gate *g, uint64_t now, struct gh_slot *mine) {
    usage_idle(&g->usage);
    slot_idle(&g->own_slot, now);
    mine->idle_since = now;
    if (peers_others(&g->peers))
        slot_wake(&g->own_slot); /* lower classes count the linger from now */
}

/* Takes our slot, which other processes of the container write, too, into the view. */
static void read_own(struct gh_gate *g, uint64_t now) {
    const struct gh_slot *before = peers_mine(&g->peers);
    bool was_busy = before->launched != before->done, busy = shown(g) != inflight_done(&g->inflight);
    unsigned contexts;
    struct gh_slot mine = slot_own_view(&g->own_slot, now, peers_rules(&g->peers)->heartbeat_stale, &contexts);
    usage_set_siblings(&g->usage, contexts - (busy && contexts));
    if (was_busy && mine.launched == mine.done)
        went_idle(g, now, &mine);
    peers_own(&g->peers, &mine);
    if (busy)
        usage_tenure_goes_on(&g->usage);
}

static void check_inflight(struct gh_gate *g, uint64_t now) {
    if (!inflight_check(&g->inflight, now, usage_pace(&g->usage)))
        usage_unsure(&g->usage);
}

void gate_refresh(struct gh_gate *g, uint64_t now) {
    check_inflight(g, now);
    gate_count(g, now);
    read_own(g, now);
}

static struct slot_record record_of(const struct gh_gate *g, uint64_t now) {
    const struct inflight *f = &g->inflight;
    const struct gh_own own = inflight_own(f);
    struct work work = inflight_work(f);
    uint64_t residue = gh_residue(&own, now), behind = prequeue_pending(&g->prequeue);
    unsigned blocked = prequeue_blocked(&g->prequeue);
    return (struct slot_record){.launched = shown(g),
                                .done = inflight_done(f),
                                .done_at = inflight_done_at(f),
                                .residue = residue - min64(residue, behind),
                                .uncharged = work.known - (blocked ? min64(work.known, behind) : 0),
                                .held = g->threads.holding + blocked,
                                .waiting = g->threads.entering};
}

void gate_publish(struct gh_gate *g, uint64_t now) {
    const struct gh_slot *before = peers_mine(&g->peers);
    bool was_busy = before->launched != before->done;
    slot_keep(&g->own_slot);
    check_inflight(g, now);
    struct slot_record record = record_of(g, now);
    slot_publish(&g->own_slot, &record, now);
    bool busy = record.launched != record.done;
    if (busy || was_busy || g->threads.holding)
        slot_active(&g->own_slot, now);
    if (g->wanting)
        slot_wanted(&g->own_slot, g->wanting, now), usage_asked(&g->usage, now);
    g->wanting = busy || record.held || g->threads.entering ? now : 0;
    g->changed = false;
    gate_count(g, now);
    read_own(g, now);
}

/* ---- tenures ---- */

void gate_tenure_begin(struct gh_gate *g, uint64_t now) {
    gate_count(g, now);
    usage_tenure_begin(&g->usage);
}

void gate_tenure_end(struct gh_gate *g, uint64_t now, bool idle) {
    gate_count(g, now);
    usage_tenure_end(&g->usage, idle);
}

void gate_yield(struct gh_gate *g, uint64_t now) {
    slot_yield(&g->own_slot, now);
    if (peers_others(&g->peers))
        slot_wake(&g->own_slot);
}

/* ---- what is done ---- */

void gate_take_credit(struct gh_gate *g, uint64_t now, int64_t charge) {
    uint32_t cap = peers_share(&g->peers)->cap;
    if (cap)
        usage_take_credit(&g->usage, cap, peers_savings(&g->peers, now), now, charge);
}

void gate_retire(struct gh_gate *g, uint64_t now, const struct work *work, uint64_t charge, uint64_t waited) {
    charge = usage_charge(&g->usage, peers_view(&g->peers), peers_me(&g->peers), now, charge);
    waited = min64(waited, charge);
    if (peers_share(&g->peers)->cap)
        usage_wait_credit(&g->usage, now, waited);
    gate_take_credit(g, now, (int64_t)(charge - waited) - (int64_t)work->known);
    inflight_retire(&g->inflight, work, now, g->threads.asleep);
    slot_shows_long(&g->own_slot, inflight_unknown(&g->inflight));
    g->changed = true;
}

/* Charge for a batch whose last command was measured. */
static uint64_t learn(struct gh_gate *g, const struct finished *done, uint64_t *waited) {
    struct usage_part part = usage_own_part(&g->usage, done->at, done->elapsed, inflight_halted(&g->inflight));
    uint64_t estimate = work_estimate(&done->work);
    struct cost *cost = cost_of(&g->costs, done->key);
    bool capped = peers_share(&g->peers)->cap;
    uint64_t own = part.clean ? part.own : cost_own(cost, part.own, part.most, capped);
    uint64_t charge =
        cost_seen(cost, done->sampled, done->elapsed, own, done->queued, done->prompt, part.clean, waited);
    gate_note_brief(g, done->key, cost);
    cost_kin_seen(&g->costs, cost, own, part.clean || done->queued);
    if (!cost_sure(cost))
        usage_unsure(&g->usage);
    usage_measured(&g->usage, done->elapsed);
    return estimate - min64(done->sampled, estimate) + charge;
}

void gate_finished(struct gh_gate *g, const struct finished *done) {
    uint64_t waited = 0, charge = work_estimate(&done->work);
    if (done->measured)
        charge = learn(g, done, &waited);
    else if (done->work.unknown) /* of unknown cost and not measured: the upper bound */
        charge = age64(done->at, done->submitted);
    gate_retire(g, done->at, &done->work, charge, waited);
}

void gate_poll(struct gh_gate *g) {
    struct finished done;
    unsigned track = 0;
    if (!inflight_poll_begin(&g->inflight))
        return;
    while (inflight_poll_next(&g->inflight, &g->lock, &track, &done))
        gate_finished(g, &done);
    inflight_poll_end(&g->inflight);
}
