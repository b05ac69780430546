#include "shim.h"

static uint64_t sure(uint64_t estimate) { return estimate >= GH_COST_UNKNOWN ? estimate - GH_COST_UNKNOWN : estimate; }

/* Wakes those who wait for slot i, as FUTEX_WAKE on its word does. */
static void wake_waiters(struct sim *sim, unsigned i) {
    for (unsigned k = 0; k < sim->config.count; k++)
        if (k != i && sim->tenant[k].state == GATE && sim->tenant[k].waits_on == i)
            sim->tenant[k].at = min64(sim->tenant[k].at, sim->now + sim->config.wake);
}

/* Ends slot i's tenure now, possibly early, and wakes those who wait for it. */
static void yield(struct sim *sim, unsigned i) {
    struct gh_slot *s = &sim->published.slot[i];
    s->end = min64(s->end, sim->now);
    wake_waiters(sim, i);
}

/* A tenant's saturation is learned in its own tenures, from times in which no other tenant had work for a while: only
 * then its pending time depends on itself alone. It does not include the idle time that ends a tenure. Moments in which
 * the GPU is idle while the next launch waits for the tenant's own window count as pending. */
static void tenure_begin(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    if (t->tenure)
        return;
    gpu_count(&sim->gpu, sim->now);
    t->tenure = 1;
    t->tenure_clear = sim->gpu.context[i].clear;
    t->tenure_pending = sim->gpu.context[i].clear_pending;
}

static void tenure_observe(struct sim *sim, unsigned i, int idle) {
    struct tenant *t = &sim->tenant[i];
    const struct context *c = &sim->gpu.context[i];
    gpu_count(&sim->gpu, sim->now);
    uint64_t until = idle ? c->clear_at_idle : c->clear;
    if (until > t->tenure_clear) {
        struct gh_slot *s = &sim->published.slot[i];
        s->duty = gh_saturation(s->duty, c->clear_pending - t->tenure_pending, until - t->tenure_clear);
        s->saturated = gh_saturated(s->saturated, s->duty);
    }
    t->tenure_clear = c->clear;
    t->tenure_pending = c->clear_pending;
}

static void tenure_end(struct sim *sim, unsigned i, int idle) {
    tenure_observe(sim, i, idle);
    sim->tenant[i].tenure = 0;
}

void shim_poll(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    struct gh_slot *s = &sim->published.slot[i];
    const struct context *c = &sim->gpu.context[i];
    uint64_t now = sim->now;
    int was_busy = s->launched != s->done;
    s->heartbeat = now;
    if (s->done != c->head) {
        uint64_t charge = 0, reserved = 0;
        for (uint64_t k = s->done; k != c->head; k++) {
            reserved += t->estimate[k % QUEUE_SIZE];
            charge += gh_cost_charge(&t->cost[c->queue[k % QUEUE_SIZE].key], c->queue[k % QUEUE_SIZE].shared,
                                     c->queue[k % QUEUE_SIZE].clean);
        }
        if (sim->config.charge == EXACT)
            charge = c->completed - t->charged_completed;
        if (sim->config.charge == SPLIT)
            charge = gpu_shared(&sim->gpu, i, now) - t->charged_shared;
        t->charged_completed = c->completed;
        t->charged_shared = gpu_shared(&sim->gpu, i, now);
        s->done = c->head;
        s->done_at = now;
        struct gh_rise rise = gh_charge(&t->view, i, charge);
        uint64_t v = gh_risen(&rise, s->v);
        sim->violations.v_went_back += v < s->v;
        s->v = v;
        t->charged += charge;
        t->own.bucket = gh_bucket_at(t->own.bucket, t->view.share[i].cap, gh_savings(&t->view, i, now), now);
        t->own.bucket = gh_bucket_take(t->own.bucket, (int64_t)(charge - reserved));
        t->own.inflight -= min64(t->own.inflight, reserved);
    }
    if (was_busy || s->held)
        s->active_at = now;
    t->own.running_since = max64(s->done_at, c->queue[s->done % QUEUE_SIZE].submitted);
    t->own.running_cost = t->estimate[s->done % QUEUE_SIZE];
    s->residue = gh_residue(&t->own, now);
    s->uncharged = sure(t->own.inflight);
    if (s->launched == s->done) {
        t->own.inflight = s->residue = s->uncharged = 0;
        if (was_busy) {
            s->idle_since = now;
            wake_waiters(sim, i); /* the linger time of lower classes begins here */
        }
    }
    if (t->tenure && s->launched != s->done) {
        gpu_count(&sim->gpu, now);
        if (c->clear > t->tenure_clear + 2 * GH_MS)
            tenure_observe(sim, i, 0);
    }
}

