/* Memory pools: the driver takes memory for a pool in large pieces, hands parts of it out, and keeps what is freed. So
 * the books follow what a pool has reserved: booked before it may grow, corrected by the driver's own figure after. */
#ifndef GPU_HOOK_CUDA_POOL_H
#define GPU_HOOK_CUDA_POOL_H

#include "account/account.h"
#include "memory/allocation.h"

enum pool_kind { POOL_FREE, POOL_ALIVE, POOL_DESTROYED, POOL_GRAPH };

/* A pool's growth, between the decision and the driver's answer. */
struct growth {
    struct gh_state *st;
    struct gh_pool *pool; /* NULL: nothing is charged */
    uint64_t units;       /* booked in advance; */
    bool alone;           /* or none, for the pool has enough idle: no other operation may take that meanwhile */
    uint64_t threshold;   /* then the pool's own release threshold */
};

/* Among the pools known: NULL: not there. */
struct gh_pool *pool_find(struct gh_state *st, void *handle, enum pool_kind kind);
/* The same, or a new entry. NULL when the table is full: then each allocation is charged by itself. */
struct gh_pool *pool_note(struct gh_state *st, void *handle, enum pool_kind kind, CUdevice device, int gpu);
/* A pool that we did not see made: a device's own, or one of a library that looked its functions up elsewhere. */
struct gh_pool *pool_learn(struct gh_state *st, CUmemoryPool handle, CUdevice device);
/* The pool of graph memory of a device. */
struct gh_pool *graph_pool(struct gh_state *st, CUdevice device, int gpu);
/* Whether what it takes is on a GPU that is accounted for. */
bool pool_charged(const struct gh_pool *pool);

/* Around what may change a pool: waits while another counts on its idle memory. */
void pool_enter(struct gh_pool *pool);
void pool_leave(struct gh_pool *pool);
/* Book what the pool may grow by for `bytes` more, of which `back` come back to it first. CUDA_SUCCESS or
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult pool_begin(struct growth *g, struct gh_state *st, struct gh_pool *pool, uint64_t bytes, uint64_t back);
/* Correct by what it did grow. CUDA_ERROR_OUT_OF_MEMORY: more than there is room for; the caller undoes the call. */
CUresult pool_end(struct growth *g);
/* Brings the books to what the driver has reserved. `held` was booked in advance and is given back or used up here.
 * CUDA_ERROR_OUT_OF_MEMORY: the pool grew beyond what there was room for; it is booked all the same. */
CUresult pool_correct(struct gh_state *st, struct gh_pool *pool, uint64_t held, bool alone);
/* The least that a pool is taken to grow by, in bytes. */
uint64_t pool_least(struct gh_state *st);
/* A part of a pool was handed out. */
void pool_put(struct gh_state *st, struct gh_pool *pool, uint64_t address, uint64_t bytes);
/* The last part of a pool that was destroyed is gone, and the driver's memory with it. */
void pool_bury(struct gh_state *st, struct gh_pool *pool);
/* A part of a pool was freed: its address and what was noted for it. */
void pool_freed(struct gh_state *st, uint64_t address, uint64_t value);
/* A context went, and pieces of pools may have gone with it: asks the driver which. */
void pools_lost(struct gh_state *st);
/* Our pools gave memory back, or may have: look. */
void pools_look(struct gh_state *st);
/* Makes our pools on a GPU give back what they keep. False: there are none. */
bool pools_trim(struct gh_state *st, int gpu);

#endif
