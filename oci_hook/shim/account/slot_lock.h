/* The lock of an account slot: the only proof that the memory which the slot counts may still be in use.
 *
 * A GPU's memory goes when the last reference to the driver's open file goes, and fork passes references on. So does our
 * lock: a process locks byte SLOT of the account page (an OFD lock, Linux 3.15) through an open file of its own, before it
 * opens the driver, and keeps that open file by a mapping alone. A forked child inherits the mapping; exec and the end of
 * the process drop it; no descriptor stays open that a program could close or use for something else. */
#ifndef GPU_HOOK_SLOT_LOCK_H
#define GPU_HOOK_SLOT_LOCK_H

#include "process/state.h"

/* Opens the page's file anew, for the calls below; close it by gh_slot_locks_close. -1: impossible, or another file is now
 * in its place: then every slot counts as locked. */
int gh_slot_locks_open(const struct gh_state *st);
void gh_slot_locks_close(int fd);
/* Locks a slot. False: someone else has it locked, or fd is -1. */
bool gh_slot_lock(int fd, unsigned slot);
void gh_slot_unlock(int fd, unsigned slot);
/* True if someone else has locked a slot. In doubt someone has. */
bool gh_slot_locked(int fd, unsigned slot);
/* Makes our lock one for reading, or takes such a one: many may have it. */
bool gh_slot_share(int fd, unsigned slot);
/* Closes fd, and keeps its locks as long as this process or a forked child has the mapping. *kept: a descriptor of the same
 * open file; -1: none. NULL: impossible. */
void *gh_slot_locks_keep(int fd, int *kept);

#endif
