/* One operation on one account slot and GPU. After a kill at any instruction, others can tell whether it took effect. */
#ifndef GPU_HOOK_OPERATION_H
#define GPU_HOOK_OPERATION_H

#include "process/state.h"

enum gh_reservation { GH_RESERVED, GH_NO_ROOM, GH_NO_ACCOUNT };

#define GH_UNLIMITED GH_VALUE_MAX

/* Adds `delta` to what the slot is charged, and to the total. Only one thread writes a slot at a time. */
enum gh_reservation gh_add(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                           int64_t delta, uint64_t limit);
/* True if the slot's operation `tag` took effect. */
bool gh_took_effect(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t tag);
/* Before the total `w` is overwritten: notes for its writer that its operation took effect, unless its slot says so
 * already. me: the slot of the caller, 0 none. */
void gh_acknowledge(struct gh_account_page *page, unsigned gpu, uint64_t w, unsigned me);
/* Units that the owner of a slot is charged, including a running operation. The total is the sum of these. */
uint64_t gh_account_slot_charged(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* The same without its free cache: what the process uses. */
uint64_t gh_account_slot_used(struct gh_account_page *page, unsigned slot, unsigned gpu);

#endif
