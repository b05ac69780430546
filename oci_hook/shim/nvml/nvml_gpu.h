#ifndef GPU_HOOK_NVML_GPU_H
#define GPU_HOOK_NVML_GPU_H

#include <stdbool.h>

#include "driver/nvml.h"
#include "process/state.h"

struct gh_memory_view { /* bytes; total = free + used */
    uint64_t total, free, used;
    bool known; /* false: no limit is known; show the driver's total with nothing free */
};

/* The index of the granted GPU of a handle, or -1. */
int gpu_of_handle(struct gh_state *st, nvmlDevice_t device);
/* The memory figures to show for a GPU. False: show the driver's (a whole GPU). */
bool memory_view(nvmlDevice_t device, struct gh_memory_view *out);

#endif
