#include "gate/decide.h"

#include "pages/arithmetic.h"

#define EACH_SLOT(mask, i) \
    for (uint64_t left_ = (mask), i = 0; left_ && ((i = (uint64_t)__builtin_ctzll(left_)), 1); left_ &= left_ - 1)

static unsigned weight_of(const struct gh_share *share) { return share->weight ? share->weight : 1; }

void gh_rules_default(struct gh_rules *rules) {
    *rules = (struct gh_rules){
        .window = GH_MS,
        .window_light = 10 * GH_MS,
        .window_guarded = 200 * GH_US,
        .window_open = 20 * GH_MS,
        .quantum = 10 * GH_MS,
        .tenure_min = 2 * GH_MS,
        .tenure_sum = 100 * GH_MS,
        .recheck = 2 * GH_MS,
        .idle_release = 200 * GH_US,
        .mix_slack = 5 * GH_MS,
        .bank = 20 * GH_MS,
        .wake_idle = 500 * GH_US,
        .wake_lag = GH_MS,
        .wake_hold = GH_MS,
        .probe = 5 * GH_MS,
        .probe_every = GH_S,
        .active_within = GH_S,
        .heartbeat_stale = 50 * GH_MS,
        .silent = 2500 * GH_US,
        .progress_stale = GH_S,
        .linger_max = 100 * GH_MS,
        .finish = 10 * GH_MS,
        .drain_max = 200 * GH_US,
        .pacer_min = 50 * GH_US,
        .pacer_max = 200 * GH_US,
        .patience = 30 * GH_MS,
        .burst = 4 * GH_MS,
        .burst_beside = 20 * GH_MS,
        .patience_least = 8 * GH_MS,
    };
}

static int alive(const struct gh_gpu *gpu, unsigned i) { return (gpu->present >> i & 1) && !gpu->slot[i].ended; }

/* Age of a sign of life when the slots were read, not now: a reader that is late takes nobody for ended. */
static uint64_t quiet(const struct gh_gpu *gpu, uint64_t then) { return age64(gpu->seen, then); }

/* The tenant has work, and its owner gave a sign of life, or work finished, recently. */
static int busy(const struct gh_gpu *gpu, unsigned i) {
    const struct gh_slot *s = &gpu->slot[i];
    uint64_t heart = quiet(gpu, s->heartbeat), done = quiet(gpu, s->done_at);
    return s->launched != s->done && alive(gpu, i) && done < gpu->rules.progress_stale &&
           min64(heart, done) < gpu->rules.heartbeat_stale;
}

static int wants(const struct gh_gpu *gpu, unsigned i) {
    const struct gh_slot *s = &gpu->slot[i];
    return busy(gpu, i) || (s->held && alive(gpu, i) && quiet(gpu, s->heartbeat) < gpu->rules.heartbeat_stale);
}

/* The tenant shows no sign of life: it is stopped, or has no processor. Its equals go on without it. */
static int silent(const struct gh_gpu *gpu, unsigned i) {
    const struct gh_slot *s = &gpu->slot[i];
    return min64(quiet(gpu, s->heartbeat), quiet(gpu, s->done_at)) > gpu->rules.silent;
}

/* The tenant has been idle for longer than a small gap. */
static int released(const struct gh_gpu *gpu, unsigned i) {
    return quiet(gpu, gpu->slot[i].idle_since) > gpu->rules.idle_release;
}

/* A tenant in a small gap still counts as wanting the GPU if it often leaves such gaps, or has the tenure. Others then
 * fill the gap within the slack, or wait until the gap is too long to be small. */
static int in_small_gap(const struct gh_gpu *gpu, unsigned i, uint64_t now) {
    const struct gh_slot *s = &gpu->slot[i];
    return (!s->saturated || s->end > now) && s->idle_since && alive(gpu, i) && !released(gpu, i);
}

static int active(const struct gh_gpu *gpu, unsigned i) {
    const struct gh_slot *s = &gpu->slot[i];
    return alive(gpu, i) && s->active_at && quiet(gpu, s->active_at) < gpu->rules.active_within;
}

/* The most of the GPU that the tenant needs: what it keeps busy when it has work, and when it has work. */
static uint64_t need_of(const struct gh_slot *s) {
    return min64(s->saturated ? GH_PPM : s->duty, s->want ? s->want : GH_PPM);
}

/* The equals that were active recently, and me. */
static int counts(const struct gh_gpu *gpu, unsigned me, unsigned i) {
    return i == me || (gpu->share[i].class_ == gpu->share[me].class_ && active(gpu, i));
}

#define LITTLE (GH_PPM / 4)

/* All but one of these need so little of the GPU that they lose little if the driver divides the time: each less than its part,
 * together a quarter. So none has to be done soon when another has work, none is held for another, and a program may run
 * ahead of the GPU, over its own pauses. But the driver divides by processes: beside several of one that needs more, those
 * that need little would have a small part. *least: the least v of them. */
