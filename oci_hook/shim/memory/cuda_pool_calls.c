/* Calls of memory pools, and calls after which a driver releases idle memory of pools. */
#include "driver/real.h"
#include "gate/gate.h"
#include "memory/charge.h"
#include "memory/cuda_pool.h"

static bool capturing(CUstream stream) {
    int status = 0;
    return !REAL(cuStreamIsCapturing)(stream, &status) && status;
}

/* The device of a stream; a default stream is the current context's. */
static bool device_of(CUstream stream, CUdevice *device) {
    CUcontext of = NULL, now = NULL, popped;
    if ((uintptr_t)stream <= CU_STREAM_PER_THREAD || REAL(cuStreamGetCtx)(stream, &of) || !of ||
        REAL(cuCtxGetCurrent)(&now) || of == now)
        return !REAL(cuCtxGetDevice)(device);
    if (REAL(cuCtxPushCurrent_v2)(of))
        return false;
    bool known = !REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return known;
}

typedef CUresult alloc_call(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult free_call(CUdeviceptr, CUstream);

/* default_stream: which stream NULL means in this variant of the call. */
static CUresult alloc_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool handle, CUstream stream, alloc_call *call,
                            free_call *undo, uintptr_t default_stream) {
    struct gh_state *st = gh_here();
    struct growth g;
    CUdevice device;
    CUresult r;
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (capturing(stream ? stream : (CUstream)default_stream)) { /* a graph node: its launch is charged */
        atomic_store(&st->pools.graphs_allocate, 1);
        return call(pointer, bytes, handle, stream);
    }
    if (!device_of(stream, &device) || (!handle && REAL(cuDeviceGetMemPool)(&handle, device)))
        return call(pointer, bytes, handle, stream); /* the driver will refuse it, too */
    struct gh_pool *pool = pool_find(st, handle, POOL_ALIVE);
    if (!pool && !(pool = pool_learn(st, handle, device))) {
        struct charge c; /* too many pools: charge the piece for what a pool may grow by */
        uint64_t least = pool_least(st);
        if (bytes > UINT64_MAX / 2)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if ((r = charge_at(&c, st, (struct place){gpu_of_device(st, device), 0}, (bytes + least - 1) & ~(least - 1))))
            return r;
        r = call(pointer, bytes, handle, stream);
        return finish_alloc(&c, r, LINEAR, r ? 0 : *pointer);
    }
    if ((r = pool_begin(&g, st, pool, bytes, 0)))
        return r;
    r = call(pointer, bytes, handle, stream);
    if (r == CUDA_SUCCESS && g.pool) /* before pool_end: an operation that is alone next must know of it */
        pool_put(st, pool, *pointer, bytes);
    if (pool_end(&g) && r == CUDA_SUCCESS) {
        struct owed o = begin_free(LINEAR, *pointer);
        end_free(&o, undo(*pointer, stream));
        pools_trim(st, atomic_load(&pool->gpu));
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return r;
}

#define ASYNC(suffix, default_stream)                                                                                \
    static CUresult real_alloc##suffix(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream s) {                    \
        (void)pool;                                                                                                  \
        return REAL(cuMemAllocAsync##suffix)(p, n, s);                                                               \
    }                                                                                                                \
    static CUresult real_from_pool##suffix(CUdeviceptr *p, size_t n, CUmemoryPool pool, CUstream s) {                \
        return REAL(cuMemAllocFromPoolAsync##suffix)(p, n, pool, s);                                                 \
    }                                                                                                                \
    static CUresult real_free##suffix(CUdeviceptr p, CUstream s) { return REAL(cuMemFreeAsync##suffix)(p, s); }      \
    GH_EXPORT CUresult cuMemAllocAsync##suffix(CUdeviceptr *pointer, size_t bytes, CUstream stream) {                \
        return alloc_async(pointer, bytes, NULL, stream, real_alloc##suffix, real_free##suffix, default_stream);     \
    }                                                                                                                \
    GH_EXPORT CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,        \
                                                       CUstream stream) {                                            \
        return alloc_async(pointer, bytes, pool, stream, real_from_pool##suffix, real_free##suffix, default_stream); \
    }                                                                                                                \
    GH_EXPORT CUresult cuMemFreeAsync##suffix(CUdeviceptr pointer, CUstream stream) {                                \
        struct owed o = begin_free(LINEAR, pointer);                                                                 \
        return end_free(&o, real_free##suffix(pointer, stream));                                                     \
    }                                                                                                                \
    GH_EXPORT CUresult cuStreamSynchronize##suffix(CUstream stream) {                                                \
        uint64_t before = gate_before_sync();                                                                        \
        CUresult r = synchronised(REAL(cuStreamSynchronize##suffix)(stream));                                        \
        if (r == CUDA_SUCCESS)                                                                                       \
            gate_synchronised(before, stream ? stream : (CUstream)(uintptr_t)default_stream, false);                 \
        return r;                                                                                                    \
    }

/* At a synchronisation the driver releases what a pool keeps above its release threshold. */
static CUresult synchronised(CUresult r) {
    struct gh_state *st = gh_here();
    uint32_t n = st ? atomic_load_explicit(&st->pools.count, memory_order_acquire) : 0;
    if (n)
        pools_look(st);
    for (uint32_t i = 0; i < n; i++) {
        int gpu = atomic_load(&st->pools.pool[i].gpu);
        if (gpu >= 0 && gh_pressed(st, (unsigned)gpu))
            pools_trim(st, gpu);
    }
    return r;
}

ASYNC(, CU_STREAM_LEGACY)
ASYNC(_ptsz, CU_STREAM_PER_THREAD)

GH_EXPORT CUresult cuCtxSynchronize(void) {
    uint64_t before = gate_before_sync();
    CUresult r = synchronised(REAL(cuCtxSynchronize)());
    if (r == CUDA_SUCCESS)
        gate_synchronised(before, NULL, true);
    return r;
}
GH_EXPORT CUresult cuCtxSynchronize_v2(CUcontext c) { return synchronised(REAL(cuCtxSynchronize_v2)(c)); }
GH_EXPORT CUresult cuEventSynchronize(CUevent event) { return synchronised(REAL(cuEventSynchronize)(event)); }

GH_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props) {
    CUresult r = REAL(cuMemPoolCreate)(handle, props);
    struct gh_state *st = gh_here();
    struct gh_pool *pool = NULL;
    if (r == CUDA_SUCCESS && st)
        pool = pool_note(st, *handle, POOL_ALIVE, props->location.id,
                         on_host(&props->location) ? NOT_CHARGED : gpu_of_device(st, props->location.id));
    if (pool)
        atomic_store(&pool->exportable, props->handle_types != 0);
    return r;
}

/* Pieces that are still allocated keep the pool's memory until the last of them is freed. */
GH_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct gh_state *st = gh_here();
    struct gh_pool *pool = st ? pool_find(st, handle, POOL_ALIVE) : NULL;
    if (pool && pool_is_accounted(pool)) {
        pool_enter(pool);
        REAL(cuMemPoolTrimTo)(handle, 0);
        pool_correct(st, pool, 0, false);
        pool_leave(pool);
    }
    if (pool) /* before the driver can give the handle to another pool */
        atomic_store(&pool->kind, POOL_DESTROYED);
    CUresult r = REAL(cuMemPoolDestroy)(handle);
    if (pool && r != CUDA_SUCCESS)
        atomic_store(&pool->kind, POOL_ALIVE);
    else if (pool && atomic_load(&pool->pieces) <= 0)
        pool_reclaim(st, pool);
    return r;
}

