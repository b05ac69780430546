#include "memory/late_free.h"

#include <stdlib.h>

#include "driver/real.h"
#include "memory/charge.h"
#include "memory/piece.h"

/* On a thread of the driver, which must not be asked anything here. Without a note, the memory has gone with its
 * context, and another thread may be at late_address. */
static void freed(void *with) {
    struct gh_state *st = gh_here();
    struct late *late = with;
    uint64_t key = key_of(LATE, (uintptr_t)late), value = st ? gh_pointers_take(&st->pointers, key) : 0;
    if (!value)
        return;
    if (kind_of(value) == SHARED)
        shared_freed(st, late->address);
    else
        release_note(st, value);
    free(late);
}

bool free_later(struct gh_state *st, CUstream stream, CUdeviceptr address, uint64_t value) {
    struct late *late = malloc(sizeof *late);
    uint64_t key = key_of(LATE, (uintptr_t)late);
    bool pushed, noted;
    if (!late)
        return false;
    late->address = address;
    stream_context(stream, &pushed);
    noted = gh_pointers_put(&st->pointers, key, value) && !REAL(cuLaunchHostFunc)(stream, freed, late);
    stream_context_left(pushed);
    if (!noted) {
        gh_pointers_take(&st->pointers, key);
        free(late);
    }
    return noted;
}
