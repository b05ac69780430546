/* Primary contexts, for other files. */
#ifndef GPU_HOOK_CUDA_CONTEXT_H
#define GPU_HOOK_CUDA_CONTEXT_H

#include "driver/cuda.h"
#include "process/state.h"

/* A holder of the device's primary context has left: releases what the context had, if that was the last holder. */
void primary_left(struct gh_state *st, CUdevice device);

/* A driver's call after which the device's primary context may be gone. */
struct parting {
    CUdevice device;
    struct gh_held *held;
    CUcontext context; /* the gate has left it; NULL: others hold it */
    bool locked;       /* so that no other thread retains it meanwhile */
};
/* Before the call. holders: if the program has retained it more often, it stays. */
struct parting primary_parts(struct gh_state *st, CUdevice device, uint32_t holders);
/* After it. gone: it was reset; else the driver is asked. */
void primary_parted(const struct parting *p, bool gone);

#endif