static int light(const struct gh_gpu *gpu, unsigned me, uint64_t *least) {
    uint64_t need = 0, most = 0, weights = 0;
    struct {
        uint64_t need, weight;
    } top = {0, 1}, next = {0, 1}; /* the two that need most for their weights */
    *least = UINT64_MAX;
    EACH_SLOT (gpu->present, i) {
        if (!counts(gpu, me, (unsigned)i))
            continue;
        uint64_t one = need_of(&gpu->slot[i]), weight = weight_of(&gpu->share[i]);
        if (one > LITTLE && gpu->slot[i].processes > 1)
            return 0;
        need += one;
        most = max64(most, one);
        weights += weight;
        *least = min64(*least, gpu->slot[i].v);
        if (one * top.weight > top.need * weight) {
            next = top;
            top.need = one, top.weight = weight;
        } else if (one * next.weight > next.need * weight) {
            next.need = one, next.weight = weight;
        }
    }
    return next.need * weights <= next.weight * (uint64_t)GH_PPM && need - most <= LITTLE;
}

uint64_t gh_window(const struct gh_gpu *gpu, unsigned me) {
    EACH_SLOT (gpu->present, i)
        if (gpu->share[i].class_ > gpu->share[me].class_ && !gpu->slot[i].ended)
            return gpu->rules.window_guarded;
    return gpu->rules.window;
}

uint64_t gh_pacer_step(const struct gh_rules *rules, uint64_t window) {
    return clamp64(window / 4, rules->pacer_min, rules->pacer_max);
}

/* Time for which a tenant still counts as busy after its work. */
static uint64_t linger_of(const struct gh_gpu *gpu, unsigned h) {
    uint64_t set = gpu->share[h].linger;
    return set ? set : min64(gpu->slot[h].linger, gpu->rules.linger_max);
}

/* Until when a tenant of a higher class keeps lower ones out: while it is busy, and for its linger afterwards. One that was
 * stopped may launch nothing, whatever it writes. */
static uint64_t frozen_until(const struct gh_gpu *gpu, unsigned h, uint64_t now) {
    const struct gh_slot *s = &gpu->slot[h];
    if (!alive(gpu, h) || gpu->share[h].freeze)
        return 0;
    if (wants(gpu, h))
        return add64(now, gpu->rules.recheck);
    if (!s->active_at)
        return 0;
    uint64_t last = s->launched != s->done ? s->done_at : s->active_at; /* count stuck work from its last progress */
    return add64(min64(last, now), linger_of(gpu, h));
}

static struct gh_decision wait_for(struct gh_decision d, enum gh_wait on, uint64_t slot, uint64_t until) {
    d.go = 0;
    d.on = (uint8_t)on;
    d.slot = (uint8_t)slot;
    d.until = until;
    return d;
}

static struct gh_decision go(struct gh_decision d, enum gh_mode mode) {
    d.go = 1;
    d.mode = (uint8_t)mode;
    d.held = 0;
    return d;
}

/* v as it will be when all launched work is charged. So a long command counts from its launch on. */
static uint64_t due_v(const struct gh_gpu *gpu, unsigned i) {
    const struct gh_slot *s = &gpu->slot[i];
    return add64(s->v, mul64(min64(s->uncharged, GH_S), GH_WEIGHT_ONE) / weight_of(&gpu->share[i]));
}

/* Order by v, then by slot. */
static int before(const struct gh_gpu *gpu, unsigned a, unsigned b) {
    uint64_t va = due_v(gpu, a), vb = due_v(gpu, b);
    return va < vb || (va == vb && a < b);
}

static int competes(const struct gh_gpu *gpu, unsigned i, unsigned me, uint64_t now) {
    if (gpu->share[i].class_ != gpu->share[me].class_ || gpu->share[i].freeze)
        return 0;
    return (wants(gpu, i) && !silent(gpu, i)) || in_small_gap(gpu, i, now);
}

/* The tenants of my class that want the GPU, and me; without those to be ignored. */
struct crowd {
    uint64_t mask;
    uint64_t n, weights;
    unsigned least; /* the one with the least v */
    int saturated;
};

static struct crowd crowd_of(const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t ignored) {
    struct crowd c = {.least = me, .saturated = 1};
    EACH_SLOT (gpu->present & ~(ignored & ~(1ull << me)), i) {
        if (i != me && !competes(gpu, (unsigned)i, me, now))
            continue;
        c.mask |= 1ull << i;
        c.n++;
        c.weights += weight_of(&gpu->share[i]);
        c.saturated &= gpu->slot[i].saturated != 0;
        if (before(gpu, (unsigned)i, c.least))
            c.least = (unsigned)i;
    }
    return c;
}

