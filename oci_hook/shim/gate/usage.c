#include "gate/usage.h"

#include "gate/cost.h"
#include "pages/arithmetic.h"
#include "process/atomics.h"

#define CARRIED (10 * GH_MS)      /* most that is owed, or room for it */
#define CLEAR_AFTER (700 * GH_US) /* until what others had in flight is off the GPU */

/* ---- our part of the time ---- */

#define RING_STEP (100 * GH_US)

/* The newest look of a ring, and the `back`th before it. */
static const struct usage_look *look_of(const struct usage_ring *r, uint64_t back) {
    return &r->look[(r->count - 1 - back) % USAGE_LOOKS];
}

static const struct usage_look *last_look(const struct usage *u) { return look_of(&u->ring[0], 0); }

static void note_look(struct usage *u, const struct usage_look *look) {
    uint64_t step = RING_STEP;
    for (unsigned i = 0; i < USAGE_RINGS; i++, step *= 10) {
        struct usage_ring *r = &u->ring[i];
        if (i && r->count && look->at - look_of(r, 0)->at < step)
            break;
        r->look[r->count++ % USAGE_LOOKS] = *look;
    }
}

void usage_begin(struct usage *u, struct gh_slot_head *head, uint64_t now) {
    u->head = head;
    u->ours = 1;
    note_look(u, &(struct usage_look){.at = now, .clear_at = now + CLEAR_AFTER, .contexts = 1});
}

uint32_t usage_contexts(const struct usage *u) { return last_look(u)->contexts; }
uint32_t usage_pace(const struct usage *u) { return (GH_PPM - last_look(u)->others.one) / u->ours; }
static uint32_t own_pace(const struct usage *u) { return (GH_PPM - last_look(u)->others.part) / u->ours; }
bool usage_clear_since(const struct usage *u, uint64_t since) { return last_look(u)->clear_at <= since; }

static uint64_t part_of(uint64_t time, uint64_t ppm) { return mul64(min64(time, 1000 * GH_S), ppm) / GH_PPM; }

void usage_looked(struct usage *u, uint64_t now, uint32_t others, struct believed believed, bool halted) {
    const struct usage_look *last = last_look(u);
    uint64_t elapsed = now - last->at;
    struct usage_look next = {.at = now, .mine = last->mine, .most = last->most, .others = believed};
    if (!halted) {
        next.mine += part_of(elapsed, own_pace(u));
        next.most += elapsed / u->ours;
    }
    if (u->turns)
        u->busy_lost += part_of(elapsed, last->others.part);
    u->ours = u->siblings + 1;
    next.contexts = u->ours + others;
    if (next.contexts > 1)
        next.clear_at = UINT64_MAX;
    else
        next.clear_at = last->clear_at == UINT64_MAX ? now + CLEAR_AFTER : last->clear_at;
    note_look(u, &next);
}

/* The last look at or before a time, and in *after the next one that is kept; if none is so old, the oldest twice. */
static const struct usage_look *look_before(const struct usage *u, uint64_t at, const struct usage_look **after) {
    const struct usage_look *oldest = last_look(u);
    for (unsigned i = 0; i < USAGE_RINGS; i++) {
        const struct usage_ring *r = &u->ring[i];
        uint64_t count = min64(r->count, USAGE_LOOKS);
        for (uint64_t back = 0; back < count; back++) {
            const struct usage_look *look = look_of(r, back);
            *after = back ? look_of(r, back - 1) : last_look(u);
            if (look->at <= at)
                return look;
            oldest = look->at < oldest->at ? look : oldest;
        }
    }
    *after = oldest;
    return oldest;
}

/* The sum at `begin`: between two looks, by their distance; since the last one, by our part of the time. */
static uint64_t sum_at(const struct usage_look *then, const struct usage_look *after, uint64_t begin, uint64_t from,
                       uint64_t to, uint64_t pace) {
    if (after->at > then->at)
        return from + (to - from) * min64(age64(begin, then->at), after->at - then->at) / (after->at - then->at);
    return from + part_of(age64(begin, then->at), pace);
}

