#include "cuda_pool.h"

#include "real.h"

#define GRAIN (2ull << 20)       /* a card's page: no pool grows by less */
#define FIRST_GRAIN (32ull << 20) /* what drivers grow a pool by, until one is seen to do with less */
#define CHANGES ((1ull << 24) - 1)

static uint64_t booked_units(uint64_t booked) { return booked >> 24; }
static uint64_t booked_next(uint64_t booked, uint64_t units) { return units << 24 | ((booked + 1) & CHANGES); }

/* ---- the table ---- */

static struct gh_pool *find(struct gh_state *st, void *handle, enum pool_kind kind) {
    uint32_t n = atomic_load_explicit(&st->pools.count, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load_explicit(&st->pools.pool[i].kind, memory_order_acquire) == kind &&
            atomic_load_explicit(&st->pools.pool[i].handle, memory_order_relaxed) == handle)
            return &st->pools.pool[i];
    return NULL;
}

/* NULL when the table is full: then each allocation is charged by itself. */
static struct gh_pool *note(struct gh_state *st, void *handle, enum pool_kind kind, CUdevice device, int card) {
    struct gh_pool *pool = NULL;
    if (!gh_lock(&st->pools.lock))
        return NULL;
    if (!(pool = find(st, handle, kind))) {
        uint32_t n = atomic_load(&st->pools.count), i = 0;
        while (i < n && atomic_load(&st->pools.pool[i].kind) != POOL_FREE)
            i++;
        if (i < GH_POOLS) {
            pool = &st->pools.pool[i];
            atomic_store(&pool->handle, handle);
            atomic_store(&pool->card, card);
            pool->device = device;
            atomic_store(&pool->booked, 0);
            atomic_store(&pool->grain, FIRST_GRAIN);
            atomic_store_explicit(&pool->kind, kind, memory_order_release);
            if (i == n)
                atomic_store_explicit(&st->pools.count, n + 1, memory_order_release);
        }
    }
    gh_unlock(&st->pools.lock);
    return pool;
}

struct gh_pool *graph_pool(struct gh_state *st, CUdevice device, int card) {
    void *handle = (void *)((uintptr_t)device + 1);
    struct gh_pool *pool = find(st, handle, POOL_GRAPH);
    return pool ? pool : note(st, handle, POOL_GRAPH, device, card);
}

/* A pool that we did not see made: a device's own, or one of a library that looked its functions up elsewhere. */
static struct gh_pool *learn(struct gh_state *st, CUmemoryPool handle, CUdevice device) {
    CUmemoryPool own;
    int count = 0;
    if (!REAL(cuDeviceGetCount)(&count))
        for (CUdevice d = 0; d < count; d++)
            if (!REAL(cuDeviceGetDefaultMemPool)(&own, d) && own == handle)
                device = d;
    return note(st, handle, POOL_ALIVE, device, card_of_device(st, device));
}

/* ---- growth ---- */

static bool figures(const struct gh_pool *pool, uint64_t *reserved, uint64_t *used) {
    uint64_t r = 0, u = 0;
    if (atomic_load(&pool->kind) == POOL_GRAPH) {
        if (REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &r) ||
            REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &u))
            return false;
    } else if (REAL(cuMemPoolGetAttribute)(atomic_load(&pool->handle), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r) ||
               REAL(cuMemPoolGetAttribute)(atomic_load(&pool->handle), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u)) {
        return false;
    }
    *reserved = r;
    *used = u;
    return true;
}

/* What is reserved is a multiple of the grain, so its lowest bit bounds that from above. */
static void learn_grain(struct gh_pool *pool, uint64_t reserved) {
    uint64_t low = reserved & -reserved, grain = atomic_load(&pool->grain);
    low = low > GRAIN ? low : GRAIN;
    if (reserved && low < grain)
        atomic_store(&pool->grain, low);
}

static uint64_t limit_of(struct gh_state *st, unsigned card) {
    struct gh_limit limit;
    if (!gh_policy_limit(st, card, &limit))
        return 0;
    return limit.whole ? GH_UNLIMITED : limit.bytes >> GH_UNIT_SHIFT;
}

/* Brings the books to what the driver has reserved. `held` was booked in advance and is given back or used up here.
 * Only who is alone in the pool may lower the figure, or add what nobody booked; the others leave that to the last. */
