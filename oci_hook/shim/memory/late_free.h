/* Memory that is no pool's, and that a stream frees when it gets there: charged until then. */
#ifndef GPU_HOOK_LATE_FREE_H
#define GPU_HOOK_LATE_FREE_H

#include "driver/cuda.h"
#include "process/note.h"
#include "process/state.h"

/* The stream has yet to free what is at the address. False: the driver cannot tell when. */
bool free_later(struct gh_state *st, CUstream stream, CUdeviceptr address, uint64_t value);

/* The address of shared memory whose note was taken, by the note's key. */
static inline CUdeviceptr late_address(struct gh_state *st, uint64_t key) {
    return key >> 58 == LATE ? gh_pointers_take(&st->pointers, key + 1) : key;
}

#endif
