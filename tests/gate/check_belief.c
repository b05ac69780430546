/* Charges of a tenant in virtual time, beside neighbours that write what they like and do not use the GPU, or that do. In any run:
 * nothing that they write makes the charge less than what was measured while they were quiet; nor less than the time that was
 * used, but for what their weights are owed; nor, under a ceiling, less than that time at all. And the own clock, by which work is
 * overdue, goes at least as fast as beside as many neighbours with work. check_belief RUNS SEED prints nothing if all is right. */
#include <stdlib.h>
#include <string.h>

#include "gate/cost.h"
#include "gate/usage.h"

#include "check.h"

enum { ME = 2, MOST = 8 };
static const uint64_t second = GH_S;

static uint64_t state;
static uint64_t draw(void) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static uint64_t below(uint64_t n) { return draw() % n; }

/* What neighbours say: how many of their processes have work. */
enum habit { QUIET, ONE, MANY, FLICKER, ANYTHING, HABITS };

static struct run {
    struct gh_gpu gpu;
    struct belief belief;
    struct usage usage;
    struct gh_slot_head head;
    struct cost_table costs;
    uint8_t claimed[GH_SLOTS];
    enum habit habit[GH_SLOTS];
    uint64_t now, seen, used, charged, own_clock, wall, busy_wall;
    bool truth; /* the neighbours do use the GPU, whenever they say so */
} r;

static void write_claims(void) {
    uint64_t others = r.gpu.present & ~(1ull << ME);
    for (unsigned i = 0; i < GH_SLOTS; i++) {
        if (!(others >> i & 1))
            continue;
        unsigned n = r.habit[i] == ONE       ? 1
                     : r.habit[i] == MANY    ? GH_SLOT_PROCESSES
                     : r.habit[i] == FLICKER ? (unsigned)(r.now / (7 * GH_MS) % 2 * 16)
                                             : 0;
        r.claimed[i] = (uint8_t)(r.habit[i] == ANYTHING ? below(GH_SLOT_PROCESSES + 1) : n);
        struct gh_slot *s = &r.gpu.slot[i];
        *s = (struct gh_slot){.launched = r.claimed[i] ? 2 : 1, .done = 1, .saturated = 1, .duty = GH_PPM};
        s->heartbeat = s->done_at = s->active_at = r.now;
        s->v = r.habit[i] == ANYTHING ? draw() : s->v;
        s->held = r.habit[i] == ANYTHING && below(2);
    }
}

static void look(bool busy) {
    write_claims();
    uint32_t contexts = 0;
    for (unsigned i = 0; i < GH_SLOTS; i++)
        contexts += r.claimed[i];
    r.gpu.slot[ME].launched = r.gpu.slot[ME].done + busy;
    r.gpu.slot[ME].heartbeat = r.gpu.slot[ME].active_at = r.now;
    r.own_clock += (r.now - r.seen) * usage_pace(&r.usage) / GH_PPM;
    struct believed b =
        belief_look(&r.belief, &r.gpu, ME, r.now, r.now - r.seen, busy, r.claimed, usage_siblings(&r.usage) + 1);
    r.gpu.seen = r.seen = r.now;
    usage_looked(&r.usage, r.now, contexts, b, false);
}

static void begin(unsigned neighbours, bool fair) {
    memset(&r, 0, sizeof r);
    r.now = r.seen = 100 * second;
    gh_rules_default(&r.gpu.rules);
    r.gpu.present = 1ull << ME;
    for (unsigned i = 0; neighbours; i++)
        if (i != ME)
            r.gpu.present |= 1ull << i, neighbours--;
    for (unsigned i = 0; i < GH_SLOTS; i++) {
        r.gpu.share[i] = (struct gh_share){.class_ = 1, .weight = (uint16_t)(fair ? 50 : 1 + below(100))};
        belief_forget(&r.belief, i);
    }
    usage_begin(&r.usage, &r.head, r.now);
    look(false);
}

static void habits(enum habit habit) {
    for (unsigned i = 0; i < GH_SLOTS; i++)
        r.habit[i] = habit == HABITS ? (enum habit)(1 + below(HABITS - 1)) : habit;
}