static CUresult correct(struct gh_state *st, struct gh_pool *pool, uint64_t held) {
    unsigned card = (unsigned)atomic_load(&pool->card);
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 1000; i++) {
        uint64_t was = atomic_load_explicit(&pool->booked, memory_order_acquire), reserved, used;
        bool alone = atomic_load(&pool->inflight) == 1;
        if (!figures(pool, &reserved, &used))
            break;
        alone = alone && atomic_load(&pool->inflight) == 1;
        learn_grain(pool, reserved);
        uint64_t have = booked_units(was), want = gh_units(reserved), now = want;
        if (!alone) {
            now = want > have + held ? have + held : want < have ? have : want;
            /* Idle memory that another counts on may be what we were given: then our advance stays, for his growth. */
            if (atomic_load(&pool->claimed)) {
                now = have + held;
                atomic_store(&st->pools.dirty, 1);
            }
        }
        if (now > have + held) { /* it grew by more than was foreseen */
            uint64_t more = now - have - held;
            if (gh_reserve(st, card, more, limit_of(st, card)) != GH_BOOKED) {
                result = CUDA_ERROR_OUT_OF_MEMORY;
                /* Booked all the same: the memory is taken until the caller has undone his call. */
                if (gh_reserve(st, card, more, GH_UNLIMITED) != GH_BOOKED)
                    break;
            }
            held += more;
        }
        uint64_t next = booked_next(was, now);
        if (atomic_compare_exchange_strong(&pool->booked, &was, next)) {
            gh_release(st, card, have + held - now);
            return result;
        }
    }
    /* The driver does not tell: what was foreseen stays booked for the pool. */
    uint64_t was = atomic_load(&pool->booked);
    while (!atomic_compare_exchange_strong(&pool->booked, &was, booked_next(was, booked_units(was) + held))) {}
    return result;
}

/* Counts on memory that the pool has and does not need, beside what others count on already. */
static bool claim(struct gh_pool *pool, uint64_t bytes, uint64_t back) {
    uint64_t reserved, used, units = gh_units(bytes);
    uint64_t others = gh_bytes(atomic_fetch_add(&pool->claimed, units));
    if (figures(pool, &reserved, &used) && reserved + back >= used + others + bytes)
        return true;
    atomic_fetch_sub(&pool->claimed, units);
    return false;
}

