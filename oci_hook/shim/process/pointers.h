/* Entries for each device pointer and handle: a concurrent hash map in the process's own memory. */
#ifndef GPU_HOOK_POINTERS_H
#define GPU_HOOK_POINTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GH_SHARDS 16

struct gh_pointer {
    uint64_t key;   /* 0 empty */
    uint64_t value; /* packed by the caller, never 0 */
};

struct gh_shard {
    _Atomic uint32_t taken; /* a struct gh_lock */
    uint32_t bits;          /* the shard has 1 << bits cells; 0: none yet */
    uint32_t used;
    struct gh_pointer *cell;
} __attribute__((aligned(64)));

struct gh_pointers {
    struct gh_shard shard[GH_SHARDS];
};

/* False when there is no memory; then the allocation stays charged until the process ends. */
bool gh_pointers_put(struct gh_pointers *map, uint64_t key, uint64_t value);
/* Like the one above, but also false if the key is there already. */
bool gh_pointers_put_new(struct gh_pointers *map, uint64_t key, uint64_t value);
/* Adds `more` to the value of the key (0 if it is not there) and returns the sum; a pair whose sum is 0 or less goes.
 * -1 when there is no memory. */
int64_t gh_pointers_count(struct gh_pointers *map, uint64_t key, int64_t more);
/* Removes the pair and returns its value; 0 if the key is not there. */
uint64_t gh_pointers_take(struct gh_pointers *map, uint64_t key);
uint64_t gh_pointers_get(struct gh_pointers *map, uint64_t key);
/* Removes every pair for which `drop` returns true. */
void gh_pointers_filter(struct gh_pointers *map, bool (*drop)(uint64_t key, uint64_t value, void *with), void *with);

#endif
