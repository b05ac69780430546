/* Which granted GPU a CUDA device or context is on. */
#ifndef GPU_HOOK_CUDA_GPU_H
#define GPU_HOOK_CUDA_GPU_H

#include "driver/cuda.h"
#include "process/policy.h"

#define NO_GPU (-1)      /* a GPU that is not granted or not known: the caller refuses */
#define NO_CONTEXT (-2)  /* no current context: let the driver refuse the call */
#define NOT_CHARGED (-3) /* host memory, or memory charged to another process */
#define NO_ANSWER (-4)   /* the driver does not say: the caller refuses with the driver's error */

struct place {
    int gpu;          /* index in the policy page, or one of the above */
    unsigned context; /* the context's number; 0 not known: what is allocated is not released with it */
    CUresult error;   /* with NO_ANSWER */
};

struct place current_place(struct gh_state *st);
/* Makes the context of a stream current until stream_context_left: a copy, a graph or a library's kernel runs in it,
 * whichever is current, if any. NULL: there is none. */
struct gone_to {
    CUcontext from;
    bool another;
};
CUcontext stream_context(CUstream stream, struct gone_to *to);
void stream_context_left(const struct gone_to *to);
/* A context is about to be destroyed or reset: takes its note. What is allocated in it from now on gets another number.
 * Returns the note; 0: none. */
uint64_t context_leaves(struct gh_state *st, CUcontext context);
/* It was not, after all. */
void context_stays(struct gh_state *st, CUcontext context, uint64_t note);
/* What is allocated in `context` from now on goes with another context, the owner. */
void context_shares(struct gh_state *st, CUcontext context, CUcontext owner, CUdevice device);
int gpu_of_device(struct gh_state *st, CUdevice device);

#endif
