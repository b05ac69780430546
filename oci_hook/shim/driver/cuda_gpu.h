/* Which granted GPU a CUDA device or context is on. */
#ifndef GPU_HOOK_CUDA_GPU_H
#define GPU_HOOK_CUDA_GPU_H

#include "driver/cuda.h"
#include "process/policy.h"

#define NO_GPU (-1)      /* a GPU that is not granted or not known: the caller refuses */
#define NO_CONTEXT (-2)  /* no current context: let the driver refuse the call */
#define NOT_CHARGED (-3) /* host memory, or memory charged to another process */

struct place {
    int gpu;          /* index in the policy page, or one of the above */
    unsigned context; /* 1 + the context's index in st->contexts; 0 not known */
};

struct place current_place(struct gh_state *st);
int gpu_of_device(struct gh_state *st, CUdevice device);

#endif
