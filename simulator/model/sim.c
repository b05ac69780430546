#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "shim.h"

void config_default(struct config *config) {
    *config = (struct config){
        .policy = LEDGER,
        .seed = 1,
        .length = 11 * GH_S,
        .warm = GH_S,
        .slice = 1024 * GH_US,
        .switch_loaded = 90 * GH_US,
        .switch_idle = 20 * GH_US,
        .depth = 1000,
        .wake = 30 * GH_US,
        .snapshot = 100 * GH_US,
        .spin = 5 * GH_US,
        .kappa = 4,
        .strict_quantum = 10 * GH_MS,
    };
    gh_rules_default(&config->rules);
}

void samples_add(struct samples *s, uint64_t value) {
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 256;
        s->at = realloc(s->at, s->room * sizeof *s->at);
        if (!s->at)
            abort();
    }
    s->at[s->count++] = value;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t samples_at(struct samples *s, uint64_t ppm) {
    if (!s->count)
        return 0;
    qsort(s->at, s->count, sizeof *s->at, by_value);
    return s->at[min64(s->count - 1, s->count * ppm / GH_PPM)];
}

static int measured(const struct sim *sim) { return sim->now >= sim->config.warm; }

static uint64_t spread(struct tenant *t, uint64_t mean) {
    double factor = t->program.spread == GAP_UNIFORM       ? 0.5 + rng_unit(&t->rng)
                    : t->program.spread == GAP_EXPONENTIAL ? rng_exponential(&t->rng)
                                                           : 1;
    return (uint64_t)(factor * (double)mean);
}

static void draw_kernel(struct tenant *t) {
    const struct program *p = &t->program;
    uint64_t r = rng_next(&t->rng);
    t->key = p->rare_ppm && r % GH_PPM < p->rare_ppm;
    double factor = t->durations ? t->durations[r >> 52] : 1;
    t->duration = max64((uint64_t)(factor * (double)(t->key ? p->rare : p->kernel)), 1);
    t->longest_kernel = max64(t->longest_kernel, t->duration);
}

static int is_high(const struct sim *sim, unsigned i) { return sim->low && !(sim->low >> i & 1); }

static uint64_t low_mask(const struct config *config) {
    uint64_t mask = 0, top = 0;
    for (unsigned k = 0; k < config->count; k++)
        top = max64(top, config->share[k].class_);
    for (unsigned k = 0; k < config->count; k++)
        mask |= (uint64_t)(config->share[k].class_ < top) << k;
    return mask;
}

static void burst(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    const struct program *p = &t->program;
    if (p->off) {
        uint64_t phase = sim->now % (p->on + p->off);
        if (phase >= p->on) {
            t->at = sim->now + p->on + p->off - phase;
            return;
        }
    }
    t->asked = p->period ? t->next_request : sim->now;
    if (p->period)
        t->next_request += spread(t, p->period);
    t->left = p->count;
    t->state = LAUNCH;
    t->at = sim->now + p->host;
    draw_kernel(t);
}

static void after_burst(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    t->requests++;
    if (measured(sim) && (t->program.sync || t->program.period))
        samples_add(&t->latency, sim->now - t->asked);
    t->state = BURST;
    t->at = t->program.period ? max64(sim->now, t->next_request) : sim->now + spread(t, t->program.gap);
}

static void begin_hold(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    if (t->state != GATE)
        t->held_from = sim->now;
    t->state = GATE;
}

static void request_begins(struct sim *sim, unsigned i) {
    if (!is_high(sim, i))
        return;
    sim->high_from = sim->now;
    sim->high_idle = 0;
    sim->low_gone = !(sim->gpu.work & sim->low);
    if (sim->low_gone && measured(sim))
        samples_add(&sim->low_free, 0);
}

static void note_submission(struct sim *sim, unsigned i) {
    const struct config *c = &sim->config;
    if (sim->victim != GH_SLOTS && i != sim->victim && sim->takeover == NEVER)
        sim->takeover = sim->now - c->fault_at;
    if (c->policy != LEDGER || !(sim->low >> i & 1))
        return;
    if (sim->high_from && !sim->high_idle && sim->now > sim->high_from + c->snapshot)
        sim->violations.late_low_submit++;
    if (sim->high_idle) {
        for (unsigned k = 0; k < c->count; k++)
            if (is_high(sim, k) && measured(sim)) {
                uint64_t linger = c->share[k].linger ? c->share[k].linger : sim->published.slot[k].linger;
                uint64_t took = sim->now - sim->high_idle;
                samples_add(&sim->release, took);
                uint64_t due = max64(sim->high_idle + linger, sim->low_ended);
                const struct tenant *t = &sim->tenant[i];
                int served = (sim->gpu.work & sim->low) != 0; /* low work is on the GPU, so it was released already */
                if (!served && t->state == GATE && t->held_from <= due && t->waited != GH_CAPPED &&
                    sim->now > due + GH_MS)
                    sim->violations.late_release++;
                break;
            }
        sim->high_idle = 0;
        sim->high_from = 0;
    }
}