struct gh_wanting gh_wanting(const struct gh_gpu *gpu, unsigned me, uint64_t now) {
    struct crowd c = crowd_of(gpu, me, now, 0);
    return (struct gh_wanting){c.mask, c.weights};
}

/* A time as a distance in v at the crowd's mean weight, so that the rules do not depend on the unit of weights. */
static uint64_t as_v(const struct crowd *c, uint64_t time) {
    return mul64(time, GH_WEIGHT_ONE * c->n) / max64(c->weights, 1);
}

static uint64_t tenure_of(const struct gh_gpu *gpu, const struct crowd *c, unsigned i) {
    uint64_t quantum = min64(gpu->rules.quantum, gpu->rules.tenure_sum / max64(c->n, 1));
    uint64_t t = mul64(quantum, weight_of(&gpu->share[i]) * c->n) / max64(c->weights, 1);
    return clamp64(t, gpu->rules.tenure_min, max64(gpu->rules.tenure_sum, gpu->rules.tenure_min));
}

static int tenure_stands(const struct gh_gpu *gpu, unsigned i, uint64_t now) {
    const struct gh_slot *s = &gpu->slot[i];
    return s->end > s->start && s->start <= now &&
           s->end - s->start <= max64(gpu->rules.tenure_sum, gpu->rules.tenure_min);
}

/* The slot with the newest valid tenure in my class; GH_SLOTS: none. Serial numbers may wrap. */
static unsigned newest_claim(const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t ignored) {
    unsigned p = GH_SLOTS;
    EACH_SLOT (gpu->present & ~(ignored & ~(1ull << me)), i) {
        if (gpu->share[i].class_ != gpu->share[me].class_ || !gpu->slot[i].epoch ||
            !tenure_stands(gpu, (unsigned)i, now))
            continue;
        if (p == GH_SLOTS || (int64_t)(gpu->slot[i].epoch - gpu->slot[p].epoch) > 0)
            p = (unsigned)i;
    }
    return p;
}

/* When p's last command ends, if p may overrun its tenure to finish it; else the end of the tenure. If others started
 * earlier, the GPU would switch between them and that command all the time. */
static uint64_t tenure_end(const struct gh_gpu *gpu, unsigned p) {
    const struct gh_slot *s = &gpu->slot[p];
    uint64_t finished = add64(s->heartbeat, s->residue);
    return s->launched != s->done && finished > s->end && finished - s->end <= gpu->rules.finish ? finished : s->end;
}

/* True if p's tenure is over, whatever end it announced. */
static int tenure_over(const struct gh_gpu *gpu, unsigned p, unsigned me, uint64_t now) {
    const struct gh_slot *s = &gpu->slot[p];
    if (!alive(gpu, p) || gpu->share[p].freeze || (p == me ? s->end : tenure_end(gpu, p)) <= now)
        return 1;
    if (s->launched == s->done && !s->held)
        return released(gpu, p);
    return p != me && silent(gpu, p);
}

/* The others on the GPU, by class. */
struct others {
    uint64_t frozen_until; /* a higher class keeps us out until then; 0: none does */
    unsigned by;           /* that tenant */
    int registered;        /* a tenant of a higher class is on the GPU */
    int contended;         /* a tenant of my class was active recently */
    uint64_t residue;      /* of lower classes' work in flight */
    uint64_t lower;        /* mask of the lower classes' tenants with work */
};

static struct others others_of(const struct gh_gpu *gpu, unsigned me, uint64_t now) {
    struct others o = {0};
    EACH_SLOT (gpu->present, i) {
        if (i == me || !alive(gpu, (unsigned)i))
            continue;
        if (gpu->share[i].class_ > gpu->share[me].class_) {
            o.registered = 1;
            uint64_t until = frozen_until(gpu, (unsigned)i, now);
            if (until > now) {
                o.frozen_until = until;
                o.by = (unsigned)i;
                return o;
            }
        } else if (gpu->share[i].class_ == gpu->share[me].class_) {
            o.contended |= active(gpu, (unsigned)i);
        } else if (busy(gpu, (unsigned)i)) {
            o.residue = add64(o.residue, gpu->slot[i].residue);
            o.lower |= 1ull << i;
        }
    }
    return o;
}

/* Until when I let lower classes' last commands finish; 0: I do not. Once after each time in which they were let in,
 * and only for work of tenants that have finished something since the last time. */
static uint64_t drain_until(const struct gh_gpu *gpu, unsigned me, const struct gh_peers *peers, const struct others *o,
                            uint64_t now) {
    const struct gh_slot *mine = &gpu->slot[me];
    uint64_t began = peers ? peers->drain_at : 0;
    if (!o->lower || o->residue > gpu->rules.drain_max)
        return 0;
    if (began && began >= mine->idle_since) /* it began after my last work: go on with it */
        return add64(began, gpu->rules.drain_max);
    if (age64(now, mine->idle_since) < linger_of(gpu, me))
        return 0;
    EACH_SLOT (o->lower, i)
        if (peers && peers->drained[i] == gpu->slot[i].done + 1)
            return 0;
    return add64(now, gpu->rules.drain_max);
}

