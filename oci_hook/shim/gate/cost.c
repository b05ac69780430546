#include "gate/cost.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#define SHORT (300 * GH_US)  /* short compared with a time slice */
#define BRIEF (20 * GH_US)   /* assumed for a collective that was never measured */
#define WAITED (5 * GH_MS)   /* a time that time slices of others do not explain */
#define UNEVEN (500 * GH_US) /* times that differ by less are described by their mean */
#define ELASTIC_SAMPLES 4u
#define QUIET_SAMPLES 4u        /* measured while nobody else had work, before the others may shorten nothing */
#define DEBT_MOST (10 * GH_S)   /* no wait at a cap is longer */
#define SAMPLES_AT_ONCE 4u      /* a key with fewer samples is measured at each launch */
#define UNCOUNTED (100 * GH_US) /* a driver's queue holds a thousand commands: a tenth of a second of such */
#define DUE_COMMANDS 32u        /* other keys are measured after so many launches */
#define DUE_TIME (200 * GH_US)  /* or after so much GPU time */
#define KIN_SAMPLES 4u          /* of a function, before its unseen shapes are guessed by it */
#define KIN_TRIED 4u            /* launches of a function that are guessed by others */
#define KIN_LEARN 32u
#define KIN_BLOCK 1024u /* a time for each block is in this part of a nanosecond */

