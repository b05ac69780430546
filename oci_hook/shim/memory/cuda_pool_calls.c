/* Calls of memory pools, and calls after which a driver releases idle memory of pools. */
#include "driver/real.h"
#include "gate/gate_forget.h"
#include "gate/inflight.h"
#include "memory/charge.h"
#include "memory/cuda_pool.h"
#include "memory/late_free.h"
#include "process/captures.h"
#include "memory/piece.h"

/* The capture that a stream is in: its number, which the driver uses only once; 1 with drivers that tell no number;
 * 0: none. */
static uint64_t capture_of(CUstream stream) {
    int status = 0;
    uint64_t number = 0;
    if (REAL(cuStreamGetCaptureInfo_v2)(stream, &status, &number, NULL, NULL, NULL)) /* since CUDA 11.3 */
        number = 1;
    if (number == 1 && REAL(cuStreamIsCapturing)(stream, &status))
        return 0;
    return status ? (number ? number : 1) : 0;
}

/* The device of a stream; a default stream is the current context's. */
static CUresult device_of(CUstream stream, CUdevice *device) {
    struct gone_to to;
    stream_context(stream, &to);
    CUresult r = REAL(cuCtxGetDevice)(device);
    stream_context_left(&to);
    return r;
}

/* The pool of a request: its own, or the current one of the stream's device. */
static CUresult find_pool(CUstream stream, CUmemoryPool *pool, CUdevice *device) {
    CUresult r = device_of(stream, device);
    return r || *pool ? r : REAL(cuDeviceGetMemPool)(pool, *device);
}