/* The slot of a tenant that lies: busy, with the lowest virtual time, and in tenure for as long as a tenure may be. It is
 * renewed before that ends. */
static void forge(struct sim *sim, unsigned i) {
    uint64_t now = sim->now;
    struct gh_slot *s = &sim->published.slot[i];
    *s = (struct gh_slot){.launched = s->done + 2,
                          .done = s->done + 1,
                          .done_at = now,
                          .heartbeat = now,
                          .active_at = now,
                          .residue = NEVER,
                          .duty = GH_PPM,
                          .epoch = s->epoch + 1000,
                          .start = now,
                          .end = now + sim->config.rules.tenure_sum,
                          .probe_until = NEVER,
                          .held = 1,
                          .saturated = 1};
    sim->tenant[i].pacer = now + GH_MS / 2;
}

void shim_pacer(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    if (t->program.lie) {
        forge(sim, i);
        return;
    }
    struct gh_slot *s = &sim->published.slot[i];
    const struct gh_rules *r = &sim->config.rules;
    shim_poll(sim, i);
    t->pacer = NEVER;
    if (s->launched != s->done) {
        t->pacer = sim->now + gh_pacer_step(r, gh_window(&sim->published, i));
    } else if (!s->held) {
        if (sim->now <= s->idle_since + r->idle_release) {
            t->pacer = s->idle_since + r->idle_release + 1;
        } else {
            if (t->tenure)
                tenure_end(sim, i, 1);
            yield(sim, i);
        }
    }
}

static void look(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    for (unsigned k = 0; k < sim->config.count; k++) {
        uint64_t before = t->view.slot[k].v;
        t->view.slot[k] = sim->published.slot[k];
        t->view.slot[k].v = max64(before, t->view.slot[k].v); /* a virtual time that goes back is not believed */
    }
    t->viewed = t->view.seen = sim->now;
}

int shim_gate(struct sim *sim, unsigned i, int first) {
    struct tenant *t = &sim->tenant[i];
    struct gh_slot *s = &sim->published.slot[i];
    uint64_t now = sim->now;
    shim_poll(sim, i);
    if (!first || now - t->viewed >= sim->config.snapshot)
        look(sim, i);
    if (first && s->launched == s->done && now - s->idle_since > sim->config.rules.wake_idle) {
        look(sim, i);
        if (s->active_at)
            gh_gap_seen(&t->gaps, now - s->idle_since);
        if (!sim->published.share[i].linger)
            s->linger = gh_linger(&t->gaps, sim->config.rules.window_guarded + 2 * sim->config.wake + GH_MS / 2,
                                  sim->config.kappa);
        s->woke_at = now;
        uint64_t v = gh_wake_v(&t->view, i);
        sim->violations.v_went_back += v < s->v;
        s->v = v;
    }
    t->view.slot[i] = *s;
    uint64_t estimate = sim->config.charge == LEARNED ? gh_cost_of(&t->cost[t->key]) : t->duration;
    uint64_t ignorings = t->peers.ignorings;
    gh_peers_count(&t->peers, &t->view, i, t->asked_once ? &t->decision : NULL, now, t->charged);
    t->own.peers = &t->peers;
    struct gh_decision d = gh_decide(&t->view, i, &t->own, now, estimate);
    sim->ignored += t->peers.ignorings - ignorings;
    if (d.mode == GH_DRAIN)
        gh_peers_drain(&t->peers, &t->view, i, now);
    t->decision = d;
    t->asked_once = 1;
    t->own.ahead = d.ahead;
    t->mode = d.mode;
    s->held = d.held;
    gpu_full(&sim->gpu, i, d.held && d.on == GH_ON_OWN_DONE, now);
    if (d.go || d.held)
        s->active_at = now;
    if (d.takes) {
        s->epoch = d.epoch;
        s->start = d.start;
        s->end = d.end;
        s->probe_until = d.probe_until;
        if (d.probe_until)
            t->own.probed_at = now;
        tenure_begin(sim, i);
    } else if (!d.go && t->tenure && (d.on == GH_ON_SLOT || d.mode == GH_CAPPED)) {
        tenure_end(sim, i, s->launched == s->done); /* idle time that its cap causes is not observed */
        yield(sim, i);
    }
    if (d.go)
        return 1;
    t->waited = d.mode;
    t->waits_on = d.on == GH_ON_SLOT ? d.slot : GH_SLOTS;
    if (d.mode == GH_DRAIN)
        t->at = min64(d.until, now + sim->config.spin);
    else
        t->at = d.until + (d.on == GH_ON_OWN_DONE ? 0 : sim->config.wake);
    return 0;
}