/* The tenure that is on, or begins now. */
struct tenure {
    unsigned owner;
    int begins; /* me: I begin it */
    int woken;  /* I have work again after an idle time, and have had no tenure since */
    uint64_t last;
};

static struct tenure tenure_now(const struct gh_gpu *gpu, const struct crowd *c, unsigned me, uint64_t ignored,
                                uint64_t now) {
    const struct gh_rules *r = &gpu->rules;
    const struct gh_slot *mine = &gpu->slot[me];
    struct tenure t = {.owner = newest_claim(gpu, me, now, ignored)};
    unsigned p = t.owner;
    int over = p == GH_SLOTS || tenure_over(gpu, p, me, now);
    if (!over && p != me && mine->woke_at > mine->start && add64(mine->v, as_v(c, r->wake_lag)) < due_v(gpu, p)) {
        t.woken = 1;
        over = age64(now, gpu->slot[p].start) >= r->wake_hold && age64(now, gpu->slot[p].woke_at) >= r->quantum;
    }
    if (over) {
        t.last = p == GH_SLOTS ? 0 : gpu->slot[p].epoch;
        t.owner = c->least; /* if it does not take the tenure, it falls silent and is passed over */
        t.begins = 1;
    }
    return t;
}

static void take_tenure(struct gh_decision *d, const struct gh_gpu *gpu, const struct crowd *c, unsigned me,
                        const struct gh_own *own, uint64_t last, uint64_t now) {
    const struct gh_rules *r = &gpu->rules;
    d->takes = 1;
    d->epoch = last + 1 ? last + 1 : 1;
    d->start = now;
    d->end = add64(now, tenure_of(gpu, c, me));
    if (!c->saturated && age64(now, own->probed_at) >= r->probe_every)
        d->probe_until = add64(now, r->probe);
}

/* True if a command waits for those of the tenant's other processes. The driver divides the time by processes, so these launch
 * their long commands one after the other. most: no longer than that. */
static int after_siblings(const struct gh_own *own, uint64_t cost, uint64_t window, uint64_t most) {
    return cost > window && own->siblings > window && own->waited < most;
}

/* Time until it looks again. What is unknown is mostly short. */
static uint64_t look_after(const struct gh_own *own, uint64_t window, uint64_t step, const struct gh_rules *r) {
    uint64_t rest = own->siblings < GH_COST_UNKNOWN / 2 ? own->siblings - window : own->waited / 4;
    return clamp64(rest, step, r->recheck);
}

/* Tenants that share the GPU with equals that were active recently, or with a higher class that is idle. */
static struct gh_decision among_equals(struct gh_decision d, const struct gh_gpu *gpu, unsigned me,
                                       const struct gh_own *own, int registered, int empty, uint64_t now,
                                       uint64_t cost) {
    const struct gh_rules *r = &gpu->rules;
    uint64_t ignored = own->peers ? own->peers->ignored : 0;
    uint64_t base = registered ? r->window_guarded : r->window, left = gh_residue(own, now);
    uint64_t least;
    int lightly = !registered && light(gpu, me, &least);
    uint64_t window = lightly ? r->window_light : base;
    /* A command longer than the window may be queued when the running one is nearly done; otherwise the GPU would idle
     * before each such command. */
    int fits = empty || add64(left, cost) <= window || (!registered && cost < GH_COST_UNKNOWN && left <= base / 4);
    int behind = after_siblings(own, cost, base, UINT64_MAX);
    d.lone = cost > base;
    struct crowd c = crowd_of(gpu, me, now, ignored);
    /* Taking turns is in vain if the GPU switches to the work of one that does not. */
    EACH_SLOT (gpu->present &ignored, i)
        c.saturated &= !busy(gpu, (unsigned)i);
    struct tenure t = tenure_now(gpu, &c, me, ignored, now);
    unsigned p = t.owner;
    if (t.begins && p == me)
        take_tenure(&d, gpu, &c, me, own, t.last, now);

    int alone = c.mask == 1ull << me;
    uint64_t probe = p == me ? 0 : min64(gpu->slot[p].probe_until, add64(gpu->slot[p].start, r->probe));
    uint64_t lead = due_v(gpu, me) - due_v(gpu, c.least); /* that of c.least is mine or less */
    uint64_t slack = as_v(&c, r->mix_slack);
    d.ahead = !c.saturated && lead > (own->ahead ? slack / 4 : slack);
    d.mode = alone ? GH_GUARDED : c.saturated && !lightly ? GH_ROTATE : GH_MIX;
    int mine = alone || p == me || ((lightly || (!c.saturated && !d.ahead)) && now >= probe);
    if (mine && fits && !behind) {
        d.spare = !registered && !gpu->share[me].cap && (alone || lightly) ? age64(window, add64(left, cost)) : 0;
        return go(d, (enum gh_mode)d.mode);
    }
    d.held = 1;
    if (mine) {
        uint64_t step = gh_pacer_step(r, base);
        return wait_for(d, GH_ON_OWN_DONE, me, add64(now, behind ? look_after(own, base, step, r) : step));
    }

    uint64_t until = add64(now, r->recheck);
    const struct gh_slot *s = &gpu->slot[p];
    d.blame = (uint8_t)p;
    if (now < probe) {
        until = min64(until, probe);
    } else if (d.ahead) { /* until c.least, alone on the GPU, would have caught up */
        until = min64(until, add64(now, max64((lead - slack / 4) / GH_WEIGHT_ONE * weight_of(&gpu->share[c.least]),
                                              r->pacer_min)));
        d.blame = (uint8_t)c.least;
    }
    if (t.woken && !t.begins)
        until = min64(until, max64(add64(s->start, r->wake_hold), add64(s->woke_at, r->quantum)));
    if (s->launched == s->done && !s->held)
        until = min64(until, add64(s->idle_since, r->idle_release + 1));
    if (tenure_end(gpu, p) > now)
        until = min64(until, tenure_end(gpu, p));
    return wait_for(d, GH_ON_SLOT, p, max64(until, add64(now, r->pacer_min))); /* no slot's content can make me spin */
}