typedef CUresult alloc_call(CUdeviceptr *, size_t, CUstream);
typedef CUresult pool_call(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult free_call(CUdeviceptr, CUstream);

struct variant { /* of the calls: with the legacy default stream, or one for each thread */
    CUstream default_stream;
    alloc_call *alloc;
    pool_call *from_pool;
    free_call *free;
};
static struct variant legacy(void) {
    return (struct variant){(CUstream)CU_STREAM_LEGACY, REAL(cuMemAllocAsync), REAL(cuMemAllocFromPoolAsync),
                            REAL(cuMemFreeAsync)};
}
static struct variant per_thread(void) {
    return (struct variant){(CUstream)CU_STREAM_PER_THREAD, REAL(cuMemAllocAsync_ptsz),
                            REAL(cuMemAllocFromPoolAsync_ptsz), REAL(cuMemFreeAsync_ptsz)};
}

struct request {
    size_t bytes;
    CUmemoryPool pool; /* NULL: the current one of the stream's device */
    CUstream stream;
};

static CUresult ask_driver(const struct variant *v, const struct request *q, CUdeviceptr *made) {
    return q->pool ? v->from_pool(made, q->bytes, q->pool, q->stream) : v->alloc(made, q->bytes, q->stream);
}

static CUresult ask_impossible(const struct variant *v, struct request q) {
    CUdeviceptr made = 0;
    q.bytes |= IMPOSSIBLE;
    CUresult r = ask_driver(v, &q, &made);
    if (r == CUDA_SUCCESS)
        v->free(made, q.stream);
    return r;
}

/* Nothing at all, which a driver may round up, is asked for without a place for the answer. Inlined, this would cost every
 * allocation 20 ns. */
__attribute__((noinline)) static CUresult alloc_refused(const struct variant *v, const struct request *q) {
    struct request good = {.stream = q->stream};
    CUresult asked = q->bytes ? ask_impossible(v, *q) : CUDA_SUCCESS;
    return q->bytes ? REFUSED(asked, ask_impossible(v, good)) : ask_driver(v, q, NULL);
}

/* Undoes an allocation that nobody charged, and charges its pool for what the driver still keeps of it. */
static void undo_uncharged(struct gh_state *st, const struct variant *v, const struct request *q, CUdeviceptr made) {
    CUmemoryPool handle = q->pool;
    CUdevice device;
    v->free(made, q->stream);
    if (find_pool(q->stream, &handle, &device)) {
        pools_changed(st);
        return;
    }
    struct gh_pool *pool = pool_find(st, handle, POOL_ALIVE);
    if (!pool)
        pool = pool_learn(st, handle, device);
    if (!pool || !pool_is_accounted(pool) || !pool_enter(pool, handle))
        return;
    pool_correct(st, pool, 0, false);
    pool_leave(pool);
    pools_trim(st, atomic_load(&pool->gpu));
    pools_changed(st);
}

/* In a capture, the driver makes a graph node, whose launch is charged. False: the stream is in no capture. If the capture
 * ended all the same before the driver saw the call, it was an allocation, which is undone. */
static bool alloc_captured(struct gh_state *st, const struct variant *v, const struct request *q, CUdeviceptr *made,
                           CUresult *r) {
    CUstream stream = q->stream ? q->stream : v->default_stream;
    if (!capture_of(stream))
        return false;
    captured_call_begins(st);
    uint64_t before = capture_of(stream);
    bool captured = before;
    if (captured) {
        *r = ask_driver(v, q, made);
        captured = *r || capture_of(stream) == before;
    }
    captured_call_ends(st);
    if (!before || captured)
        return before;
    undo_uncharged(st, v, q, *made);
    *r = CUDA_ERROR_OUT_OF_MEMORY;
    return true;
}

/* The pool is found once, and the driver allocates from that one: another thread may change the device's current pool. */
static CUresult alloc_charged(struct gh_state *st, const struct variant *v, const struct request *q,
                              struct gh_pool *pool, CUdeviceptr *made) {
    struct growth g;
    CUresult r, ended;
    unsigned waited = 0;
    do {
        if (pool_begin(&g, st, pool, q->pool, q->bytes, 0))
            return alloc_refused(v, q);
        r = ask_driver(v, q, made);
        if (r == CUDA_SUCCESS && g.pool) /* before pool_end: an operation that is alone next must know of it */
            pool_put(st, pool, *made, q->bytes);
        ended = pool_end(&g);
    } while (r == CUDA_ERROR_OUT_OF_MEMORY && g.pool && !pool_full(pool, q->bytes) &&
             wait_for_room(st, atomic_load(&pool->gpu), gh_units(q->bytes), &waited));
    if (r != CUDA_ERROR_OUT_OF_MEMORY)
        end_wait(st, atomic_load(&pool->gpu), waited);
    if (ended && r == CUDA_SUCCESS) {
        struct owed o = begin_free(LINEAR, *made);
        end_free(&o, v->free(*made, q->stream));
        pools_trim(st, atomic_load(&pool->gpu));
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return r;
}

static CUresult alloc_from(const struct variant *v, struct request *q, CUdeviceptr *made) {
    struct gh_state *st = gh_here();
    CUdevice device;
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!atomic_load_explicit(&st->pools.graphs_allocate, memory_order_relaxed))
        atomic_store(&st->pools.graphs_allocate, 1); /* before the driver can make a node of it, if it does */
    CUresult r;
    if (alloc_captured(st, v, q, made, &r))
        return r;
    if (find_pool(q->stream, &q->pool, &device))
        return alloc_refused(v, q);
    struct gh_pool *pool = pool_find(st, q->pool, POOL_ALIVE);
    if (!pool && !(pool = pool_learn(st, q->pool, device)))
        return alloc_refused(v, q);
    return alloc_charged(st, v, q, pool, made);
}

static CUresult alloc_async(CUdeviceptr *pointer, struct request q, struct variant v) {
    CUdeviceptr made = 0;
    if (!pointer)
        return ask_driver(&v, &q, NULL); /* refuses */
    CUresult r = alloc_from(&v, &q, &made);
    if (r == CUDA_SUCCESS)
        *pointer = made;
    return r;
}

/* No pool is an argument that a driver refuses. One that takes it for the current pool is followed. */
static CUresult from_pool(CUdeviceptr *pointer, struct request q, struct variant v) {
    CUdeviceptr made = 0;
    CUresult r = q.pool ? CUDA_ERROR_OUT_OF_MEMORY : v.from_pool(pointer ? &made : NULL, IMPOSSIBLE, NULL, q.stream);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? alloc_async(pointer, q, v) : r;
}

GH_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return alloc_async(pointer, (struct request){bytes, NULL, stream}, legacy());
}
GH_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return alloc_async(pointer, (struct request){bytes, NULL, stream}, per_thread());
}
GH_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return from_pool(pointer, (struct request){bytes, pool, stream}, legacy());
}
GH_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                                CUstream stream) {
    return from_pool(pointer, (struct request){bytes, pool, stream}, per_thread());
}