struct usage_part usage_own_part(const struct usage *u, uint64_t now, uint64_t elapsed, bool halted) {
    uint64_t begin = now - min64(elapsed, now);
    const struct usage_look *after, *then = look_before(u, begin, &after), *last = last_look(u);
    struct usage_part part = {.own = elapsed, .most = elapsed, .clean = last->clear_at <= begin};
    if (now <= begin)
        return part;
    uint64_t since = halted ? 0 : age64(now, last->at), pace = own_pace(u), alone = GH_PPM / u->ours;
    uint64_t own = last->mine + part_of(since, pace), most = last->most + part_of(since, alone);
    own -= min64(own, sum_at(then, after, begin, then->mine, after->mine, pace));
    most -= min64(most, sum_at(then, after, begin, then->most, after->most, alone));
    part.own = gh_less_switches(min64(own, elapsed), elapsed, max64(last->contexts, then->contexts));
    part.most = min64(most, elapsed);
    return part;
}

/* ---- charges ---- */

void usage_launched(struct usage *u, unsigned stream, bool first, uint64_t now) {
    if (first) {
        u->busy_since = u->busy_until = now;
        u->busy_charged = u->busy_lost = 0;
        u->busy_stream = stream;
        u->busy_parallel = false;
    }
    u->busy_parallel |= u->busy_stream != stream;
}

void usage_measured(struct usage *u, uint64_t elapsed) { u->longest = max64(elapsed, u->longest - u->longest / 256); }

/* Several processes of the container may raise v at once. */
static void raise_v(struct usage *u, struct gh_rise rise) {
    uint64_t *v = &u->head->v, old = WORD_LOAD_RELAXED(v);
    while (!__atomic_compare_exchange_n(v, &old, gh_risen(&rise, old), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

void usage_wake(struct usage *u, const struct gh_gpu *gpu, unsigned me) {
    raise_v(u, (struct gh_rise){.by = UINT64_MAX, .most = gh_wake_v(gpu, me)});
}

uint64_t usage_charge(struct usage *u, const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t cost) {
    /* Streams ran in parallel: together they are charged no more than the time that has passed. */
    bool capped = gpu->share[me].cap, sole = capped || usage_contexts(u) == 1;
    uint64_t wall = age64(now, u->busy_since), alone = sole ? age64(now, u->busy_until) : 0;
    if (u->busy_parallel && !capped) /* a ceiling holds whatever others say that they had */
        wall -= min64(u->busy_lost, wall);
    uint64_t charge = min64(cost, wall - min64(u->busy_charged, wall));
    u->busy_until = now;
    /* Of one stream, commands that cost more than that were shorter than their key's mean. Others are longer, and pay for
     * them, but only out of time in which nobody else had work: else that might be the time of others. */
    if (!u->busy_parallel) {
        uint64_t owed = u->owed + cost - charge;
        u->room = min64(age64(u->room + alone, charge), CARRIED);
        uint64_t paid = min64(owed, u->room);
        u->owed = min64(owed - paid, CARRIED);
        u->room -= paid;
        charge += paid;
    }
    u->busy_charged += charge;
    if (charge) {
        raise_v(u, gh_charge(gpu, me, charge));
        __atomic_add_fetch(&u->head->charged, charge, __ATOMIC_RELAXED);
    }
    WORD_STORE_RELEASE(&u->head->preempt_bound, gh_window(gpu, me) + u->longest);
    return charge;
}

void usage_take_credit(struct usage *u, uint32_t cap, uint64_t burst, uint64_t now, int64_t charge) {
    uint64_t *credit = &u->head->credit, old = WORD_LOAD_RELAXED(credit);
    while (cap && charge &&
           !__atomic_compare_exchange_n(credit, &old, cost_take(old, cap, burst, now, charge), false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
        ;
}

void usage_wait_credit(struct usage *u, uint64_t now, uint64_t waited) {
    uint64_t *credit = &u->head->credit, old = WORD_LOAD_RELAXED(credit), next;
    do /* no more than what is there: it may have been full since before the wait */
        next = max64(old, min64(add64(old, waited), now));
    while (next != old && !__atomic_compare_exchange_n(credit, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

void usage_cap_begins(struct usage *u, uint64_t now) {
    uint64_t *credit = &u->head->credit, old = WORD_LOAD_RELAXED(credit);
    while (old < now && !__atomic_compare_exchange_n(credit, &old, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

struct gh_bucket usage_bucket(const struct usage *u, uint32_t cap, uint64_t burst, uint64_t now) {
    return cost_bucket(WORD_LOAD_RELAXED(&u->head->credit), cap, burst, now);
}
