/* Primary contexts, for other files. */
#ifndef GPU_HOOK_CUDA_CONTEXT_H
#define GPU_HOOK_CUDA_CONTEXT_H

#include "driver/cuda.h"
#include "process/state.h"

/* A holder of the device's primary context has left: releases what the context had, if that was the last holder. */
void primary_left(struct gh_state *st, CUdevice device);

#endif