/* The memory is no more, or the driver has given its address anew. */
static bool is_gone(struct gh_state *st, CUdeviceptr pointer) {
    unsigned type;
    return gh_pointers_get(&st->pointers, key_of(LINEAR, pointer)) ||
           REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
}

/* Memory that is not of a pool. In a capture nothing is freed now: a driver refuses, or makes a node. If a capture has
 * ended since our look, it may have been that of this stream. The driver may wait for the stream, so no capture's end
 * waits for it. */
static CUresult free_own(struct owed *o, CUdeviceptr pointer, CUstream stream, CUstream in, free_call *call) {
    uint32_t ended = atomic_load(&o->st->captures.ended);
    bool captured = capture_of(in);
    CUresult r = call(pointer, stream);
    bool freed = r == CUDA_SUCCESS && !captured && !capture_of(in) &&
                 (ended == atomic_load(&o->st->captures.ended) || is_gone(o->st, pointer));
    if (freed && !stream_idle(in)) {
        if (free_later(o->st, in, pointer, o->value))
            return r;
        freed = false; /* charged until its context goes */
    }
    end_free(o, freed ? r : CUDA_ERROR_NOT_READY);
    return r;
}

/* in: the stream as its capture is asked for. */
static CUresult free_async(CUdeviceptr pointer, CUstream stream, CUstream in, free_call *call) {
    struct owed o = begin_free(LINEAR, pointer);
    enum kind kind = kind_of(o.value);
    if (kind == LINEAR || kind == MANAGED || kind == SHARED)
        return free_own(&o, pointer, stream, in, call);
    return end_free(&o, call(pointer, stream));
}

GH_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, stream ? stream : (CUstream)CU_STREAM_LEGACY, REAL(cuMemFreeAsync));
}
GH_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, PER_THREAD(stream), REAL(cuMemFreeAsync_ptsz));
}

/* At a synchronisation the driver releases what a pool keeps above its release threshold. */
static CUresult synchronised(CUresult r) {
    struct gh_state *st = gh_here();
    uint32_t n = st ? atomic_load_explicit(&st->pools.count, memory_order_acquire) : 0;
    if (n)
        pools_look(st);
    pieces_reclaim_now_and_then(st);
    for (uint32_t left = n ? pools_gpus(st) : 0; left; left &= left - 1) {
        int gpu = __builtin_ctz(left);
        if (gh_pressed(st, (unsigned)gpu))
            pools_trim(st, gpu);
    }
    return r;
}

GH_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    uint64_t before = gate_before_sync();
    CUresult r = synchronised(REAL(cuStreamSynchronize)(stream));
    if (r == CUDA_SUCCESS)
        gate_synchronised(before, stream ? stream : (CUstream)CU_STREAM_LEGACY, false);
    return r;
}
GH_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    uint64_t before = gate_before_sync();
    CUresult r = synchronised(REAL(cuStreamSynchronize_ptsz)(stream));
    if (r == CUDA_SUCCESS)
        gate_synchronised(before, stream ? stream : (CUstream)CU_STREAM_PER_THREAD, false);
    return r;
}

GH_EXPORT CUresult cuCtxSynchronize(void) {
    uint64_t before = gate_before_sync();
    CUresult r = synchronised(REAL(cuCtxSynchronize)());
    if (r == CUDA_SUCCESS)
        gate_synchronised(before, NULL, true);
    return r;
}
GH_EXPORT CUresult cuCtxSynchronize_v2(CUcontext c) { return synchronised(REAL(cuCtxSynchronize_v2)(c)); }
GH_EXPORT CUresult cuEventSynchronize(CUevent event) { return synchronised(REAL(cuEventSynchronize)(event)); }

/* A pool of managed memory without a device is charged to the current context's GPU, as other managed memory is. */
static int gpu_of_pool(struct gh_state *st, const CUmemPoolProps *props) {
    if (on_host(&props->location, props->type))
        return NOT_CHARGED;
    int gpu = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? NO_CONTEXT : current_place(st).gpu;
    return gpu == NO_CONTEXT ? gpu_of_device(st, props->location.id) : gpu;
}

