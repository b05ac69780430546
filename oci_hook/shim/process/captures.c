#include "process/captures.h"

void captured_call_begins(struct gh_state *st) {
    int64_t until = 0;
    for (unsigned step = 0;; step++) {
        atomic_fetch_add(&st->captures.calls, 1);
        if (!atomic_load(&st->captures.ending))
            return;
        atomic_fetch_sub(&st->captures.calls, 1);
        if (!gh_wait(step, &until)) /* the thread that ends a capture has gone, or hangs */
            break;
    }
    atomic_fetch_add(&st->captures.calls, 1);
}

void captured_call_ends(struct gh_state *st) { atomic_fetch_sub(&st->captures.calls, 1); }

void captures_may_end(struct gh_state *st, bool ends) {
    int64_t until = 0;
    if (!st)
        return;
    if (ends)
        atomic_fetch_add(&st->captures.ended, 1);
    atomic_fetch_add(&st->captures.ending, 1);
    for (unsigned step = 0; atomic_load(&st->captures.calls) && gh_wait(step, &until); step++) {}
}

void captures_have_ended(struct gh_state *st) {
    if (st)
        atomic_fetch_sub(&st->captures.ending, 1);
}