static void launch(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    int first = t->state == LAUNCH;
    if (first && t->left == t->program.count)
        request_begins(sim, i);
    if (gpu_queued(&sim->gpu, i) >= sim->config.depth) {
        t->state = FULL;
        t->at = NEVER;
        return;
    }
    int go = t->program.lie                 ? 1
             : sim->config.policy == LEDGER ? shim_gate(sim, i, first)
             : sim->config.policy == STRICT ? strict_gate(sim, i)
                                            : 1;
    if (!go) {
        begin_hold(sim, i);
        return;
    }
    if (t->state == GATE && measured(sim))
        t->longest_hold = max64(t->longest_hold, sim->now - t->held_from);
    if (sim->config.policy != NATIVE && !t->program.lie)
        shim_submitted(sim, i);
    note_submission(sim, i);
    gpu_submit(&sim->gpu, i, t->duration, t->key, sim->now);
    t->submitted++;
    if (--t->left) {
        t->state = LAUNCH;
        t->at = sim->now + t->program.host;
        draw_kernel(t);
    } else if (t->program.sync || t->program.period) {
        t->state = SYNC;
        t->at = NEVER;
    } else {
        after_burst(sim, i);
    }
}

static void host(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    t->at = NEVER;
    switch (t->state) {
    case BURST: burst(sim, i); break;
    case LAUNCH:
    case GATE: launch(sim, i); break;
    case SYNCED:
        if (sim->config.policy != NATIVE && !sim->tenant[i].program.lie)
            shim_poll(sim, i);
        after_burst(sim, i);
        break;
    default: break;
    }
}

static void ran(void *who, unsigned i, uint64_t from, uint64_t to) {
    struct sim *sim = who;
    struct tenant *t = &sim->tenant[i];
    while (from < to) {
        uint64_t window = from / WINDOW_LENGTH;
        uint64_t part = min64(to, (window + 1) * WINDOW_LENGTH) - from;
        if (window < WINDOWS)
            t->window[window] += part;
        from += part;
    }
}

static void finished(void *who, unsigned i, const struct kernel *kernel, uint64_t now) {
    struct sim *sim = who;
    struct tenant *t = &sim->tenant[i];
    sim->now = now;
    gh_cost_learn(&t->cost[kernel->key], kernel->shared, kernel->clean);

    uint64_t low = sim->low;
    if (low >> i & 1 && !(sim->gpu.work & low))
        sim->low_ended = now;
    if (sim->high_from && !sim->low_gone && !(sim->gpu.work & low)) {
        sim->low_gone = 1;
        if (measured(sim))
            samples_add(&sim->low_free, now - sim->high_from);
    }
    if (!gpu_queued(&sim->gpu, i)) {
        if (is_high(sim, i) && t->state == SYNC)
            sim->high_idle = now;
        if (t->state == SYNC) {
            t->state = SYNCED;
            t->at = now + sim->config.wake;
        }
        if (sim->config.policy == STRICT)
            strict_finished(sim, i);
    }
    if (t->state == FULL) {
        t->state = LAUNCH;
        t->at = now;
    }
}

static void fault(struct sim *sim) {
    const struct config *c = &sim->config;
    unsigned victim = 0;
    uint64_t newest = 0;
    for (unsigned k = 0; k < c->count; k++)
        if (sim->published.slot[k].end > sim->now && sim->published.slot[k].epoch > newest) {
            newest = sim->published.slot[k].epoch;
            victim = k;
        }
    struct tenant *t = &sim->tenant[victim];
    sim->victim = victim;
    if (c->fault == KILL) {
        gpu_destroy(&sim->gpu, victim, sim->now);
        sim->published.slot[victim].ended = 1;
        t->state = GONE;
        t->at = t->pacer = NEVER;
    } else {
        t->stopped_until = c->fault_for ? sim->now + c->fault_for : NEVER;
    }
}

/* Measures how long tenants wait at the gate while the GPU is idle; waits for a freeze or a cap do not count. */
static void watch_progress(struct sim *sim) {
    int stalled = 0;
    if (!sim->gpu.work)
        for (unsigned k = 0; k < sim->config.count; k++) {
            uint8_t mode = sim->tenant[k].mode;
            stalled |= sim->tenant[k].state == GATE && sim->tenant[k].stopped_until <= sim->now && mode != GH_FROZEN &&
                       mode != GH_CAPPED;
        }
    if (stalled && !sim->stalled_from)
        sim->stalled_from = sim->now;
    if (!stalled && sim->stalled_from) {
        sim->longest_stall = max64(sim->longest_stall, sim->now - sim->stalled_from);
        sim->stalled_from = 0;
    }
}

/* Invariant I8, checked on the grid of windows: the charge in any time L >= 100 ms is at most cap x L + savings + window
 * + kernel. Execution may lag behind its charge, so cap x (savings + window + kernel) more can fall into the same L. */
