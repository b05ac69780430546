/* The container's memory books: see account_page.h and docs/internals/account-page.md. */
#ifndef GPU_HOOK_ACCOUNT_H
#define GPU_HOOK_ACCOUNT_H

#include "process/state.h"

enum gh_booked { GH_BOOKED, GH_NO_ROOM, GH_NO_BOOKS };

#define GH_UNLIMITED GH_VALUE_MAX

static inline uint64_t gh_units(uint64_t bytes) {
    return (bytes >> GH_UNIT_SHIFT) + !!(bytes & ((1u << GH_UNIT_SHIFT) - 1));
}
static inline uint64_t gh_bytes(uint64_t units) { return units << GH_UNIT_SHIFT; }

/* Whether the process that took an account slot with these words still runs, with the same program. In doubt it does. */
bool gh_account_slot_alive(const struct gh_state *st, unsigned slot, uint64_t owner, uint64_t stack);

/* Maps the page and takes a slot. False: no books, the caller refuses (a line was written). */
bool gh_account_attach(struct gh_state *st);
/* Maps the page without taking a slot: for those who only look. NULL: no page. */
struct gh_account_page *gh_account_page(struct gh_state *st);
/* Adds `units` to our share and the container's total, unless that would pass `limit`. Sweeps before it refuses. */
enum gh_booked gh_reserve(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t limit);
/* Gives units back; never fails. */
void gh_release(struct gh_state *st, unsigned gpu, uint64_t units);
/* What is in use of the limit on a GPU, in units: the total and the surcharge, less what any allocation can have. */
uint64_t gh_total(struct gh_state *st, unsigned gpu);
/* What of it is our own. */
uint64_t gh_own(struct gh_state *st, unsigned gpu);
/* Gives the shares of dead processes back and repairs totals that do not add up. */
void gh_sweep(struct gh_state *st);
/* The same, at most ten times a second. */
void gh_sweep_now_and_then(struct gh_state *st);
/* A process's share as its slot says, an operation under way included: what the total is the sum of. */
uint64_t gh_slot_share(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* What of that the process uses. */
uint64_t gh_slot_use(struct gh_account_page *page, unsigned slot, unsigned gpu);
/* Tells the container's other processes that memory is short, and whether they told us since the last call. */
void gh_press(struct gh_state *st, unsigned gpu);
bool gh_pressed(struct gh_state *st, unsigned gpu);
void gh_count_contexts(struct gh_state *st, unsigned gpu, int more);

#endif