static uint64_t mix(uint64_t x) { /* the finaliser of MurmurHash3 */
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

uint64_t cost_key(const void *handle, uint64_t grid, uint64_t block, uint64_t shared) {
    uint64_t key = mix(mix(mix((uintptr_t)handle + 1) ^ grid) ^ block << 32 ^ shared);
    return key ? key : 1;
}

struct cost *cost_of(struct cost_table *table, uint64_t key) {
    unsigned at = (unsigned)(key % GH_COSTS), worst = at;
    for (unsigned i = 0; i < 8; i++, at = (at + 1) % GH_COSTS) {
        if (table->place[at].key == key)
            return &table->place[at].cost;
        if (!table->place[at].key) {
            worst = at;
            break;
        }
        if (table->place[at].cost.cost.samples[0] < table->place[worst].cost.cost.samples[0])
            worst = at;
    }
    table->place[worst].key = key;
    table->place[worst].cost = (struct cost){0};
    return &table->place[worst].cost;
}

bool cost_due(struct cost *c, bool anyway) {
    c->unseen += gh_cost_of(&c->cost);
    c->unseen_count++;
    bool due = c->unseen_count >= DUE_COMMANDS || c->unseen >= DUE_TIME;
    if (!anyway && !due && c->cost.samples[0] >= SAMPLES_AT_ONCE && !cost_elastic(c))
        return false;
    c->unseen = c->unseen_count = 0;
    return true;
}

/* A time slice of another context lengthens a command by a millisecond or more, and hits few short commands: those
 * samples are discarded, and the other samples of queued short commands count as undisturbed. A command launched onto
 * an empty stream may have waited for another tenant's kernel, so its sample does not count as undisturbed. Samples of
 * commands that the program launched too late, so that the GPU idled, are discarded as well. */
uint64_t cost_seen(struct cost *c, uint64_t guess, uint64_t elapsed, uint64_t own_part, bool queued, bool prompt,
                   bool clean, uint64_t *waited) {
    const uint64_t low = c->low;
    /* A kernel that is new, and alone in its stream, has no other samples: it goes by others of its kind. */
    bool foreign = !low && guess < SHORT && elapsed > 3 * guess + SHORT && own_part <= WAITED;
    if (foreign && !clean && !queued && !cost_elastic(c)) {
        *waited = 0;
        return guess;
    }
    bool brief = low && low < SHORT, stood = brief && own_part > WAITED;
    bool sliced = brief && !clean && elapsed > 3 * low + SHORT;
    bool late = low && !queued && !prompt && elapsed > low + low / 4, steady = clean || (brief && queued);
    if (!low || elapsed < low)
        c->low = elapsed ? elapsed : 1;
    else
        c->low += (elapsed - low < low ? elapsed - low : low) / 64;
    /* A process of our own that seems to run beside a brief command has mostly ended: the command had its shortest time. */
    if (c->low < SHORT)
        own_part = own_part < c->low ? (c->low < elapsed ? c->low : elapsed) : own_part;
    if (clean || stood) {
        uint64_t mean = gh_cost_of(&c->cost), off = own_part > mean ? own_part - mean : mean - own_part;
        c->spread = c->cost.samples[0] ? c->spread - c->spread / 16 + off / 16 : 0;
    }
    if (clean) {
        uint64_t mean = c->cost.mean[1] / 256, off = elapsed > mean ? elapsed - mean : mean - elapsed;
        c->varies = c->cost.samples[1] ? c->varies - c->varies / 16 + off / 16 : 0;
    }
    uint64_t least = low ? c->low : BRIEF;
    *waited = c->collective && own_part > least ? own_part - least : 0;
    if ((sliced || late) && !stood && !cost_elastic(c))
        return gh_cost_of(&c->cost);
    gh_cost_learn(&c->cost, steady ? elapsed : own_part, steady);
    return stood || cost_elastic(c) ? own_part : gh_cost_charge(&c->cost, own_part, clean);
}

/* A short command took so long that a time slice of others may be in it. */
static bool holds_slice(const struct cost *c, uint64_t elapsed) { return elapsed > 3 * c->low + SHORT; }

uint64_t cost_own(const struct cost *c, uint64_t own, uint64_t most, bool capped) {
    uint64_t mean = c->cost.samples[1] >= QUIET_SAMPLES ? c->cost.mean[1] / 256 : 0;
    if (c->low && c->low < SHORT) /* these are charged their mean, and no less than their shortest time */
        return capped && !holds_slice(c, most) ? most : own;
    /* Of times that differ, neighbours can choose which ones are measured. */
    if (capped)
        return mean && c->varies <= mean / 16 ? max64(own, mean) : most;
    return max64(own, min64(age64(mean, 2 * c->varies), most));
}

bool cost_elastic(const struct cost *c) {
    return c->collective ||
           (c->cost.samples[0] >= ELASTIC_SAMPLES && c->spread > UNEVEN && c->spread > gh_cost_of(&c->cost) / 4 * 3);
}

uint64_t cost_estimate(const struct cost *c) {
    if (!c->cost.samples[0])
        return c->collective ? BRIEF : GH_COST_UNKNOWN;
    uint64_t mean = gh_cost_of(&c->cost), most = GH_COST_UNKNOWN / 2; /* sums of estimates stay below GH_COST_UNKNOWN */
    if (c->collective && c->low < mean)
        mean = c->low;
    return mean < most ? mean : most;
}

/* ---- what was not measured yet ---- */

/* The place of an id; NULL: it has none. */
static struct cost_kin *kin_find(struct cost_kin *table, uint64_t id) {
    for (unsigned i = 0; id && i < 8; i++)
        if (table[(id + i) % GH_KIN].id == id)
            return &table[(id + i) % GH_KIN];
    return NULL;
}

/* The same, or a place made for it, where the least was learned. */
static struct cost_kin *kin_of(struct cost_kin *table, uint64_t id) {
    struct cost_kin *found = kin_find(table, id);
    if (found)
        return found;
    found = &table[id % GH_KIN];
    for (unsigned i = 1; i < 8; i++)
        if (table[(id + i) % GH_KIN].samples < found->samples)
            found = &table[(id + i) % GH_KIN];
    *found = (struct cost_kin){.id = id};
    return found;
}

/* steady: the time contains none of others. Else a long one counts as a usual long one. */
static void kin_learn(struct cost_kin *kin, uint64_t took, uint64_t blocks, bool steady) {
    double ns = (double)took / (double)blocks * KIN_BLOCK;
    uint64_t each[2] = {took, (uint64_t)ns};
    kin->most = kin->most > blocks ? kin->most : blocks;
    int64_t n = kin->samples += kin->samples < KIN_LEARN;
    for (int i = 0; i < 2; i++) {
        uint64_t usual = kin->mean[i] + kin->off[i];
        if (!steady && n > KIN_SAMPLES && each[i] > usual)
            each[i] = usual;
        int64_t mean = (int64_t)kin->mean[i], differs = (int64_t)each[i] - mean, off = (int64_t)kin->off[i];
        kin->mean[i] = (uint64_t)(mean + differs / n);
        kin->off[i] = n > 1 ? (uint64_t)(off + ((differs < 0 ? -differs : differs) - off) / (n - 1)) : 0;
    }
}

static bool kin_knows(const struct cost_kin *kin) { return kin && kin->samples >= KIN_SAMPLES; }

static uint64_t kin_guess(const struct cost_kin *kin, uint64_t blocks) {
    /* For each block, if these times differ less (by their means): off1 / mean1 < off0 / mean0. */
    int by = (double)kin->off[1] * (double)kin->mean[0] < (double)kin->off[0] * (double)kin->mean[1];
    if (blocks / 2 > kin->most || kin->off[by] > kin->mean[by])
        return GH_COST_UNKNOWN;
    double guess = (double)(kin->mean[by] + kin->off[by]) * (by ? (double)blocks / KIN_BLOCK : 1);
    return guess < GH_COST_UNKNOWN / 2 ? (uint64_t)guess : GH_COST_UNKNOWN / 2;
}

/* The closest kin of which enough is known decides, even if their times differ too much. Those of the command's own
 * function may be as unlike the others as they want; until some are measured, only a few go by the others' times. */
uint64_t cost_guess(struct cost_table *table, const struct cost *c) {
    const struct cost_what *w = &c->what;
    if (c->cost.samples[0] || !w->blocks || c->collective)
        return cost_estimate(c);
    const struct cost_kin *own = kin_find(table->function, w->function), *kin = own;
    if (!kin_knows(kin)) {
        if (own && own->tried >= own->samples + KIN_TRIED)
            return GH_COST_UNKNOWN;
        kin = kin_find(table->name, w->name);
    }
    if (!kin_knows(kin))
        kin = &table->first[w->kind];
    return kin_knows(kin) ? kin_guess(kin, w->blocks) : GH_COST_UNKNOWN;
}

void cost_launched(struct cost_table *table, const struct cost *c) {
    if (c->cost.samples[0] || !c->what.blocks)
        return;
    struct cost_kin *own = kin_of(table->function, c->what.function);
    own->tried += own->tried < KIN_LEARN;
}

void cost_kin_seen(struct cost_table *table, const struct cost *c, uint64_t took, bool steady) {
    const struct cost_what *w = &c->what;
    if (!w->blocks || cost_elastic(c) || took > GH_COST_UNKNOWN)
        return;
    struct cost_kin *own = kin_of(table->function, w->function);
    if (!own->samples)
        kin_learn(&table->first[w->kind], took, w->blocks, steady);
    kin_learn(own, took, w->blocks, steady);
    if (w->name)
        kin_learn(kin_of(table->name, w->name), took, w->blocks, steady);
}

void cost_forget(struct cost_table *table, uint64_t key) {
    struct cost_kin *kin = kin_find(table->function, key); /* of a graph */
    if (kin)
        *kin = (struct cost_kin){0};
    *cost_of(table, key) = (struct cost){0};
}

/* Names in libraries that many programs use. */
bool cost_is_collective(const char *name) {
    static const char *const parts[] = {"nccl",          "nvshmem",        "allreduce",          "all_reduce",
                                        "allgather",     "all_gather",     "alltoall",           "all_to_all",
                                        "reducescatter", "reduce_scatter", "cross_device_reduce"};
    for (; *name; name++)
        for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
            if (!strncasecmp(name, parts[i], strlen(parts[i])))
                return true;
    return false;
}

bool cost_is_brief(const struct cost *c) {
    return c->cost.samples[0] >= SAMPLES_AT_ONCE && gh_cost_of(&c->cost) <= UNCOUNTED && !cost_elastic(c);
}

bool cost_sure(const struct cost *c) {
    return c->cost.samples[1] >= GH_LEARN_CLEAN || c->cost.mean[0] / 256 > GH_COST_LONG;
}

static uint64_t span_most(uint32_t cap, uint64_t burst) { return burst * GH_PPM / cap; }

static uint64_t clipped(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now) {
    uint64_t most = span_most(cap, burst);
    return (int64_t)(now - credit) > (int64_t)most ? now - most : credit;
}

struct gh_bucket cost_bucket(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now) {
    int64_t span = (int64_t)(now - clipped(credit, cap, burst, now)), bottom = -1000 * (int64_t)GH_S;
    return (struct gh_bucket){.level = (span < bottom ? bottom : span) * (int64_t)cap, .at = now};
}

uint64_t cost_take(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now, int64_t charge) {
    const int64_t most = 1000 * (int64_t)GH_S;
    charge = charge > most ? most : charge < -most ? -most : charge;
    uint64_t after = clipped(credit, cap, burst, now) + (uint64_t)(charge * (int64_t)GH_PPM / (int64_t)cap);
    return (int64_t)(after - now) > (int64_t)DEBT_MOST ? now + DEBT_MOST : after;
}