void shim_submitted(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    struct gh_slot *s = &sim->published.slot[i];
    uint64_t estimate = sim->config.charge == LEARNED ? gh_cost_of(&t->cost[t->key]) : t->duration;
    t->estimate[s->launched % QUEUE_SIZE] = estimate;
    if (s->launched == s->done) {
        s->done_at = sim->now; /* its progress is measured from here */
        t->charged_shared = gpu_shared(&sim->gpu, i, sim->now);
    }
    s->launched++;
    if (s->launched == s->done + 1) {
        t->own.running_since = sim->now;
        t->own.running_cost = estimate;
    }
    t->own.inflight += estimate;
    t->own.bucket = gh_bucket_take(t->own.bucket, (int64_t)estimate);
    s->residue = gh_residue(&t->own, sim->now);
    s->uncharged = sure(t->own.inflight);
    s->active_at = sim->now;
    if (t->pacer == NEVER)
        t->pacer = sim->now + gh_pacer_step(&sim->config.rules, gh_window(&sim->published, i));
}

/* The strict lease: only the owner submits. It ends its lease at the end of its quantum or when it synchronises. The
 * next owner begins when the last kernel has finished. */
static void lease_pass(struct sim *sim) {
    sim->lease.owner = GH_SLOTS;
    sim->lease.draining = 0;
    if (!sim->lease.waiting)
        return;
    unsigned next = sim->lease.queue[0];
    sim->lease.waiting--;
    for (unsigned k = 0; k < sim->lease.waiting; k++)
        sim->lease.queue[k] = sim->lease.queue[k + 1];
    uint64_t weights = 0;
    for (unsigned k = 0; k < sim->config.count; k++)
        weights += sim->published.share[k].weight;
    sim->lease.owner = next;
    sim->tenant[next].at =
        sim->now + 2 * sim->config.wake; /* the owner's synchronise returns, then the next tenant wakes */
    sim->lease.end = sim->tenant[next].at +
                     sim->config.strict_quantum * sim->published.share[next].weight * sim->config.count / weights;
}

int strict_gate(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    if (sim->lease.owner == GH_SLOTS) {
        sim->lease.queue[sim->lease.waiting++] = i;
        lease_pass(sim);
        t->at = NEVER;
        if (sim->lease.owner == i)
            t->at = sim->now + sim->config.wake;
        return 0;
    }
    if (sim->lease.owner == i && !sim->lease.draining) {
        if (sim->now < sim->lease.end || !sim->lease.waiting) {
            shim_poll(sim, i);
            const struct gh_slot *s = &sim->published.slot[i];
            if (s->launched == s->done || t->own.inflight + t->duration <= sim->config.rules.window)
                return 1;
            t->at = sim->now + gh_pacer_step(&sim->config.rules, sim->config.rules.window);
            return 0;
        }
        sim->lease.draining = 1;
    }
    int queued = 0;
    for (unsigned k = 0; k < sim->lease.waiting; k++)
        queued |= sim->lease.queue[k] == i;
    if (!queued)
        sim->lease.queue[sim->lease.waiting++] = i;
    t->at = NEVER;
    strict_finished(sim, sim->lease.owner); /* all its work may be done already */
    return 0;
}

void strict_finished(struct sim *sim, unsigned i) {
    if (sim->lease.owner != i || gpu_queued(&sim->gpu, i))
        return;
    enum host_state state = sim->tenant[i].state;
    if (sim->lease.draining || ((state == SYNC || state == SYNCED || state == BURST) && sim->lease.waiting))
        lease_pass(sim);
}