/* Before a call that may release idle memory of a pool, or change how much it keeps: waits while another call relies
 * on that memory. */
static struct gh_pool *entered(struct gh_state *st, void *handle, enum pool_kind kind) {
    struct gh_pool *pool = st ? pool_find(st, handle, kind) : NULL;
    if (!pool || !pool_is_accounted(pool))
        return NULL;
    pool_enter(pool);
    return pool;
}

static CUresult trimmed(struct gh_state *st, struct gh_pool *pool, CUresult r) {
    if (pool) {
        pool_correct(st, pool, 0, false);
        pool_leave(pool);
    }
    return r;
}

GH_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    struct gh_state *st = gh_here();
    struct gh_pool *pool = entered(st, handle, POOL_ALIVE);
    return trimmed(st, pool, REAL(cuMemPoolTrimTo)(handle, keep));
}

GH_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value) {
    struct gh_pool *pool = entered(gh_here(), handle, POOL_ALIVE);
    CUresult r = REAL(cuMemPoolSetAttribute)(handle, attribute, value);
    if (pool)
        pool_leave(pool);
    return r;
}

/* Nothing can be allocated from an imported pool, and its exporter is charged for the pieces in it. */
GH_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *os, int type, uint64_t flags) {
    CUresult r = REAL(cuMemPoolImportFromShareableHandle)(handle, os, type, flags);
    struct gh_state *st = gh_here();
    if (r == CUDA_SUCCESS && st)
        pool_note(st, *handle, POOL_ALIVE, 0, NOT_CHARGED);
    return r;
}

GH_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    struct gh_state *st = gh_here();
    struct gh_pool *pool = entered(st, (void *)((uintptr_t)device + 1), POOL_GRAPH);
    return trimmed(st, pool, REAL(cuDeviceGraphMemTrim)(device));
}
