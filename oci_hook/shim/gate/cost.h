/* Learned GPU time of commands: a table by key. A key stands for a function with its grid, block and shared memory, for
 * a graph, or for a size of copy. A key not measured yet is guessed by its kin. */
#ifndef GPU_HOOK_COST_H
#define GPU_HOOK_COST_H

#include <stdbool.h>

#include "gate/decide.h"

#define GH_COSTS 4096u

enum cost_kind { COST_COPY, COST_KERNEL, COST_GRAPH, COST_KINDS };

#define COST_COPIES 1u /* in place of a handle */

/* What a command is, apart from its key. */
struct cost_what {
    enum cost_kind kind;
    uint64_t function, name; /* hashes of handle and name; 0: none */
    uint64_t blocks;         /* of a kernel's grid, or KiB of a copy; 0: nothing is known of the command */
};

/* Of a key: its learned cost, its shortest recent time, the mean difference of its times from their mean, and how much
 * was launched since it was last measured. */
struct cost {
    struct gh_cost cost;
    uint64_t low, spread, unseen;
    uint64_t varies; /* mean difference of the times that were measured while nobody else had work from their mean */
    uint32_t unseen_count;
    bool collective; /* by its name, it waits for kernels of other processes */
    struct cost_what what;
};

/* What related commands took: [0] for each, [1] for each of their blocks. */
struct cost_kin {
    uint64_t id, most;        /* blocks of the largest one */
    uint64_t mean[2], off[2]; /* off: how far the times are from their mean, on average */
    uint32_t samples;
    uint32_t tried; /* launches before anything was known of it */
};

#define GH_KIN 512u

struct cost_table {
    struct cost_kin function[GH_KIN], name[GH_KIN];
    struct cost_kin first[COST_KINDS]; /* the first command of each function, of each graph */
    struct {
        uint64_t key; /* 0 free */
        struct cost cost;
    } place[GH_COSTS];
};

static inline unsigned cost_place(const struct cost_table *table, const struct cost *cost) {
    return (unsigned)(((const char *)cost - (const char *)table->place) / sizeof *table->place);
}

uint64_t cost_key(const void *handle, uint64_t grid, uint64_t block, uint64_t shared);
/* The cost of a key. A new key gets an empty one, which replaces another key if the table is full. */
struct cost *cost_of(struct cost_table *table, uint64_t key);
/* The same for a caller that asks again: *place is where it was found, and 0 at first. */
static inline struct cost *cost_again(struct cost_table *table, uint64_t key, unsigned *place) {
    if (*place && table->place[*place - 1].key == key)
        return &table->place[*place - 1].cost;
    struct cost *found = cost_of(table, key);
    *place = 1 + cost_place(table, found);
    return found;
}
/* True if its time depends on others, by its name or its variance. Such a command is measured at each launch. */
bool cost_elastic(const struct cost *cost);
/* True if a kernel with this name belongs to a collective operation of several processes. */
bool cost_is_collective(const char *name);
/* Estimated GPU time of a launch; for a collective, without its wait for others. */
uint64_t cost_estimate(const struct cost *cost);
/* The same for a key that was not measured yet: by other launches of its function, else by functions of its name, else by
 * the first launches of other functions, four times at most. Nothing is guessed if these times, or their times for each
 * block, differ much, or if the launch is much larger than all of them. */
uint64_t cost_guess(struct cost_table *table, const struct cost *cost);
/* One more launch of a key, which the guess is for. */
void cost_launched(struct cost_table *table, const struct cost *cost);
/* A command of that cost took so long, without what others had of the time. steady: that contains no wait for others. */
void cost_kin_seen(struct cost_table *table, const struct cost *cost, uint64_t took, bool steady);
/* One more launch of this key; anyway: it gets an event in any case. True: measure it. Counted by key, so that a program
 * which synchronises after each kernel, or alternates kernels, is measured like others. */
bool cost_due(struct cost *cost, bool anyway);
/* A command was measured. guess: its estimate at the launch; queued: it was launched behind others; prompt: the
 * program launched it without delay; own_part: its context's part of `elapsed`; clean: nobody else had work. Returns
 * its charge; *waited: the part of the charge in which a collective may only have waited for other processes. */
uint64_t cost_seen(struct cost *cost, uint64_t guess, uint64_t elapsed, uint64_t own_part, bool queued, bool prompt,
                   bool clean, uint64_t *waited);
/* A command's own part of its time while others said that they had work. They cannot make it less than what was measured
 * while they were quiet. own: by what they are believed to have had; most: if they had nothing. capped: under a ceiling, which
 * nobody's word may lift, it is `most`, unless its cost is known and always the same. */
uint64_t cost_own(const struct cost *cost, uint64_t own, uint64_t most, bool capped);
/* True if enough was measured to rely on it. */
bool cost_sure(const struct cost *cost);
/* True if it is known to take so little that it need not be counted while nobody else is active. */
bool cost_is_brief(const struct cost *cost);
void cost_forget(struct cost_table *table, uint64_t key);

/* A bucket as one word, which the processes of a container share: the time at which it would have been empty. */
struct gh_bucket cost_bucket(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now);
uint64_t cost_take(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now, int64_t charge);

#endif
