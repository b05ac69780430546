/* Accounting of the container's device memory on its account page: account_page.h, docs/internals/account-page.md. */
#ifndef GPU_HOOK_ACCOUNT_H
#define GPU_HOOK_ACCOUNT_H

#include "account/account_file.h"
#include "account/operation.h"
#include "account/slots.h"
#include "process/policy.h"
#include "process/state.h"

static inline uint64_t gh_units(uint64_t bytes) {
    return (bytes >> GH_UNIT_SHIFT) + !!(bytes & ((1u << GH_UNIT_SHIFT) - 1));
}
static inline uint64_t gh_bytes(uint64_t units) { return units << GH_UNIT_SHIFT; }

/* Charges this process `units` more, unless the container's total would pass `limit`. Sweeps before it refuses. */
enum gh_reservation gh_reserve(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t limit);
/* Charges this process `units` less; never fails. */
void gh_release(struct gh_state *st, unsigned gpu, uint64_t units);
/* Units in use of the limit on a GPU: the total and the surcharge, without the free caches. */
uint64_t gh_total(struct gh_state *st, unsigned gpu);
/* Units of the total that this process is charged. */
uint64_t gh_own_units(struct gh_state *st, unsigned gpu);
/* gh_press tells the container's other processes that memory is short; gh_pressed says whether one of them has done
 * so since the last call. */
void gh_press(struct gh_state *st, unsigned gpu);
bool gh_pressed(struct gh_state *st, unsigned gpu);
void gh_count_contexts(struct gh_state *st, unsigned gpu, int more);
/* Tells the host that an allocation of so many units waits for room on the GPU. Called again while it waits; 0: it is over. */
void gh_note_waiting(struct gh_state *st, unsigned gpu, uint64_t units);
/* Units that the container may have now under this limit. Beyond its request it has memory that must go to the host when others
 * need it: so memory that the driver cannot move there has to be within the request. fixed: it is for such memory. */
uint64_t gh_most_units(struct gh_state *st, const struct gh_limit *limit, bool fixed);
/* Notes that this process has memory that the driver cannot move to the host, until the process ends. */
void gh_note_fixed(struct gh_state *st);

#endif
