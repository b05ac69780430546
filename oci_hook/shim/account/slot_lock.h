/* The lock of an account slot: the only proof that the memory which the slot counts may still be in use.
 *
 * A GPU's memory goes when the last reference to the driver's open file goes, and fork passes references on. So do our
 * locks (OFD locks, Linux 3.15), which a process takes before it opens the driver, on two bytes of the account page's file:
 *
 * - byte SLOT by an open file that two descriptors keep: one of the file, one of a socket in whose queue a reference waits;
 * - byte SLOT + 1024 by an open file that a mapping alone keeps.
 *
 * A forked child inherits all of them; exec and the end of a process drop them. What a process lets go of is released
 * later, one file after the other, and each may take long. The first lock outlives every file that a table of descriptors
 * held, the second one every file that mappings held: docs/internals/account-page.md. A slot is free when both are. */
#ifndef GPU_HOOK_SLOT_LOCK_H
#define GPU_HOOK_SLOT_LOCK_H

#include "process/state.h"

/* Opens the page's file anew, for the calls below; close it by gh_slot_locks_close. -1: impossible, or another file is now
 * in its place: then every slot counts as locked. */
int gh_slot_locks_open(const struct gh_state *st);
void gh_slot_locks_close(int fd);
/* False: the kernel, or a filter of system calls, has no such locks. */
bool gh_slot_locks_work(int fd);
/* Locks a slot: both bytes. False: someone else has one of them locked, or fd is -1. */
bool gh_slot_lock(int fd, unsigned slot);
void gh_slot_unlock(int fd, unsigned slot);
/* True if someone else has locked a slot. In doubt someone has. */
bool gh_slot_locked(int fd, unsigned slot);
/* Keeps fd's locks of first bytes as long as a process has its descriptors. Returns fd, or a higher number in its place. */
int gh_slot_locks_keep(int fd);
/* With st->shared_lock held: the descriptor of our own slot's lock, through which we hold shared slots as well. If the
 * program closed it, there is a new one, and what is held by the old one stays so until the process ends. -1: impossible. */
int gh_slot_locks_file(struct gh_state *st);
/* Keeps a slot's second byte, of which fd has the lock, as long as a process has the mapping that is returned. NULL:
 * impossible. */
void *gh_slot_keep(const struct gh_state *st, int fd, unsigned slot);
/* Makes our locks of a slot ones for reading, or takes such ones: many may have them. The second one lasts until
 * gh_slot_unshare, which gets what this returned. NULL: impossible, and nothing of the slot is locked by fd. */
void *gh_slot_share(const struct gh_state *st, int fd, unsigned slot);
void gh_slot_unshare(int fd, unsigned slot, void *kept);

#endif
