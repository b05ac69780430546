/* Which granted GPU a context or device is, and charges against it. */
#ifndef GPU_HOOK_CUDA_GPU_H
#define GPU_HOOK_CUDA_GPU_H

#include "account.h"
#include "cuda.h"
#include "policy.h"

#define NO_GPU (-1)     /* a GPU that is not granted, or nothing can be known: refuse */
#define NO_CONTEXT (-2) /* the driver itself will refuse: let it */

#define NOT_CHARGED (-3) /* host memory, or charged to another process */

struct place {
    int gpu;
    unsigned context; /* 1 + its place in st->contexts, 0 not known */
};

struct place current_place(struct gh_state *st);
int gpu_of_device(struct gh_state *st, CUdevice device);

/* A reservation, between the decision and the driver's answer. */
struct charge {
    struct gh_state *st;
    struct place at;
    uint64_t units;
};

/* Reserve bytes on the current context's GPU. CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult charge(struct charge *c, uint64_t bytes);
CUresult charge_at(struct charge *c, struct gh_state *st, struct place at, uint64_t bytes);
/* More or less of the same: after the driver said how much it was. */
CUresult recharge(struct charge *c, uint64_t bytes);
void uncharge(struct charge *c);

/* GRAPHED: a graph's, charged with its pool. PAGE: of the GPU, how many ends of pieces of pools lie in it. */
enum kind { LINEAR = 1, POOLED, GRAPHED, ARRAY, MIPMAP, EXTERNAL, HANDLE, EXEC, CONTEXT, LIMIT, PAGE };

/* What an allocation is known by: device pointers and each kind of handle have ranges of their own. */
static inline uint64_t key_of(enum kind kind, uint64_t handle) {
    return kind <= GRAPHED ? handle : handle ^ (uint64_t)kind << 58;
}

/* units:34 | GPU:4 | context or pool:10 | kind:4 */
static inline uint64_t pack(uint64_t units, int gpu, unsigned of, enum kind kind) {
    return units << 18 | (uint64_t)gpu << 14 | (uint64_t)of << 4 | kind;
}
static inline uint64_t units_of(uint64_t value) { return value >> 18; }
static inline unsigned gpu_of(uint64_t value) { return value >> 14 & 15; }
static inline unsigned context_of(uint64_t value) { return value >> 4 & 0x3ff; }
static inline enum kind kind_of(uint64_t value) { return (enum kind)(value & 15); }

/* The driver's answer `r` to an allocation of `handle`: keep the charge with it, or undo it. Returns r. */
CUresult settle_alloc(struct charge *c, CUresult r, enum kind kind, uint64_t handle);

/* An allocation that is about to be freed; the pair of calls around the driver's. */
struct owed {
    struct gh_state *st;
    uint64_t key, value;
};
struct owed begin_free(enum kind kind, uint64_t handle);
CUresult end_free(struct owed *o, CUresult r);

/* Whether memory at this location is the host's. */
static inline bool on_host(const CUmemLocation *l) { return l->type >= 2 && l->type <= 4; }

/* What the container may have on a GPU, and what of that is free, in bytes. False: no valid page. */
bool gpu_memory(struct gh_state *st, int gpu, uint64_t *free, uint64_t *total, bool *whole);

#endif
