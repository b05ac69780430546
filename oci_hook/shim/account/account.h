/* Accounting of the container's device memory on its account page: account_page.h, docs/internals/account-page.md. */
#ifndef GPU_HOOK_ACCOUNT_H
#define GPU_HOOK_ACCOUNT_H

#include "process/state.h"

enum gh_reservation { GH_RESERVED, GH_NO_ROOM, GH_NO_ACCOUNT };

#define GH_UNLIMITED GH_VALUE_MAX

static inline uint64_t gh_units(uint64_t bytes) {
    return (bytes >> GH_UNIT_SHIFT) + !!(bytes & ((1u << GH_UNIT_SHIFT) - 1));
}
static inline uint64_t gh_bytes(uint64_t units) { return units << GH_UNIT_SHIFT; }

/* Whether the process that took an account slot with these words still runs the same program. In doubt it does. */
bool gh_account_slot_alive(const struct gh_state *st, unsigned slot, uint64_t owner, uint64_t stack);

/* Maps the page and takes an account slot. False: neither is possible, and the caller refuses (a line was written). */
bool gh_account_attach(struct gh_state *st);
/* Maps the page without taking a slot, for callers that only read. NULL: no page. */
struct gh_account_page *gh_account_page(struct gh_state *st);
/* Charges this process `units` more, unless the container's total would pass `limit`. Sweeps before it refuses. */
enum gh_reservation gh_reserve(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t limit);
/* Charges this process `units` less; never fails. */
void gh_release(struct gh_state *st, unsigned gpu, uint64_t units);
/* Units in use of the limit on a GPU: the total and the surcharge, without the free caches. */
uint64_t gh_total(struct gh_state *st, unsigned gpu);
/* Units of the total that this process is charged. */
uint64_t gh_own_units(struct gh_state *st, unsigned gpu);
/* Releases what exited processes were charged, and repairs totals that differ from the sum of the slots. */
void gh_sweep(struct gh_state *st);
/* The same, at most ten times a second. */
void gh_sweep_now_and_then(struct gh_state *st);
/* Units that the owner of a slot is charged, including a running operation. The total is the sum of these. */
uint64_t gh_account_slot_charged(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* The same without its free cache: what the process uses. */
uint64_t gh_account_slot_used(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* gh_press tells the container's other processes that memory is short; gh_pressed says whether one of them has done
 * so since the last call. */
void gh_press(struct gh_state *st, unsigned gpu);
bool gh_pressed(struct gh_state *st, unsigned gpu);
void gh_count_contexts(struct gh_state *st, unsigned gpu, int more);

#endif