GH_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *given) {
    struct gh_state *st = gh_here();
    CUmemPoolProps props;
    CUmemoryPool made = NULL;
    if (!given || !handle)
        return REAL(cuMemPoolCreate)(handle, given);
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy_once(&props, given, sizeof props);
    CUresult r = REAL(cuMemPoolCreate)(&made, &props);
    if (r)
        return r;
    struct gh_pool *pool = pool_note(st, made, POOL_ALIVE, props.location.id, gpu_of_pool(st, &props));
    if (!pool) { /* what cannot be followed is not made */
        REAL(cuMemPoolDestroy)(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_store(&pool->exportable, props.handle_types != 0);
    atomic_store(&pool->most, props.max_size);
    if (props.handle_types || props.type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        gh_note_fixed(st);
    *handle = made;
    return r;
}

/* CUDA 13.0: the default pool of a place, which nobody made. Where its memory lies is known only here. Any other pool
 * that is not known is learned at its first allocation, as if it were the GPU's. */
static void note_default(CUmemoryPool pool, CUmemLocation where, int type) {
    struct gh_state *st = gh_here();
    CUmemPoolProps props = {.type = type, .location = where};
    CUmemoryPool own = NULL;
    if (st && !pool_find(st, pool, POOL_ALIVE) && !REAL(cuMemGetDefaultMemPool)(&own, &where, type) && own == pool)
        pool_note(st, pool, POOL_ALIVE, props.location.id, gpu_of_pool(st, &props));
    if (st && type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        gh_note_fixed(st);
}

static CUresult pool_of_place(CUresult (*ask)(CUmemoryPool *, CUmemLocation *, int), CUmemoryPool *pool,
                              CUmemLocation *given, int type) {
    CUmemLocation where;
    CUmemoryPool found = NULL;
    if (!pool || !given)
        return ask(pool, given, type);
    copy_once(&where, given, sizeof where);
    CUresult r = ask(&found, &where, type);
    if (r == CUDA_SUCCESS) {
        note_default(found, where, type);
        *pool = found;
    }
    return r;
}

GH_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *where, int type) {
    return pool_of_place(REAL(cuMemGetDefaultMemPool), pool, where, type);
}
GH_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *where, int type) {
    return pool_of_place(REAL(cuMemGetMemPool), pool, where, type);
}

/* Before a call that may release idle memory of a pool, or change how much it keeps: waits while another call relies
 * on that memory. */
static struct gh_pool *entered(struct gh_state *st, void *handle, enum pool_kind kind) {
    struct gh_pool *pool = st ? pool_find(st, handle, kind) : NULL;
    return pool && pool_is_accounted(pool) && pool_enter(pool, handle) ? pool : NULL;
}

static CUresult trimmed(struct gh_state *st, struct gh_pool *pool, CUresult r) {
    if (pool) {
        pool_correct(st, pool, 0, false);
        pool_leave(pool);
    }
    return r;
}

/* Pieces that are still allocated keep the pool's memory until the last of them is freed. */
GH_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct gh_state *st = gh_here();
    struct gh_pool *pool = st ? pool_find(st, handle, POOL_ALIVE) : NULL;
    struct gh_pool *in = entered(st, handle, POOL_ALIVE);
    if (in)
        trimmed(st, in, REAL(cuMemPoolTrimTo)(handle, 0));
    if (pool)
        pool_leaves(st, pool);
    CUresult r = REAL(cuMemPoolDestroy)(handle);
    if (pool && r != CUDA_SUCCESS)
        pool_stays(st, pool);
    else if (pool)
        pool_destroyed(st, pool);
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
    struct gh_state *st = gh_here();
    CUmemoryPool made = NULL;
    gh_policy_wait_here();
    CUresult r = REAL(cuMemPoolImportFromShareableHandle)(handle ? &made : NULL, os, type, flags);
    if (r == CUDA_SUCCESS && st) {
        pool_note(st, made, POOL_ALIVE, 0, NOT_CHARGED);
        gh_note_fixed(st);
    }
    if (r == CUDA_SUCCESS)
        *handle = made;
    return r;
}

GH_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    struct gh_state *st = gh_here();
    struct gh_pool *pool = entered(st, graph_pool_handle(device), POOL_GRAPH);
    return trimmed(st, pool, REAL(cuDeviceGraphMemTrim)(device));
}