/* True if a command may be queued behind `left` ns of work while nobody else was active recently. A tenant that comes
 * later is time-sliced against what is queued. Commands of unknown cost, for which `left` has GH_COST_UNKNOWN each, are
 * counted apart. */
static int fits_open(const struct gh_rules *r, uint64_t left, uint64_t cost) {
    int unknown = cost >= GH_COST_UNKNOWN;
    /* The residue of unknown commands falls while one runs. */
    if ((left + GH_COST_UNKNOWN / 2) / GH_COST_UNKNOWN + (uint64_t)unknown > GH_UNKNOWN_MOST)
        return 0;
    return unknown || left % GH_COST_UNKNOWN <= r->window_open / 4 ||
           add64(left % GH_COST_UNKNOWN, cost) <= r->window_open;
}

struct gh_decision gh_decide(const struct gh_gpu *gpu, unsigned me, const struct gh_own *own, uint64_t now,
                             uint64_t cost) {
    const struct gh_rules *r = &gpu->rules;
    const struct gh_share *share = &gpu->share[me];
    struct gh_decision d = {.ahead = own->ahead, .blame = GH_SLOTS};

    if (share->freeze) {
        d.mode = GH_FROZEN;
        return wait_for(d, GH_ON_POLICY, me, add64(now, r->recheck));
    }
    struct others o = others_of(gpu, me, now);
    if (o.frozen_until) {
        d.mode = GH_FROZEN;
        return wait_for(d, GH_ON_SLOT, o.by, min64(o.frozen_until, add64(now, r->recheck)));
    }

    int empty = gpu->slot[me].launched == gpu->slot[me].done || own->idle;
    if (share->cap) {
        struct gh_bucket b = gh_bucket_at(own->bucket, share->cap, gh_savings(gpu, me, now), now);
        if (b.level <= 0) {
            d.mode = GH_CAPPED;
            uint64_t refill = (uint64_t)(-(b.level + 1)) / share->cap + 2;
            return wait_for(d, GH_ON_TIME, me, add64(now, min64(refill, r->recheck)));
        }
        if (cost >= GH_COST_UNKNOWN && !empty) {
            d.mode = GH_CAPPED;
            return wait_for(d, GH_ON_OWN_DONE, me, add64(now, gh_pacer_step(r, r->window)));
        }
    }

    uint64_t drain = empty ? drain_until(gpu, me, own->peers, &o, now) : 0;
    if (drain > now) {
        d.mode = GH_DRAIN;
        d.held = 1;
        return wait_for(d, GH_ON_SLOT, (unsigned)__builtin_ctzll(o.lower), drain);
    }
    if (o.contended || o.registered)
        return among_equals(d, gpu, me, own, o.registered, empty, now, cost);
    /* Nearly all commands of unknown cost are short. Where processes begin at once, each has many. */
    int unknown = cost >= GH_COST_UNKNOWN;
    int behind = after_siblings(own, cost, r->window_open, unknown ? r->recheck : UINT64_MAX);
    uint64_t left = gh_residue(own, now), step = gh_pacer_step(r, r->window_open);
    d.mode = GH_OPEN;
    d.lone = !unknown && cost > r->window_open;
    if (behind)
        return wait_for(d, GH_ON_OWN_DONE, me, add64(now, look_after(own, r->window_open, step, r)));
    if (!empty && !fits_open(r, left, cost))
        return wait_for(d, GH_ON_OWN_DONE, me, add64(now, step));
    d.spare = share->cap ? 0 : age64(r->window_open, add64(left, cost));
    return go(d, GH_OPEN);
}

