/* The gate before every launch: it waits until gh_decide admits the launch, and counts it as in flight. */
#define _GNU_SOURCE
#include "gate/gate_state.h"

#define STEP_MAX (2500 * GH_US) /* no sleep at the gate is longer, whatever the slots announce */
#define STEP_BLIND (50 * GH_US) /* a sleep on no word */
#define UNMARKED (100 * GH_US)  /* cost of an unknown command that cannot be measured */
#define BATCH_TIME (200 * GH_US)
#define SHORT_BLOCKS 1024u      /* KiB of a copy */
#define SHORT_TIME (20 * GH_US) /* that it takes */
#define SHORT_WAITS (5 * GH_MS)
#define PREQUEUE_LONGEST (700 * GH_US) /* of commands behind a word; before a longer one, the pause costs little */

/* ---- waiting ---- */

/* The word on which that decision lets us wait. NULL: none. */
static const uint32_t *word_of(const struct gh_gate *g, const struct gh_decision *d, uint32_t *seen) {
    *seen = 0;
    if (d->on == GH_ON_SLOT)
        return peers_slot_word(&g->peers, d->slot, seen);
    if (d->on == GH_ON_POLICY)
        return peers_page_word(&g->peers, seen);
    if (d->on != GH_ON_OWN_DONE)
        return NULL;
    *seen = WORD_LOAD_RELAXED(inflight_word(&g->inflight));
    return inflight_word(&g->inflight);
}

/* Sleeps as the decision says. blind: not on its word. Returns false if it was woken at once. */
static bool rest(struct gh_gate *g, const struct gh_decision *d, uint64_t now, bool blind) {
    const struct gh_slot *mine = peers_mine(&g->peers);
    bool held = d->blame < GH_SLOTS && mine->launched == mine->done,
         full = d->on == GH_ON_OWN_DONE && (d->held || d->mode == GH_OPEN);
    uint64_t step = min64(age64(d->until, now), STEP_MAX);
    uint32_t seen;
    const uint32_t *word = word_of(g, d, &seen);
    if (d->mode == GH_DRAIN)
        step = min64(step, peers_rules(&g->peers)->pacer_min);
    if (peers_to_ask(&g->peers)) { /* the pacer asks, since that may take long */
        pacer_used(g, now);
        pacer_need(g);
    }
    if (!g->wanting)
        g->wanting = now;
    slot_show_waiting(&g->own_slot, g->threads.entering);
    gate_count(g, now);
    g->threads.asleep++;
    g->threads.full += full;
    gh_unlock(&g->lock);
    slot_sleep(blind ? NULL : word, seen, max64(blind ? STEP_BLIND : step, GH_US) * peers_scale(&g->peers));
    bool locked = gh_lock(&g->lock);
    (void)locked;
    uint64_t then = gate_now(g);
    gate_count(g, then);
    g->threads.asleep--;
    g->threads.full -= full;
    if (held)
        slot_held_for(&g->own_slot, d->blame, now, then);
    return !gate_is_early(then - now, step);
}

/* ---- admission ---- */

/* We have work after an idle time: wakes lower classes, which must close the word before a prequeued command. */
static void tell_lower(struct gh_gate *g) {
    if (g->tell)
        slot_wake(&g->own_slot);
    g->tell = false;
}

static void wake_up(struct gh_gate *g, uint64_t now) {
    const struct gh_slot *mine = peers_mine(&g->peers);
    if (mine->launched != mine->done || age64(now, mine->idle_since) <= peers_rules(&g->peers)->wake_idle)
        return;
    gate_woken(g, now);
    g->tell = peers_any_lower(&g->peers);
}

/* True if a command that waits only for the window may be launched now, behind a word. */
static bool may_prequeue(struct gh_gate *g, const struct gh_decision *d, CUcontext context, CUstream stream,
                         const struct cost *cost) {
    const struct gh_rules *r = peers_rules(&g->peers);
    struct inflight *f = &g->inflight;
    uint64_t window = peers_window(&g->peers), estimate = gh_cost_of(&cost->cost);
    if (!(peers_tiers(&g->peers) & GH_TIER_MEMOPS) || d->go || d->on != GH_ON_OWN_DONE || d->mode != GH_GUARDED ||
        !pacer_runs(g) || window >= r->window || inflight_launched(f) - inflight_done(f) != 1 || cost->collective)
        return false;
    /* A shorter command fits into the window; for a longer one, the pause before it costs little. */
    if (estimate <= window || estimate > PREQUEUE_LONGEST || !prequeue_free(&g->prequeue, context))
        return false;
    struct opening to = inflight_opening(f, context, stream, 0, UINT64_MAX);
    return to.track && !to.unmarked; /* markers tell when the command before it is done */
}

