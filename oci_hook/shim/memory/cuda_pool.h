/* Memory pools. The driver reserves memory for a pool in large blocks, allocates pieces of it and keeps what is freed.
 * So a pool is charged for what it has reserved: for its largest growth before a call, corrected by the driver's own
 * figure after it. */
#ifndef GPU_HOOK_CUDA_POOL_H
#define GPU_HOOK_CUDA_POOL_H

#include "account/account.h"
#include "driver/cuda_gpu.h"
#include "process/note.h"

/* POOL_LEAVING: the driver is about to destroy it. POOL_DESTROYED: pieces of it are still in use. */
enum pool_kind { POOL_FREE, POOL_ALIVE, POOL_LEAVING, POOL_DESTROYED, POOL_GRAPH };

/* A pool that may grow, while the driver has not answered yet. */
struct growth {
    struct gh_state *st;
    struct gh_pool *pool; /* NULL: nothing is charged */
    uint64_t units;       /* charged in advance */
    bool alone;           /* nothing is charged: enough memory is idle, and no other operation may take it */
    uint64_t threshold;   /* with `alone`: the pool's own release threshold */
};

/* The pool with this handle; NULL if we do not know it. kind: POOL_ALIVE or POOL_GRAPH. */
struct gh_pool *pool_find(struct gh_state *st, void *handle, enum pool_kind kind);
/* The same, or a new entry. NULL: no memory for one, and the caller refuses. */
struct gh_pool *pool_note(struct gh_state *st, void *handle, enum pool_kind kind, CUdevice device, int gpu);
/* The pool with this number, as a note tells it. */
struct gh_pool *pool_numbered(struct gh_state *st, unsigned number);
/* Notes a pool whose creation we did not see: a device's default pool, or one made by a library that bypassed us.
 * NULL: the driver knows no such pool, or no memory. */
struct gh_pool *pool_learn(struct gh_state *st, CUmemoryPool handle, CUdevice device);
/* A pool is about to be destroyed, before the driver can give its handle to another one; it was not, after all; it was,
 * and is forgotten once its last piece has been freed. */
void pool_leaves(struct gh_state *st, struct gh_pool *pool);
void pool_stays(struct gh_state *st, struct gh_pool *pool);
void pool_destroyed(struct gh_state *st, struct gh_pool *pool);
/* The pool of a device's graph memory, and what stands for its handle. */
static inline void *graph_pool_handle(CUdevice device) { return (void *)((uintptr_t)device + 1); }
struct gh_pool *graph_pool(struct gh_state *st, CUdevice device, int gpu);
/* True if the pool's memory is charged to this process. */
bool pool_is_accounted(const struct gh_pool *pool);

/* Calls that may change a pool stand between these two. pool_enter waits while another call relies on idle memory.
 * False: the pool with this handle has been destroyed meanwhile. */
bool pool_enter(struct gh_pool *pool, void *handle);
void pool_leave(struct gh_pool *pool);
/* Charges what the pool may grow by to allocate `bytes`, after `back` bytes have been freed into it. CUDA_SUCCESS or
 * CUDA_ERROR_OUT_OF_MEMORY. */
CUresult pool_begin(struct growth *g, struct gh_state *st, struct gh_pool *pool, void *handle, uint64_t bytes,
                    uint64_t back);
/* Corrects the charge to what the pool has grown by. CUDA_ERROR_OUT_OF_MEMORY: it grew beyond the limit, and the caller
 * undoes its call. */
CUresult pool_end(struct growth *g);
/* Charges the pool for what the driver has reserved now, using or releasing the `foreseen` units charged in advance.
 * CUDA_ERROR_OUT_OF_MEMORY: the pool grew beyond the limit; it is charged all the same. */
CUresult pool_correct(struct gh_state *st, struct gh_pool *pool, uint64_t foreseen, bool alone);
/* True if the pool's own maximum is in the way of so many more bytes. */
bool pool_full(const struct gh_pool *pool, uint64_t bytes);
/* The smallest growth of a pool, as far as we know, in bytes. */
uint64_t pool_least(struct gh_state *st);
/* Notes a piece allocated from a pool. */
void pool_put(struct gh_state *st, struct gh_pool *pool, uint64_t address, uint64_t bytes);
/* Forgets a piece of a pool that was freed. value: its note. */
void pool_freed(struct gh_state *st, uint64_t address, uint64_t value);
/* A context was destroyed: asks the driver which pieces of pools were freed with it. */
void pools_lost(struct gh_state *st);
/* Corrects the charges of pools that may have released memory. */
void pools_look(struct gh_state *st);
/* Memory of pools was freed. */
void pools_changed(struct gh_state *st);
/* The GPUs on which this process has pools that are charged, as a bit mask. */
uint32_t pools_gpus(const struct gh_state *st);
/* Makes our pools on a GPU release their idle memory. False: there is no such pool. */
bool pools_trim(struct gh_state *st, int gpu);

#endif