/* The GPU runs one kernel of that length, which the program waits for. Returns its charge. */
static uint64_t kernel(uint64_t key, uint64_t length) {
    struct cost *cost = cost_of(&r.costs, key);
    uint64_t guess = cost_guess(&r.costs, cost), begin = r.now, left = length, before = r.charged;
    usage_launched(&r.usage, 1, true, r.now);
    look(true);
    while (left) {
        uint64_t step = 50 * GH_US + below(150 * GH_US), contexts = 1;
        for (unsigned i = 0; r.truth && i < GH_SLOTS; i++)
            contexts += r.claimed[i];
        step = step / contexts < left ? step : left * contexts;
        left -= step / contexts < left ? step / contexts : left;
        r.now += step;
        if (left)
            look(true);
    }
    uint64_t elapsed = r.now - begin, waited;
    bool capped = r.gpu.share[ME].cap;
    struct usage_part part = usage_own_part(&r.usage, r.now, elapsed, false);
    uint64_t own = part.clean ? part.own : cost_own(cost, part.own, part.most, capped);
    uint64_t charge = cost_seen(cost, guess, elapsed, own, false, true, part.clean, &waited);
    r.charged += usage_charge(&r.usage, &r.gpu, ME, r.now, charge);
    r.used += length;
    r.wall += elapsed;
    r.gpu.slot[ME].done++;
    look(true);
    return r.charged - before;
}

static void rest(uint64_t time) {
    for (uint64_t until = r.now + time; r.now < until; look(false))
        r.now += 100 * GH_US;
}

static uint64_t length_of(void) { return 300 * GH_US << below(10); } /* 0.3 to 150 ms */

/* Part of the time that the neighbours are owed while I want all of it, in ppm. */
static uint64_t owed_to_others(void) {
    uint64_t all = 0;
    for (uint64_t left = r.gpu.present; left; left &= left - 1)
        all += r.gpu.share[__builtin_ctzll(left)].weight;
    return GH_PPM - r.gpu.share[ME].weight * (uint64_t)GH_PPM / all;
}

/* It was measured while they were quiet. */
static void no_less_than_what_was_measured(void) {
    begin(1 + (unsigned)below(MOST), below(2));
    uint64_t length = length_of();
    habits(QUIET);
    for (int i = 0; i < 8; i++, rest(2 * GH_MS))
        kernel(1, length);
    habits(HABITS);
    uint64_t had = r.charged, n = 20 + second / length / 4;
    for (uint64_t i = 0; i < n; i++)
        kernel(1, length);
    CHECK(r.charged - had >= n * length * 97 / 100);
}

/* They have always said something. Kernels of one shape, of many, or of different lengths. */
static void no_less_than_what_they_are_owed(void) {
    unsigned neighbours = 1 + (unsigned)below(MOST);
    begin(neighbours, below(2));
    habits(HABITS);
    uint64_t kind = below(3), length = length_of() + GH_MS, since = r.now;
    while (r.now - since < 5 * second)
        kernel(kind == 1 ? draw() : 1, kind == 2 ? length / 2 + below(length) : length);
    uint64_t owed = (r.now - since) / 1000 * owed_to_others() / 1000 + neighbours * BELIEF_ROOM;
    owed += r.used / 20 + length; /* what time slices lose in switches */
    CHECK(r.charged + owed >= r.used);
}

/* A ceiling's charge is what was used, from the first kernel on. */
static void a_ceiling_holds(void) {
    begin(1 + (unsigned)below(MOST), below(2));
    r.gpu.share[ME].cap = GH_PPM / 10 * 3;
    habits(below(2) ? HABITS : MANY);
    uint64_t kind = below(3), length = length_of(), since = r.now;
    while (r.now - since < 3 * second)
        kernel(kind == 1 ? draw() : 1, kind == 2 ? length / 2 + below(length) : length);
    CHECK(r.charged * 100 >= r.used * 97);
    CHECK(r.charged <= r.now - since);
}

static void the_own_clock_goes_on(void) {
    unsigned neighbours = 1 + (unsigned)below(MOST);
    begin(neighbours, below(2));
    habits(HABITS);
    uint64_t since = r.now, began = r.own_clock;
    for (int i = 0; i < 10; i++)
        kernel(draw(), 20 * GH_MS);
    CHECK((r.own_clock - began) * (1 + neighbours) >= (r.now - since) * 99 / 100);
}

/* Who does have work has had its part of the time: a tenant beside an equal is charged what it used. */
static void honest_neighbours_cost_nothing(void) {
    begin(1, true);
    habits(ONE);
    r.truth = true;
    uint64_t length = GH_MS + length_of(), since = r.now;
    while (r.now - since < 3 * second)
        kernel(below(2), length);
    CHECK(r.charged * 100 >= r.used * 90 && r.charged * 100 <= r.used * 104);
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = 0; i < runs && !wrong; i++) {
        no_less_than_what_was_measured();
        no_less_than_what_they_are_owed();
        a_ceiling_holds();
        the_own_clock_goes_on();
        honest_neighbours_cost_nothing();
    }
    return wrong;
}
