#include "memory/late_free.h"

#include "driver/real.h"
#include "memory/charge.h"

#define AT_ONCE 64 /* events looked at in one look */
#define HANDLE ((1ull << 58) - 1)

/* An event behind the free, in the stream's context. The note is of that context, with which the event goes. */
static bool note_event(struct gh_state *st, CUstream stream, uint64_t value) {
    struct place at = current_place(st);
    CUevent event;
    if (!at.context || REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING))
        return false;
    value = pack(units_of(value), (int)gpu_of(value), at.context, kind_of(value));
    bool noted =
        !REAL(cuEventRecord)(event, stream) && gh_pointers_put(&st->pointers, key_of(LATE, (uintptr_t)event), value);
    if (!noted)
        REAL(cuEventDestroy_v2)(event);
    return noted;
}

bool free_later(struct gh_state *st, CUstream stream, uint64_t value) {
    bool pushed;
    stream_context(stream, &pushed);
    bool noted = note_event(st, stream, value);
    stream_context_left(pushed);
    if (noted)
        atomic_store(&st->frees_late, 1);
    return noted;
}

struct list {
    uint64_t key[AT_ONCE];
    size_t count;
};

static bool add_event(uint64_t key, uint64_t value, void *with) {
    struct list *l = with;
    (void)value;
    if (key >> 58 == LATE && l->count < AT_ONCE)
        l->key[l->count++] = key;
    return false;
}

bool late_reclaim(struct gh_state *st) {
    struct list all = {.count = 0};
    size_t gone = 0;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* in another mode, the query invalidates captures by other threads */
    if (!atomic_load_explicit(&st->frees_late, memory_order_relaxed) || !atomic_exchange(&st->frees_late, 0))
        return false;
    gh_pointers_filter(&st->pointers, add_event, &all);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (size_t i = 0; i < all.count; i++) {
        CUevent event = (CUevent)(uintptr_t)(all.key[i] & HANDLE);
        uint64_t value = REAL(cuEventQuery)(event) ? 0 : gh_pointers_take(&st->pointers, all.key[i]);
        if (!value)
            continue;
        REAL(cuEventDestroy_v2)(event);
        release_note(st, value);
        gone++;
    }
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (gone < all.count || all.count == AT_ONCE)
        atomic_store(&st->frees_late, 1);
    return gone;
}
