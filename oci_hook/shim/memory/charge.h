/* Charges of device memory against the container's account: reserved before the driver is asked, kept or undone by its
 * answer. */
#ifndef GPU_HOOK_CHARGE_H
#define GPU_HOOK_CHARGE_H

#include "account/account.h"
#include "memory/allocation.h"

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

/* The driver's answer `r` to an allocation of `handle`: keep the charge with it, or undo it. Returns r. */
CUresult settle_alloc(struct charge *c, CUresult r, enum kind kind, uint64_t handle);

/* An allocation that is about to be freed; the pair of calls around the driver's. */
struct owed {
    struct gh_state *st;
    uint64_t key, value;
};
struct owed begin_free(enum kind kind, uint64_t handle);
CUresult end_free(struct owed *o, CUresult r);

/* What the container may have on a GPU, and what of that is free, in bytes. False: no valid page. */
bool gpu_memory(struct gh_state *st, int gpu, uint64_t *free, uint64_t *total, bool *whole);

#endif
