/* Memory that is no pool's, and that a stream frees when it gets there: charged until then. */
#ifndef GPU_HOOK_LATE_FREE_H
#define GPU_HOOK_LATE_FREE_H

#include "driver/cuda.h"
#include "process/note.h"
#include "process/state.h"

struct late { /* a note's key is of this */
    CUdeviceptr address;
};

/* The stream has yet to free what is at the address. False: the driver cannot tell when. */
bool free_later(struct gh_state *st, CUstream stream, CUdeviceptr address, uint64_t value);
/* The address of memory that has a note, by the note's key. */
static inline CUdeviceptr late_address(uint64_t key) {
    uint64_t handle = key & ((1ull << 58) - 1);
    return key >> 58 == LATE ? ((struct late *)(uintptr_t)handle)->address : key;
}

#endif