CUresult pool_begin(struct growth *g, struct gh_state *st, struct gh_pool *pool, uint64_t bytes, uint64_t back) {
    *g = (struct growth){st, pool, 0, 0};
    if (!pool || atomic_load(&pool->card) == NOT_CHARGED) {
        g->pool = NULL;
        return CUDA_SUCCESS;
    }
    int card = atomic_load(&pool->card);
    uint64_t grain = atomic_load(&pool->grain), units = gh_units((bytes + grain - 1) & ~(grain - 1));
    if (card < 0 || bytes > UINT64_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t limit = limit_of(st, (unsigned)card);
    if (gh_pressed(st, (unsigned)card))
        pools_trim(st, card);
    /* From here on nobody lowers what is booked for the pool. */
    atomic_fetch_add(&pool->inflight, 1);
    enum gh_booked done = gh_reserve(st, (unsigned)card, units, limit);
    if (done == GH_BOOKED)
        g->units = units;
    /* No room to grow: what the pool keeps may do; else it must give that back first. */
    if (done == GH_NO_ROOM && claim(pool, bytes, back)) {
        g->claimed = gh_units(bytes);
        done = GH_BOOKED;
    }
    if (done == GH_NO_ROOM) {
        atomic_fetch_sub(&pool->inflight, 1);
        bool trimmed = pools_trim(st, card);
        atomic_fetch_add(&pool->inflight, 1);
        if (trimmed && (done = gh_reserve(st, (unsigned)card, units, limit)) == GH_BOOKED)
            g->units = units;
    }
    if (done == GH_BOOKED)
        return CUDA_SUCCESS;
    atomic_fetch_sub(&pool->inflight, 1);
    if (done == GH_NO_ROOM)
        gh_press(st, (unsigned)card);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_end(struct growth *g) {
    if (!g->pool)
        return CUDA_SUCCESS;
    CUresult r = correct(g->st, g->pool, g->units);
    atomic_fetch_sub(&g->pool->claimed, g->claimed);
    atomic_fetch_sub(&g->pool->inflight, 1);
    return r;
}

/* True when it keeps memory that it does not need: the driver may give that back at any synchronisation. */
static bool look(struct gh_state *st, struct gh_pool *pool) {
    uint64_t reserved, used;
    atomic_fetch_add(&pool->inflight, 1);
    correct(st, pool, 0);
    atomic_fetch_sub(&pool->inflight, 1);
    return !figures(pool, &reserved, &used) || reserved > used;
}

static bool charged(const struct gh_pool *pool) {
    uint32_t kind = atomic_load(&pool->kind);
    return (kind == POOL_ALIVE || kind == POOL_GRAPH) && atomic_load(&pool->card) >= 0;
}

void pools_look(struct gh_state *st) {
    uint32_t n = atomic_load_explicit(&st->pools.count, memory_order_acquire);
    if (!n || !atomic_exchange(&st->pools.dirty, 0))
        return;
    for (uint32_t i = 0; i < n; i++)
        if (charged(&st->pools.pool[i]) && look(st, &st->pools.pool[i]))
            atomic_store(&st->pools.dirty, 1);
}

bool pools_trim(struct gh_state *st, int card) {
    uint32_t n = atomic_load_explicit(&st->pools.count, memory_order_acquire);
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct gh_pool *pool = &st->pools.pool[i];
        if (!charged(pool) || atomic_load(&pool->card) != card || !booked_units(atomic_load(&pool->booked)))
            continue;
        /* Relaxed: else a trim would spoil a capture that another thread has under way. */
        int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        if (atomic_load(&pool->kind) == POOL_GRAPH)
            REAL(cuDeviceGraphMemTrim)(pool->device);
        else
            REAL(cuMemPoolTrimTo)(atomic_load(&pool->handle), 0);
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
        look(st, pool);
        any = true;
    }
    return any;
}

void pool_freed(struct gh_state *st, unsigned at, uint64_t units) {
    struct gh_pool *pool = &st->pools.pool[at % GH_POOLS];
    atomic_store(&st->pools.dirty, 1);
    if (atomic_load(&pool->kind) != POOL_DESTROYED)
        return;
    uint64_t was = atomic_load(&pool->booked), gone;
    do {
        gone = units < booked_units(was) ? units : booked_units(was);
    } while (!atomic_compare_exchange_strong(&pool->booked, &was, booked_next(was, booked_units(was) - gone)));
    gh_release(st, (unsigned)atomic_load(&pool->card), gone);
}

/* ---- the calls ---- */

static bool capturing(CUstream stream) {
    int status = 0;
    return !REAL(cuStreamIsCapturing)(stream, &status) && status;
}

/* The device of a stream; the default streams are the current context's. */
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

/* `default_stream`: what the stream NULL means to this variant of the call. */
static CUresult alloc_async(CUdeviceptr *pointer, size_t bytes, CUmemoryPool handle, CUstream stream,
                            alloc_call *call, free_call *undo, uintptr_t default_stream) {
    struct gh_state *st = gh_here();
    struct growth g;
    CUdevice device;
    CUresult r;
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (capturing(stream ? stream : (CUstream)default_stream)) { /* a node: charged when the graph is launched */
        atomic_store(&st->pools.graphs_allocate, 1);
        return call(pointer, bytes, handle, stream);
    }
    if (!device_of(stream, &device) || (!handle && REAL(cuDeviceGetMemPool)(&handle, device)))
        return call(pointer, bytes, handle, stream); /* the driver refuses, too */
    struct gh_pool *pool = find(st, handle, POOL_ALIVE);
    if (!pool && !(pool = learn(st, handle, device))) {
        struct charge c; /* too many pools: charge the piece itself */
        if ((r = charge_at(&c, st, (struct place){card_of_device(st, device), 0}, (bytes + GRAIN - 1) & ~(GRAIN - 1))))
            return r;
        r = call(pointer, bytes, handle, stream);
        return settle_alloc(&c, r, LINEAR, r ? 0 : *pointer);
    }
    if ((r = pool_begin(&g, st, pool, bytes, 0)))
        return r;
    r = call(pointer, bytes, handle, stream);
    if (pool_end(&g) && r == CUDA_SUCCESS) {
        undo(*pointer, stream);
        pools_trim(st, atomic_load(&pool->card));
        atomic_store(&st->pools.dirty, 1);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS && g.pool)
        gh_pointers_put(&st->pointers, *pointer, pack(gh_units(bytes), atomic_load(&pool->card),
                                                      (unsigned)(pool - st->pools.pool), POOLED));
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
        return synchronised(REAL(cuStreamSynchronize##suffix)(stream));                                              \
    }

/* A synchronisation is when the driver gives back what a pool keeps above its release threshold. */
static CUresult synchronised(CUresult r) {
    struct gh_state *st = gh_here();
    uint32_t n = st ? atomic_load_explicit(&st->pools.count, memory_order_acquire) : 0;
    if (n)
        pools_look(st);
    for (uint32_t i = 0; i < n; i++) {
        int card = atomic_load(&st->pools.pool[i].card);
        if (card >= 0 && gh_pressed(st, (unsigned)card))
            pools_trim(st, card);
    }
    return r;
}

ASYNC(, CU_STREAM_LEGACY)
ASYNC(_ptsz, CU_STREAM_PER_THREAD)

GH_EXPORT CUresult cuCtxSynchronize(void) { return synchronised(REAL(cuCtxSynchronize)()); }
GH_EXPORT CUresult cuCtxSynchronize_v2(CUcontext c) { return synchronised(REAL(cuCtxSynchronize_v2)(c)); }
GH_EXPORT CUresult cuEventSynchronize(CUevent event) { return synchronised(REAL(cuEventSynchronize)(event)); }

GH_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props) {
    CUresult r = REAL(cuMemPoolCreate)(handle, props);
    struct gh_state *st = gh_here();
    if (r == CUDA_SUCCESS && st)
        note(st, *handle, POOL_ALIVE, props->location.id,
             on_host(&props->location) ? NOT_CHARGED : card_of_device(st, props->location.id));
    return r;
}

GH_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct gh_state *st = gh_here();
    struct gh_pool *pool = st ? find(st, handle, POOL_ALIVE) : NULL;
    uint64_t reserved, used = 0;
    bool known = pool && charged(pool) && figures(pool, &reserved, &used);
    if (pool) /* before the driver may give the handle to another pool */
        atomic_store(&pool->kind, POOL_DESTROYED);
    CUresult r = REAL(cuMemPoolDestroy)(handle);
    if (!pool)
        return r;
    if (r != CUDA_SUCCESS) {
        atomic_store(&pool->kind, POOL_ALIVE);
        return r;
    }
    /* Pieces still handed out live on until each is freed. */
    uint64_t was = atomic_load(&pool->booked), kept = known ? gh_units(used) : 0;
    kept = kept < booked_units(was) ? kept : booked_units(was);
    while (!atomic_compare_exchange_strong(&pool->booked, &was, booked_next(was, kept))) {}
    if (atomic_load(&pool->card) >= 0)
        gh_release(st, (unsigned)atomic_load(&pool->card), booked_units(was) - kept);
    if (!kept)
        atomic_store(&pool->kind, POOL_FREE);
    return r;
}

GH_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    CUresult r = REAL(cuMemPoolTrimTo)(handle, keep);
    struct gh_state *st = gh_here();
    struct gh_pool *pool = st ? find(st, handle, POOL_ALIVE) : NULL;
    if (pool && charged(pool))
        look(st, pool);
    return r;
}

/* An imported pool hands out nothing new, and what its exporter handed out is charged to him. */
GH_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *os, int type, uint64_t flags) {
    CUresult r = REAL(cuMemPoolImportFromShareableHandle)(handle, os, type, flags);
    struct gh_state *st = gh_here();
    if (r == CUDA_SUCCESS && st)
        note(st, *handle, POOL_ALIVE, 0, NOT_CHARGED);
    return r;
}

GH_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult r = REAL(cuDeviceGraphMemTrim)(device);
    struct gh_state *st = gh_here();
    struct gh_pool *pool = st ? find(st, (void *)((uintptr_t)device + 1), POOL_GRAPH) : NULL;
    if (pool && charged(pool))
        look(st, pool);
    return r;
}
