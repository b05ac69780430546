/* Units that a process has freed and keeps for its next allocations, so that processes which allocate and free all the
 * time need not take turns at writing the one total. They stay charged to the process; any process that runs short of
 * memory takes them. */
#ifndef GPU_HOOK_FREE_CACHE_H
#define GPU_HOOK_FREE_CACHE_H

#include "process/state.h"

/* Only the slot's owner calls the next four, with mine->lock held. */

/* Starts caching for some operations, since another process wrote the total at the same moment; not if the container is
 * short of memory. used: units that count against `limit`, which is in units, too. */
void gh_free_cache_begin(struct gh_account_page *page, unsigned gpu, struct gh_mine *mine, uint64_t used,
                         uint64_t limit);
/* Allocates from the cache (delta > 0), or puts freed units into it. False: the caller must change the total. */
bool gh_free_cache_change(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                          int64_t delta, uint64_t limit);
/* Ends caching and empties the cache. Returns the units that were in it, which the caller releases. */
uint64_t gh_free_cache_end(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine);
/* Repairs the word of the cache if a process has overwritten it with garbage. */
void gh_free_cache_restate(struct gh_account_page *page, unsigned slot, unsigned gpu, const struct gh_mine *mine);

/* For the sweeper of an exited owner's slot: empties the cache. Returns the units that others had taken from it. */
uint64_t gh_free_cache_close(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* Takes the units in all caches, ours included. The slots are then charged less, the total is not: the caller repairs
 * it. */
void gh_free_cache_take_all(struct gh_account_page *page, unsigned gpu);
/* Units in the caches of these slots (a bit for each): in the total, but free for any allocation. */
uint64_t gh_free_cache_sum(struct gh_account_page *page, unsigned gpu, const _Atomic uint64_t *slots);

#endif
