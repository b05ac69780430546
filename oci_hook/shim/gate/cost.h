/* Learned GPU time per command: a fixed table by key. A key is a function with its grid, block and shared memory, a
 * graph that can be launched, or a copy's size. */
#ifndef GPU_HOOK_COST_H
#define GPU_HOOK_COST_H

#include <stdbool.h>

#include "gate/decide.h"

#define GH_COSTS 4096u

/* What is learned of a key, its shortest time of late, by how much its times differ from their mean, and what was
 * launched since it was last measured. */
struct cost {
    struct gh_cost cost;
    uint64_t low, spread, unseen;
    uint32_t unseen_count;
    bool collective; /* waits for other processes' kernels, and says so by its name */
};

struct cost_table {
    struct {
        uint64_t key; /* 0 free */
        struct cost cost;
    } place[GH_COSTS];
};

uint64_t cost_key(const void *handle, uint64_t grid, uint64_t block, uint64_t shared);
/* The key's cost; a new one when it was not there, in the place of another one when the table is full. */
struct cost *cost_of(struct cost_table *table, uint64_t key);
/* Its time depends on what others do: by its name or its variance. Such a command is measured at each launch. */
bool cost_elastic(const struct cost *cost);
/* A kernel that by its name is part of a collective operation of several processes. */
bool cost_is_collective(const char *name);
/* What a launch of it is reckoned to take: a collective as long as when it need not wait. */
uint64_t cost_estimate(const struct cost *cost);
/* One more is launched; `anyway`: with an event behind it. True: it is to be measured. Counted by key, so that a program
 * that synchronises after each kernel, or takes turns between kernels, is measured like others. */
bool cost_due(struct cost *cost, bool anyway);
/* One measured command. queued: it was put behind others; prompt: the program launched it at once; shared: the part of
 * its time that was its context's; clean: nobody else had work. Returns what it is charged; *waited: the part of that in
 * which a collective may only have waited for others. */
uint64_t cost_seen(struct cost *cost, uint64_t elapsed, uint64_t shared, bool queued, bool prompt, bool clean,
                   uint64_t *waited);
/* Enough was seen to believe it. */
bool cost_sure(const struct cost *cost);
void cost_forget(struct cost_table *table, uint64_t key);

/* A bucket in one word, so that a container's processes can share it: the time at which it would have been empty. */
struct gh_bucket cost_bucket(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now);
uint64_t cost_take(uint64_t credit, uint32_t cap, uint64_t burst, uint64_t now, int64_t charge);

#endif
