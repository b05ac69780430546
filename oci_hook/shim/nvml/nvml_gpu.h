#ifndef GPU_HOOK_NVML_GPU_H
#define GPU_HOOK_NVML_GPU_H

#include <stdbool.h>

#include "driver/nvml.h"
#include "process/state.h"

struct gh_share_view { /* bytes; total = free + used */
    uint64_t total, free, used;
    bool known; /* else there is no limit to show: nothing is free of what the driver calls the total */
};

/* The granted GPU behind a handle, or -1. */
int gpu_of_handle(struct gh_state *st, nvmlDevice_t device);
/* What to show of a GPU. False: show the driver's figures (a whole GPU). */
bool share_view(nvmlDevice_t device, struct gh_share_view *out);

#endif