/* ---- what waiting for peers has cost ---- */

void gh_peers_forget(struct gh_peers *p, unsigned i) {
    p->ignored &= ~(1ull << i);
    p->unpaid &= ~(1ull << i);
    p->v[i] = p->beside[i] = p->drained[i] = 0;
    p->beyond[i] = 0;
}

void gh_peers_drain(struct gh_peers *p, const struct gh_gpu *gpu, unsigned me, uint64_t now) {
    if (p->drain_at && p->drain_at >= gpu->slot[me].idle_since)
        return;
    p->drain_at = now;
    EACH_SLOT (gpu->present, i)
        if (gpu->share[i].class_ < gpu->share[me].class_ && busy(gpu, (unsigned)i))
            p->drained[i] = gpu->slot[i].done + 1;
}

#define BESIDE (40 * GH_MS) /* a peer's GPU time after which its v should have risen */
#define SURPLUS_COMMANDS 4  /* a tenant may have so many long commands in flight before their cost is known */
#define LONG (3 * GH_MS)    /* GPU time charged at once: of a long command */
#define PART_SAFE 950       /* of 1000 of a tenant's part that no peer can take */

/* Bounds what the peer took too much or too little, and ignores it if it took too much. */
static void judge(struct gh_peers *p, unsigned i, int64_t patience, int64_t surplus) {
    int64_t x = p->beyond[i], most = 2 * patience;
    p->beyond[i] = x = x < -surplus ? -surplus : x > most ? most : x;
    uint64_t bit = 1ull << i;
    if (x > patience && !(p->ignored & bit)) {
        p->ignored |= bit;
        p->ignorings++;
    } else if (x < patience / 2) {
        p->ignored &= ~bit;
    }
}

/* Notes if the peer charges itself for the GPU time that it had: beside me, or while I waited for it. Of tenants that both
 * keep the GPU busy, that time is known; of one that leaves gaps, only that it had something. */
static void note_time(struct gh_peers *p, const struct gh_gpu *gpu, unsigned i, uint64_t had, int saturated) {
    uint64_t v = gpu->slot[i].v, bit = 1ull << i;
    p->beside[i] += had;
    if (p->beside[i] < BESIDE)
        return;
    uint64_t due = p->beside[i] * GH_WEIGHT_ONE / weight_of(&gpu->share[i]);
    p->unpaid &= ~bit;
    if (age64(due_v(gpu, i), p->v[i]) < (saturated ? due / 4 * 3 : due / 8))
        p->unpaid |= bit;
    p->beside[i] = 0;
    p->v[i] = v;
}

/* GPU time that long commands took beyond the tenant's part, which is w of `all`. Others may have as much before the wait
 * for them is a cost. Short commands do not count, since those who let a tenant run for so short a time earn no right by
 * it. Returns how much of it nobody could foresee, since the command's cost was not known. */
static uint64_t note_charge(struct gh_peers *p, uint64_t charged, uint64_t foreseen, uint64_t now, uint64_t weight,
                            uint64_t all) {
    uint64_t had = p->counted_at ? age64(charged, p->charged) : 0, elapsed = min64(age64(now, p->counted_at), GH_S);
    uint64_t surprise = had - min64(had, p->foreseen);
    p->charged = charged;
    p->foreseen = foreseen;
    if (had > LONG) {
        p->longest = max64(min64(had, GH_S), p->longest - p->longest / 16);
        p->surplus = min64(p->surplus + had, SURPLUS_COMMANDS * p->longest);
    }
    p->surplus -= min64(p->surplus, elapsed * weight / all);
    return surprise > max64(LONG, had / 2) ? min64(surprise, p->surplus) : 0;
}

