#include "memory/late_free.h"

#include "driver/real.h"
#include "gate/inflight.h"
#include "memory/charge.h"
#include "memory/piece.h"

/* On a thread of the driver, which must not be asked anything here. with: the note's key, which is never used again. The
 * note may have gone with the memory's context. */
static void freed(void *with) {
    struct gh_state *st = gh_here();
    uint64_t key = (uintptr_t)with, value = st ? gh_pointers_take(&st->pointers, key) : 0;
    if (kind_of(value) == SHARED)
        shared_freed(st, late_address(st, key));
    else if (value)
        release_note(st, value);
}

bool free_later(struct gh_state *st, CUstream stream, CUdeviceptr address, uint64_t value) {
    uint64_t key = key_of(LATE, atomic_fetch_add(&st->frees_late, 2) + 2);
    struct gone_to to;
    bool told = false;
    if (kind_of(value) == SHARED && !gh_pointers_put(&st->pointers, key + 1, address))
        return false;
    stream_context(stream, &to);
    if (gh_pointers_put(&st->pointers, key, value))
        told = !REAL(cuLaunchHostFunc)(stream, freed, (void *)(uintptr_t)key) && !stream_capturing(stream);
    stream_context_left(&to);
    if (told || !gh_pointers_take(&st->pointers, key))
        return true;
    gh_pointers_take(&st->pointers, key + 1);
    return false;
}
