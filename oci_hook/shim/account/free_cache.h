/* What a process keeps for itself of the memory it frees, so that processes which allocate and free all the time need
 * not write the one total in turns. It stays in the process's share and in the total, and whoever needs it takes it. */
#ifndef GPU_HOOK_SPARE_H
#define GPU_HOOK_SPARE_H

#include "process/state.h"

/* All but the last three: for the slot's owner, who holds mine->lock. */

/* Another process wrote the total at the same moment: for a while what is freed is kept, if the container has plenty.
 * used, limit: units; used: what counts against the limit. */
void gh_spare_begin(struct gh_account_page *page, unsigned gpu, struct gh_mine *mine, uint64_t used, uint64_t limit);
/* Allocates (delta > 0) from what was kept, or keeps what is freed. False: it has to be done by the total. */
bool gh_spare_do(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine, int64_t delta,
                 uint64_t limit);
/* Keeps nothing any more: what was kept counts as used. How much it was, to be given back, in units. */
uint64_t gh_spare_end(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine);
/* Puts right what someone scribbled over. */
void gh_spare_restate(struct gh_account_page *page, unsigned slot, unsigned gpu, const struct gh_mine *mine);

/* For the sweeper of a dead owner's slot: nobody takes anything any more. What was taken so far, in units. */
uint64_t gh_spare_settle(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* Takes what others keep, and what we keep: the shares become smaller, the total does not; the caller repairs it. */
void gh_spare_take(struct gh_account_page *page, unsigned gpu);
/* How much all keep, in units: it is in the total, and free for whoever asks. */
uint64_t gh_spare_sum(struct gh_account_page *page, unsigned gpu);

#endif
