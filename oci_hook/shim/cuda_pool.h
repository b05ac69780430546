/* Memory pools: the driver takes memory for a pool in large pieces, hands parts of it out, and keeps what is freed. So
 * the books follow what a pool has reserved: booked before it may grow, corrected by the driver's own figure after. */
#ifndef GPU_HOOK_CUDA_POOL_H
#define GPU_HOOK_CUDA_POOL_H

#include "cuda_card.h"

enum pool_kind { POOL_FREE, POOL_ALIVE, POOL_DESTROYED, POOL_GRAPH };

/* A pool's growth, between the decision and the driver's answer. */
struct growth {
    struct gh_state *st;
    struct gh_pool *pool; /* NULL: nothing is charged */
    uint64_t units;       /* booked in advance; */
    bool alone;           /* or none, for the pool has enough idle: no other operation may take that meanwhile */
    uint64_t threshold;   /* then the pool's own release threshold */
};

/* Book what the pool may grow by for `bytes` more, of which `back` come back to it first. CUDA_SUCCESS or
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult pool_begin(struct growth *g, struct gh_state *st, struct gh_pool *pool, uint64_t bytes, uint64_t back);
/* Correct by what it did grow. CUDA_ERROR_OUT_OF_MEMORY: more than there is room for; the caller undoes the call. */
CUresult pool_end(struct growth *g);
/* The pool of graph memory of a device. */
struct gh_pool *graph_pool(struct gh_state *st, CUdevice device, int card);
/* A part of a pool was freed: its address and what was noted for it. */
void pool_freed(struct gh_state *st, uint64_t address, uint64_t value);
/* A context went, and pieces of pools may have gone with it: asks the driver which. */
void pools_lost(struct gh_state *st);
/* Our pools gave memory back, or may have: look. */
void pools_look(struct gh_state *st);
/* Makes our pools on a card give back what they keep. False: there are none. */
bool pools_trim(struct gh_state *st, int card);

#endif