void gh_peers_count(struct gh_peers *p, const struct gh_gpu *gpu, unsigned me, const struct gh_decision *last,
                    uint64_t now, uint64_t charged) {
    const struct gh_rules *r = &gpu->rules;
    /* No sleep at the gate is longer than rules.recheck. If more time has passed, the program was idle meanwhile, or it
     * got no processor; the peers did not cause that. */
    uint64_t t = p->counted_at ? min64(age64(now, p->counted_at), r->recheck + GH_MS) : 0;
    struct crowd c = crowd_of(gpu, me, now, 0);
    const struct gh_slot *mine = &gpu->slot[me];
    uint64_t waited = mine->launched == mine->done ? min64(t, age64(now, mine->idle_since)) : 0;
    uint64_t own = weight_of(&gpu->share[me]), all = 0, weights = 0, parts = 0, beside = 0, contexts = 1, n = 0;
    /* Peers with a part: those that want the GPU, and those that still owe something. */
    EACH_SLOT (gpu->present & ~(1ull << me), i) {
        if (gpu->share[i].class_ != gpu->share[me].class_)
            continue;
        int has_part = (c.mask >> i & 1) || p->beyond[i] > 0;
        n++;
        parts |= (uint64_t)has_part << i;
        weights += has_part ? weight_of(&gpu->share[i]) : 0;
        all += weight_of(&gpu->share[i]);
        if (mine->launched != mine->done && busy(gpu, (unsigned)i)) { /* the GPU switches between its work and mine */
            beside |= 1ull << i;
            contexts++;
        }
    }
    uint64_t foreseen = mine->uncharged > LONG ? min64(mine->uncharged, GH_S) : 0;
    uint64_t surprise = note_charge(p, charged, foreseen, now, own, own + weights);
    p->counted_at = now;
    uint64_t spare = t - t * PART_SAFE / 1000 * own / (own + weights);
    EACH_SLOT (gpu->present & ~(1ull << me), i) {
        if (gpu->share[i].class_ != gpu->share[me].class_)
            continue;
        uint64_t weight = weight_of(&gpu->share[i]), tenure = tenure_of(gpu, &c, (unsigned)i);
        uint64_t had = beside >> i & 1 ? t / contexts : 0;
        uint64_t held = last && !last->go && last->blame == i ? waited : 0;
        note_time(p, gpu, (unsigned)i, had + held, gpu->slot[i].saturated && mine->saturated);
        /* Under a ceiling, what it waits for its own bucket would be the peer's part. */
        int unpaid = (p->ignored & p->unpaid) >> i & 1, takes = had || (gpu->share[me].cap && wants(gpu, (unsigned)i));
        if (parts >> i & 1 && !(unpaid && takes))
            p->beyond[i] -= (int64_t)(spare * weight / weights);
        p->beyond[i] -= (int64_t)(surprise * weight / all);
        p->beyond[i] += (int64_t)(unpaid ? had + held : held);
        /* A command of a peer with a small weight overruns its tenure by more than the part of that weight. */
        uint64_t patience = max64(r->patience * weight / all, min64(r->patience_least, 4 * r->patience / n));
        judge(p, (unsigned)i, (int64_t)(patience + tenure), (int64_t)(p->surplus * weight / all));
    }
    EACH_SLOT (~gpu->present & p->ignored, i)
        p->ignored &= ~(1ull << i);
}

uint64_t gh_wake_v(const struct gh_gpu *gpu, unsigned me) {
    uint64_t least = UINT64_MAX, weights = weight_of(&gpu->share[me]), n = 1;
    EACH_SLOT (gpu->present, i) {
        if (i == me || gpu->share[i].class_ != gpu->share[me].class_ || !active(gpu, (unsigned)i))
            continue;
        least = min64(least, gpu->slot[i].v);
        weights += weight_of(&gpu->share[i]);
        n++;
    }
    struct crowd c = {.n = n, .weights = weights};
    uint64_t bank = as_v(&c, gpu->rules.bank);
    return least == UINT64_MAX || least < bank ? gpu->slot[me].v : max64(gpu->slot[me].v, least - bank);
}

struct gh_rise gh_charge(const struct gh_gpu *gpu, unsigned me, uint64_t charge) {
    uint32_t weight = gh_weight(gpu, me, gpu->seen);
    uint64_t least;
    int lightly = light(gpu, me, &least);
    return (struct gh_rise){.by = mul64(charge, 1000 * GH_WEIGHT_ONE) / (weight ? weight : 1),
                            .most = lightly ? add64(least, gpu->rules.mix_slack) : UINT64_MAX};
}

uint32_t gh_weight(const struct gh_gpu *gpu, unsigned me, uint64_t now) {
    struct crowd c = crowd_of(gpu, me, now, 0);
    uint64_t left = c.mask, part = GH_PPM, weights = c.weights; /* water-filling: first those that need least */
    for (;;) {
        uint64_t sated = 0, need = 0, theirs = 0;
        EACH_SLOT (left, i) {
            uint64_t duty = gpu->slot[i].saturated ? GH_PPM : clamp64(gpu->slot[i].duty, GH_PPM / 100, GH_PPM);
            uint64_t weight = weight_of(&gpu->share[i]);
            if (duty * weights >= part * weight)
                continue;
            if (i == me)
                return (uint32_t)max64(duty * c.weights / (GH_PPM / 1000), 1);
            sated |= 1ull << i;
            need += duty;
            theirs += weight;
        }
        if (!sated)
            return (uint32_t)(part * weight_of(&gpu->share[me]) * c.weights / weights / (GH_PPM / 1000));
        left &= ~sated;
        part -= need;
        weights -= theirs;
    }
}

uint64_t gh_savings(const struct gh_gpu *gpu, unsigned me, uint64_t now) {
    int alone = gh_wanting(gpu, me, now).mask == 1ull << me;
    return alone ? gpu->rules.burst : gpu->rules.burst_beside;
}