/* Number of threads held for the tenant's turn. */
static void set_held(struct gh_gate *g, bool *held, bool now_held, uint64_t now) {
    if (*held == now_held)
        return;
    *held = now_held;
    g->threads.holding += now_held ? 1 : -1u;
    gate_publish(g, now);
    tell_lower(g);
}

/* The last step of admit. False: nobody wants the GPU, so the launch is not counted. While others may come, only brief
 * commands are not counted, so that a driver's queue full of them soon runs empty. */
static bool admitted(struct gh_gate *g, const struct gh_decision *d, uint64_t key, uint64_t now) {
    if (d->mode == GH_OPEN && !peers_share(&g->peers)->cap && inflight_empty(&g->inflight) && !peers_awake(&g->peers) &&
        (!peers_others(&g->peers) || gate_brief(g->brief, key))) {
        gate_set_open(g, now);
        return false;
    }
    gate_set_closed(g, now);
    pacer_used(g, now);
    return true;
}

/* True if a short copy or fill has waited so long that a kernel of ours may be waiting for it, which would take the longer
 * the longer it waits. The container may have one each 5 ms. */
static bool may_overtake(struct gh_gate *g, const struct cost *cost, uint64_t came, uint64_t now) {
    uint64_t pause = SHORT_WAITS * (usage_siblings(&g->usage) + 1);
    if (cost->what.kind != COST_COPY || cost->what.blocks > SHORT_BLOCKS || inflight_empty(&g->inflight) ||
        cost->low > SHORT_TIME || age64(now, came) < SHORT_WAITS || age64(now, g->overtook) < pause)
        return false;
    g->overtook = now;
    return true;
}

/* Waits until the launch is admitted. False: the gate is open, and the launch is not counted. *prequeued: it may be
 * launched behind a word only. */
static bool admit(struct gh_gate *g, struct gate_pass *pass, CUcontext context, bool *prequeued) {
    bool held = false;
    unsigned early = 0;
    uint64_t came = 0;
    g->tell = false;
    g->threads.entering++;
    for (bool first = true;; first = false) {
        gate_poll(g);
        uint64_t now = gate_now(g);
        if (g->changed || !first)
            gate_publish(g, now);
        else
            gate_refresh(g, now);
        gate_look(g, now, !first);
        if (first) {
            came = now;
            wake_up(g, now);
        }
        const struct cost *cost = cost_again(&g->costs, pass->key, &pass->cost);
        bool behind = inflight_behind_stuck(&g->inflight, context, pass->stream, now);
        struct gh_decision d = gate_ask(g, now, came, cost_guess(&g->costs, cost), behind);
        *prequeued = may_prequeue(g, &d, context, pass->stream, cost);
        set_held(g, &held, !*prequeued && d.held, now);
        if (d.go || *prequeued || may_overtake(g, cost, came, now)) {
            g->threads.entering--;
            slot_goes(&g->own_slot, came);
            if (!first) {
                slot_waited(&g->own_slot, (now - came) * peers_scale(&g->peers));
                slot_show_waiting(&g->own_slot, g->threads.entering);
            }
            return admitted(g, &d, pass->key, now);
        }
        gate_set_closed(g, now);
        early = rest(g, &d, now, early > GATE_EARLY_MOST) ? 0 : early + 1;
    }
}

/* ---- a launch ---- */

/* True if the last decision lets this launch pass, too. A program whose own processor is the limit would else lose a tenth to
 * the gate: it does there what takes 7 us (H200) for each kernel of 40 us. */
static bool spared(struct gh_gate *g, struct gate_pass *pass, struct cost *cost, uint64_t now) {
    struct inflight *f = &g->inflight;
    if (cost->collective || g->threads.entering || inflight_empty(f) ||
        inflight_behind_stuck(f, pass->context, pass->stream, now) || !gate_spare(g, now, cost_guess(&g->costs, cost)))
        return false;
    g->changed = true;
    pacer_used(g, now);
    return true;
}