static int cap_exceeded(const struct sim *sim, unsigned i) {
    const struct tenant *t = &sim->tenant[i];
    if (!sim->config.share[i].cap || sim->config.policy != LEDGER || sim->config.charge != EXACT)
        return 0;
    int64_t bound = (int64_t)(sim->config.rules.burst_beside + sim->config.rules.window + t->longest_kernel),
            excess = 0;
    bound += bound / GH_PPM * sim->config.share[i].cap;
    for (unsigned w = 0; w < WINDOWS && w < sim->config.length / WINDOW_LENGTH; w++) {
        excess += (int64_t)t->window[w] - (int64_t)(WINDOW_LENGTH / GH_PPM * sim->config.share[i].cap);
        if (excess < 0)
            excess = 0;
        if (excess > bound)
            return 1;
    }
    return 0;
}

static void warm_up_done(struct sim *sim) {
    for (unsigned i = 0; i < sim->config.count; i++) {
        struct tenant *t = &sim->tenant[i];
        t->completed0 = sim->gpu.context[i].completed;
        t->executed0 = gpu_executed(&sim->gpu, i, sim->config.warm);
        t->charged0 = t->charged;
        t->requests = 0;
    }
}

void sim_run(struct sim *sim, const struct config *config) {
    memset(sim, 0, offsetof(struct sim, gpu));
    memset(sim->tenant, 0, config->count * sizeof *sim->tenant);
    gpu_reset(&sim->gpu, config->count);
    sim->config = *config;
    sim->gpu.slice = config->slice;
    sim->gpu.switch_loaded = config->switch_loaded;
    sim->gpu.switch_idle = config->switch_idle;
    sim->gpu.ran = ran;
    sim->gpu.finished = finished;
    sim->gpu.who = sim;
    sim->low = low_mask(config);
    sim->published.rules = config->rules;
    sim->published.present = (1ull << config->count) - 1;
    sim->lease.owner = GH_SLOTS;
    sim->victim = GH_SLOTS;
    sim->takeover = NEVER;
    uint64_t start = 10 * GH_MS; /* not 0, which means "never" in a slot */
    for (unsigned i = 0; i < config->count; i++) {
        struct tenant *t = &sim->tenant[i];
        t->program = config->program[i];
        t->rng.state = config->seed * 0x9e3779b97f4a7c15ull + i * 0xda942042e4dd58b5ull;
        rng_next(&t->rng);
        t->durations = t->program.sigma > 0 ? lognormal_table(t->program.sigma) : NULL;
        t->at = start + t->program.begin + rng_next(&t->rng) % (10 * GH_US);
        t->next_request = t->at;
        t->pacer = NEVER;
        t->waits_on = GH_SLOTS;
        if (t->program.lie == GHOST && config->policy == LEDGER)
            t->at = NEVER;
        if (t->program.lie >= GREEDY && config->policy == LEDGER)
            t->pacer = start;
        t->own.bucket.at = start;
        sim->published.share[i] = config->share[i];
        sim->published.slot[i].saturated = 1;
        sim->published.slot[i].duty = GH_PPM;
    }
    for (unsigned i = 0; i < config->count; i++)
        sim->tenant[i].view = sim->published;
    for (unsigned i = 0; i < config->count; i++)
        sim->gpu.context[i].clear_from = start;
    int warm = 0, faulted = config->fault == NO_FAULT;
    for (;;) {
        uint64_t next = sim->gpu.event;
        unsigned who = config->count, pacer = 0;
        for (unsigned i = 0; i < config->count; i++) {
            const struct tenant *t = &sim->tenant[i];
            uint64_t at = max64(t->at, t->stopped_until), step = max64(t->pacer, t->stopped_until);
            if (at < next)
                next = at, who = i, pacer = 0;
            if (step < next)
                next = step, who = i, pacer = 1;
        }
        if (!warm && next >= config->warm) {
            warm = 1;
            warm_up_done(sim);
        }
        if (!faulted && next >= config->fault_at) {
            faulted = 1;
            sim->now = config->fault_at;
            fault(sim);
            continue;
        }
        if (next >= config->length)
            break;
        sim->now = next;
        sim->events++;
        if (who == config->count)
            gpu_step(&sim->gpu);
        else if (pacer)
            shim_pacer(sim, who);
        else
            host(sim, who);
        watch_progress(sim);
    }
    sim->now = config->length;
    if (sim->stalled_from)
        sim->longest_stall = max64(sim->longest_stall, sim->now - sim->stalled_from);
    for (unsigned i = 0; i < config->count; i++)
        sim->violations.cap_exceeded += cap_exceeded(sim, i);
    sim->violations.no_progress = sim->longest_stall > 5 * GH_MS;
}

void sim_release(struct sim *sim) {
    for (unsigned i = 0; i < sim->config.count; i++)
        free(sim->tenant[i].latency.at);
    free(sim->low_free.at);
    free(sim->release.at);
}