struct gh_bucket gh_bucket_at(struct gh_bucket bucket, uint32_t cap, uint64_t burst, uint64_t now) {
    uint64_t dt = min64(age64(now, bucket.at), 1000 * GH_S);
    int64_t top = (int64_t)(min64(burst, 1000 * GH_S) * GH_PPM);
    int64_t more = (int64_t)(dt * min64(cap, GH_PPM));
    bucket.level = bucket.level > top - more ? top : bucket.level + more;
    bucket.at = max64(bucket.at, now);
    return bucket;
}

struct gh_bucket gh_bucket_take(struct gh_bucket bucket, int64_t charge) {
    const int64_t most = 1000 * (int64_t)GH_S, bottom = -3 * most * (int64_t)GH_PPM, top = most * (int64_t)GH_PPM;
    int64_t less = (charge > most ? most : charge < -most ? -most : charge) * (int64_t)GH_PPM;
    int64_t level = bucket.level < bottom ? bottom : bucket.level > top ? top : bucket.level;
    bucket.level = level - less < bottom ? bottom : level - less;
    return bucket;
}

uint64_t gh_residue(const struct gh_own *own, uint64_t now) {
    return own->inflight - min64(age64(now, own->running_since), min64(own->running_cost, own->inflight));
}

#define GH_DUTY_FALL ((int64_t)(3 * GH_MS / 2))
uint32_t gh_saturation(uint32_t before_, uint64_t pending, uint64_t length) {
    const int64_t tau = 20 * (int64_t)GH_MS;
    if (!length)
        return before_;
    int64_t now_ = (int64_t)(min64(pending, length) * (uint64_t)GH_PPM / length);
    int64_t step = (int64_t)min64(length, (uint64_t)tau);
    /* Falls in small steps, since a moment without a processor looks like a gap of the program. */
    if (now_ < (int64_t)before_)
        step = step < GH_DUTY_FALL ? step : GH_DUTY_FALL;
    return (uint32_t)((int64_t)before_ + (now_ - (int64_t)before_) * step / tau);
}

uint8_t gh_saturated(uint8_t before_, uint32_t saturation) {
    return before_ ? saturation >= 850000 : saturation >= 950000;
}

void gh_gap_seen(struct gh_gaps *gaps, uint64_t gap) {
    unsigned bin = 0;
    for (uint64_t edge = 8 * GH_US; bin < GH_GAP_BINS - 1 && gap >= edge; edge *= 2)
        bin++;
    for (unsigned i = 0; i < GH_GAP_BINS; i++)
        gaps->bin[i] -= gaps->bin[i] / 50;
    gaps->bin[bin] += 1u << 20;
}

uint32_t gh_linger(const struct gh_gaps *gaps, uint64_t loss, uint32_t kappa) {
    static const uint32_t candidate[] = {500 * GH_US, 2 * GH_MS, 10 * GH_MS, 100 * GH_MS};
    uint64_t total = 0;
    for (unsigned i = 0; i < GH_GAP_BINS; i++)
        total += gaps->bin[i];
    if (!total)
        return 2 * GH_MS;
    uint32_t best = 0;
    uint64_t least = UINT64_MAX;
    for (unsigned k = 0; k < sizeof candidate / sizeof *candidate; k++) {
        uint64_t cost = 0; /* in us x count */
        for (unsigned i = 0; i < GH_GAP_BINS; i++) {
            uint64_t middle = 6ull << i; /* us: between 4 x 2^i and 8 x 2^i */
            uint64_t t = candidate[k] / GH_US;
            uint64_t each = middle > t ? add64(t, mul64(kappa, loss / GH_US)) : middle;
            cost = add64(cost, mul64(each, gaps->bin[i]));
        }
        if (cost < least) {
            least = cost;
            best = candidate[k];
        }
    }
    return best;
}

void gh_cost_learn(struct gh_cost *cost, uint64_t elapsed, int clean) {
    int64_t sample = (int64_t)(min64(elapsed, 1000 * GH_S) * 256);
    for (int kind = 0; kind <= (clean != 0); kind++) {
        if (cost->samples[kind] < GH_LEARN)
            cost->samples[kind]++;
        int64_t mean = (int64_t)cost->mean[kind];
        cost->mean[kind] = (uint64_t)(mean + (sample - mean) / (int64_t)cost->samples[kind]);
    }
}

uint64_t gh_cost_of(const struct gh_cost *cost) {
    if (!cost->samples[0])
        return GH_COST_UNKNOWN;
    int kind = cost->samples[1] >= GH_LEARN_CLEAN && cost->mean[0] / 256 <= GH_COST_LONG;
    return cost->mean[kind] / 256;
}

uint64_t gh_cost_charge(const struct gh_cost *cost, uint64_t elapsed, int clean) {
    return clean || !cost->samples[0] || cost->mean[0] / 256 > GH_COST_LONG ? elapsed : gh_cost_of(cost);
}