/* Counts the launch as in flight. */
static void count_in(struct gh_gate *g, struct gate_pass *pass, CUcontext context, bool prequeued, uint64_t now) {
    struct inflight *f = &g->inflight;
    struct cost *cost = cost_again(&g->costs, pass->key, &pass->cost);
    /* The window is refilled when work is seen to be done, so a small window needs more markers. */
    uint64_t batch_time = min64(BATCH_TIME, peers_window(&g->peers) / 2);
    pass->estimate = cost_guess(&g->costs, cost);
    cost_launched(&g->costs, cost);
    struct opening to = inflight_opening(f, context, pass->stream, pass->estimate, batch_time);
    pass->track = to.track;
    pass->queued = to.queued;
    pass->timed = to.track && cost_due(cost, prequeued || to.full);
    if (pass->timed || to.of_thread)
        pass->marker = inflight_take_marker(f, context);
    if (!pass->marker && pass->estimate >= GH_COST_UNKNOWN)
        pass->estimate = UNMARKED;
    struct work one = work_one(pass->estimate);
    usage_launched(&g->usage, to.track, inflight_empty(f), now);
    inflight_launch(f, to.track, pass->estimate, now);
    gate_take_credit(g, now, (int64_t)one.known);
    if (to.track)
        pass->gate = g;
    else /* too many streams to track: charge the command, as if it were done */
        gate_retire(g, now + pass->estimate, &one, pass->estimate, 0);
}

/* Without the lock: what the driver must do before the launch. */
static void mark(struct gh_gate *g, struct gate_pass *pass, CUcontext context) {
    if (pass->timed && pass->queued) /* earlier commands may be done without our knowledge */
        pass->queued = !stream_idle(pass->stream);
    if (!pass->marker)
        return;
    pass->timed = inflight_mark_begin(&g->inflight, pass->marker, context, pass->stream, pass->timed);
    pass->began = gate_now(g);
}

static struct cost_what what_of(uint64_t key, CUfunction f, uint64_t name, uint64_t blocks) {
    if (f)
        return (struct cost_what){COST_KERNEL, cost_key(f, 0, 0, 0), name, max64(blocks, 1)};
    return blocks ? (struct cost_what){COST_COPY, COST_COPIES, 0, blocks} : (struct cost_what){COST_GRAPH, key, 0, 1};
}

static void enter(struct gh_gate *g, struct gate_pass *pass, CUfunction f, uint64_t blocks) {
    CUcontext context = pass->context;
    struct name name = name_of(&g->names, f);
    bool prequeued = false;
    if (!gh_lock(&g->lock))
        return;
    struct cost *cost = cost_again(&g->costs, pass->key, &pass->cost);
    cost->collective = name.collective;
    cost->what = what_of(pass->key, f, name.hash, blocks);
    uint64_t now = gate_now(g);
    bool spare = spared(g, pass, cost, now), counted = spare || admit(g, pass, context, &prequeued);
    now = spare ? now : gate_now(g);
    if (counted)
        count_in(g, pass, context, prequeued, now);
    if (counted && !spare) { /* else others know already that there is work */
        gate_publish(g, now);
        tell_lower(g);
    }
    slot_shows_long(&g->own_slot, inflight_unknown(&g->inflight));
    gh_unlock(&g->lock);
    if (counted && prequeued)
        prequeue_put(&g->prequeue, &g->lock, context, pass->stream, pass->estimate);
    if (pass->gate)
        mark(g, pass, context);
}

void gate_enter(struct gate_pass *pass, CUstream stream, uint64_t key, CUfunction f, uint64_t blocks) {
    struct gone_to to;
    *pass = (struct gate_pass){.key = key, .kernel = f, .stream = stream ? stream : (CUstream)CU_STREAM_LEGACY};
    struct gh_gate *g = gate_of(pass->stream, &pass->context, &to);
    if (g && !stream_capturing(pass->stream))
        enter(g, pass, f, blocks);
    stream_context_left(&to);
}

CUresult gate_leave(struct gate_pass *pass, CUresult result) {
    struct gh_gate *g = pass->gate;
    struct closing c = {.context = pass->context,
                        .track = pass->track,
                        .marker = pass->marker,
                        .failed = result != CUDA_SUCCESS,
                        .timed = pass->timed,
                        .queued = pass->queued,
                        .kernel = pass->kernel,
                        .key = pass->key,
                        .estimate = pass->estimate,
                        .began = pass->began,
                        .ended = pass->marker ? gate_now(g) : 0,
                        .assumed = UNMARKED};
    c.marked = c.marker && !c.failed && inflight_mark_end(&g->inflight, c.marker, pass->stream);
    if (!gh_lock(&g->lock))
        return result;
    enum closed closed = inflight_close(&g->inflight, &c);
    if (closed == CLOSED_REFUSED) {
        struct work one = work_one(c.estimate);
        gate_retire(g, gate_now(g), &one, 0, 0);
    } else if (closed == CLOSED_ASSUMED) {
        gate_take_credit(g, gate_now(g), UNMARKED);
    }
    pacer_need(g);
    gh_unlock(&g->lock);
    return result;
}
