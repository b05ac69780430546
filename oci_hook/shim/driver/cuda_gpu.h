/* Which granted GPU a CUDA device or context is on. */
#ifndef GPU_HOOK_CUDA_GPU_H
#define GPU_HOOK_CUDA_GPU_H

#include "driver/cuda.h"
#include "process/policy.h"

#define NO_GPU (-1)      /* a GPU that is not granted, or that cannot be found out: the caller refuses */
#define NO_CONTEXT (-2)  /* the driver itself will refuse the call: let it */
#define NOT_CHARGED (-3) /* host memory, or memory charged to another process */

struct place {
    int gpu;          /* its number in the policy page, or one of the above */
    unsigned context; /* 1 + the context's index in st->contexts; 0 not known */
};

struct place current_place(struct gh_state *st);
int gpu_of_device(struct gh_state *st, CUdevice device);

#endif
