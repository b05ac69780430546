/* Account slots: this process's own, and those of processes whose memory has gone. */
#ifndef GPU_HOOK_SLOTS_H
#define GPU_HOOK_SLOTS_H

#include "process/state.h"

/* Takes an account slot. False: impossible, and the caller refuses (a line was written). */
bool gh_account_attach(struct gh_state *st);
/* The same before the driver is opened, which has to be later: a child that is forked between the two would have the
 * driver's open file, and with it our memory, but not our lock. False: no slot is free, so the driver is not to be opened
 * yet. If it fails otherwise, this process gets no device memory. */
bool gh_account_before_driver(struct gh_state *st);
/* The slots that have an owner, a bit for each; looks at all of them only if an owner has changed since. anew: whatever
 * `owners` says, since a process may have written garbage. */
const _Atomic uint64_t *gh_slots_taken(struct gh_state *st, struct gh_account_page *page, bool anew);
/* Locks a slot that is in no use by an open file of ours, and makes it ours. 0: there is none. */
unsigned gh_slot_take(struct gh_state *st, struct gh_account_page *page, int fd);
/* Clears the slot if its lock is free: then all that it counts on the GPUs has gone. */
void gh_slot_clear(struct gh_account_page *page, int fd, unsigned slot);
/* Clears the slots whose lock is free, and repairs totals that differ from the sum of the slots. */
void gh_sweep(struct gh_state *st);
/* Before memory in use is shown: clears the slots of exited processes, for at most a twentieth of the time, and does the
 * rest at most ten times a second. */
void gh_sweep_before_shown(struct gh_state *st);

#endif
