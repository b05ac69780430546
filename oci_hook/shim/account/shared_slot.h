/* Account slots of memory that several processes of the container may hold: each holder has a read lock on the slot's byte,
 * so what the slot is charged stays while any of them lives, the maker or not. */
#ifndef GPU_HOOK_SHARED_SLOT_H
#define GPU_HOOK_SHARED_SLOT_H

#include "process/state.h"

/* Moves `units` from our own slot to a slot of their own, which we then hold. known_by: what others find it by. 0: there is no
 * place, and all stays as it is. */
unsigned gh_shared_make(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t known_by);
/* Holds the slot that is known by this. 0: there is none, as for memory of another container. */
unsigned gh_shared_hold(struct gh_state *st, uint64_t known_by);
/* Lets go of a slot, once for each of the calls above. */
void gh_shared_let_go(struct gh_state *st, unsigned slot);

#endif
