#define _GNU_SOURCE
#include "memory/cuda_pool.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "driver/real.h"
#include "memory/piece.h"

#define PAGE_SHIFT 21
#define PAGE_BYTES (1ull << PAGE_SHIFT) /* a page of the GPU; pools grow by whole pages */
#define FIRST_LEAST (32ull << 20)       /* the least by which drivers grow a pool, until we learn more */
#define MOST_LEAST (1ull << 30)         /* the most that we believe this to be */
#define CHANGES ((1ull << 24) - 1)

static uint64_t charged_units(uint64_t charged) { return charged >> 24; }
static uint64_t charged_next(uint64_t charged, uint64_t units) { return units << 24 | ((charged + 1) & CHANGES); }

/* ---- the table ---- */

struct gh_pool *pool_numbered(struct gh_state *st, unsigned number) {
    if (!number || number > atomic_load_explicit(&st->pools.count, memory_order_acquire))
        return NULL;
    unsigned at = number - 1 + GH_FIRST_POOLS, k = 31 - (unsigned)__builtin_clz(at / GH_FIRST_POOLS);
    struct gh_pool *chunk = atomic_load_explicit(&st->pools.chunk[k], memory_order_acquire);
    return &chunk[at - (GH_FIRST_POOLS << k)];
}

static uint64_t key_of_pool(void *handle, enum pool_kind kind) {
    return key_of(kind == POOL_GRAPH ? GRAPH_POOL : POOL, (uintptr_t)handle);
}

struct gh_pool *pool_find(struct gh_state *st, void *handle, enum pool_kind kind) {
    uint64_t note = gh_pointers_get(&st->pointers, key_of_pool(handle, kind));
    return kind_of(note) == POOL ? pool_numbered(st, number_of(note)) : NULL;
}

/* With the lock held: a place in the table; NULL: no memory, or millions of pools. */
static struct gh_pool *new_place(struct gh_state *st) {
    struct gh_pools *all = &st->pools;
    uint32_t *link = &all->free;
    for (struct gh_pool *p; (p = pool_numbered(st, *link)); link = &p->next)
        if (!atomic_load(&p->inflight)) { /* a late operation finds out that the pool has gone, and leaves */
            *link = p->next;
            return p;
        }
    uint32_t n = atomic_load(&all->count), at = n + GH_FIRST_POOLS,
             k = 31 - (uint32_t)__builtin_clz(at / GH_FIRST_POOLS);
    if (k >= GH_POOL_CHUNKS)
        return NULL;
    if (!atomic_load(&all->chunk[k])) {
        struct gh_pool *chunk = mmap(NULL, (GH_FIRST_POOLS << k) * sizeof *chunk, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (chunk == MAP_FAILED)
            return NULL;
        atomic_store_explicit(&all->chunk[k], chunk, memory_order_release);
    }
    atomic_store_explicit(&all->count, n + 1, memory_order_release);
    struct gh_pool *p = pool_numbered(st, n + 1);
    p->number = n + 1;
    return p;
}

/* With the lock held. */
static void free_place(struct gh_state *st, struct gh_pool *pool) {
    atomic_store(&pool->kind, POOL_FREE);
    pool->next = st->pools.free;
    st->pools.free = pool->number;
}

/* With the lock held. */
static struct gh_pool *new_pool(struct gh_state *st, void *handle, enum pool_kind kind, CUdevice device, int gpu) {
    struct gh_pool *pool = new_place(st);
    if (!pool)
        return NULL;
    atomic_store(&pool->handle, handle);
    atomic_store(&pool->gpu, gpu);
    pool->device = device;
    atomic_store(&pool->charged, 0);
    atomic_store(&pool->grain, FIRST_LEAST);
    atomic_store(&pool->exportable, 0);
    atomic_store(&pool->most, 0);
    atomic_store(&pool->pieces, 0);
    atomic_store(&pool->touched, 0);
    atomic_store_explicit(&pool->kind, kind, memory_order_release);
    if (gpu >= 0)
        atomic_fetch_or(&st->pools.gpus, 1u << gpu);
    if (gh_pointers_put(&st->pointers, key_of_pool(handle, kind), pack(0, 0, pool->number, POOL)))
        return pool;
    free_place(st, pool);
    return NULL;
}

struct gh_pool *pool_note(struct gh_state *st, void *handle, enum pool_kind kind, CUdevice device, int gpu) {
    if (!gh_lock(&st->pools.lock))
        return NULL;
    struct gh_pool *pool = pool_find(st, handle, kind);
    if (!pool)
        pool = new_pool(st, handle, kind, device, gpu);
    gh_unlock(&st->pools.lock);
    return pool;
}

static void forget_handle(struct gh_state *st, struct gh_pool *pool) {
    void *handle = atomic_load(&pool->handle);
    if (pool_find(st, handle, POOL_ALIVE) == pool)
        gh_pointers_take(&st->pointers, key_of_pool(handle, POOL_ALIVE));
}

void pool_leaves(struct gh_state *st, struct gh_pool *pool) {
    int64_t until = 0;
    atomic_store(&pool->kind, POOL_LEAVING);
    forget_handle(st, pool);
    /* Threads that have just looked at it must not ask the driver about a pool that has gone. */
    for (unsigned step = 0; atomic_load(&pool->inflight) && gh_wait(step, &until); step++) {}
}

void pool_stays(struct gh_state *st, struct gh_pool *pool) {
    uint64_t key = key_of_pool(atomic_load(&pool->handle), POOL_ALIVE);
    atomic_store(&pool->kind, POOL_ALIVE);
    gh_pointers_put(&st->pointers, key, pack(0, 0, pool->number, POOL));
}

void pool_destroyed(struct gh_state *st, struct gh_pool *pool) {
    uint32_t leaving = POOL_LEAVING;
    if (!gh_lock(&st->pools.lock))
        return;
    atomic_compare_exchange_strong(&pool->kind, &leaving, POOL_DESTROYED);
    if (atomic_load(&pool->kind) == POOL_DESTROYED && atomic_load(&pool->pieces) <= 0) {
        uint64_t was = atomic_load(&pool->charged);
        while (!atomic_compare_exchange_strong(&pool->charged, &was, charged_next(was, 0))) {}
        if (atomic_load(&pool->gpu) >= 0)
            gh_release(st, (unsigned)atomic_load(&pool->gpu), charged_units(was));
        free_place(st, pool);
    }
    gh_unlock(&st->pools.lock);
}

struct gh_pool *graph_pool(struct gh_state *st, CUdevice device, int gpu) {
    void *handle = graph_pool_handle(device);
    struct gh_pool *pool = pool_find(st, handle, POOL_GRAPH);
    return pool ? pool : pool_note(st, handle, POOL_GRAPH, device, gpu);
}

struct gh_pool *pool_learn(struct gh_state *st, CUmemoryPool handle, CUdevice device) {
    CUmemoryPool own;
    uint64_t reserved;
    int count = 0;
    if (REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
        return NULL;
    if (!REAL(cuDeviceGetCount)(&count))
        for (CUdevice d = 0; d < count; d++)
            if (!REAL(cuDeviceGetDefaultMemPool)(&own, d) && own == handle)
                device = d;
    return pool_note(st, handle, POOL_ALIVE, device, gpu_of_device(st, device));
}

/* ---- which operations may use a pool at the same time ---- */

/* Many operations may change a pool at once. Only an operation that relies on the pool's idle memory must be alone.
 * After waiting for seconds we assume that the thread of that operation has gone. */
bool pool_enter(struct gh_pool *pool, void *handle) {
    int64_t until = 0;
    for (unsigned step = 0;; step++) {
        atomic_fetch_add(&pool->inflight, 1);
        uint32_t kind = atomic_load(&pool->kind);
        if ((kind != POOL_ALIVE && kind != POOL_GRAPH) || atomic_load(&pool->handle) != handle) {
            atomic_fetch_sub(&pool->inflight, 1);
            return false;
        }
        if (!atomic_load(&pool->alone))
            return true;
        atomic_fetch_sub(&pool->inflight, 1);
        if (!gh_wait(step, &until))
            atomic_store(&pool->alone, 0);
    }
}

void pool_leave(struct gh_pool *pool) { atomic_fetch_sub(&pool->inflight, 1); }

enum turn { TURN_MINE, TURN_OTHERS, TURN_NEVER };

/* An operation that has entered waits until the others have left. TURN_OTHERS: another one waits for the same; leave,
 * and enter again. */
static enum turn be_alone(struct gh_pool *pool) {
    int64_t until = 0;
    uint32_t nobody = 0;
    if (!atomic_compare_exchange_strong(&pool->alone, &nobody, 1))
        return TURN_OTHERS;
    for (unsigned step = 0; atomic_load(&pool->inflight) != 1; step++)
        if (!gh_wait(step, &until)) {
            atomic_store(&pool->alone, 0);
            return TURN_NEVER;
        }
    return TURN_MINE;
}

/* ---- which pages of the GPU are in use ---- */

/* Counts the pages of a piece: those in its middle are its own, those at its ends it may share with other pieces. */
static void touch(struct gh_state *st, struct gh_pool *pool, uint64_t address, uint64_t value, int64_t more) {
    uint64_t first = address >> PAGE_SHIFT, last = (address + gh_bytes(units_of(value)) - 1) >> PAGE_SHIFT;
    int64_t pages = last > first ? (int64_t)(last - first - 1) * more : 0;
    for (uint64_t page = first;; page = last) {
        /* Counted in steps of 16, so that kind_of() of this note is 0. */
        int64_t ends = gh_pointers_count(&st->pointers, key_of(PAGE, page), 16 * more);
        if (ends == (more > 0 ? 16 : 0))
            pages += more;
        if (page == last)
            break;
    }
    atomic_fetch_add(&pool->touched, pages);
    atomic_fetch_add(&pool->pieces, more);
}

void pool_put(struct gh_state *st, struct gh_pool *pool, uint64_t address, uint64_t bytes) {
    uint64_t value = pack(gh_units(bytes), atomic_load(&pool->gpu), pool->number, POOLED);
    uint64_t stale = gh_pointers_take(&st->pointers, address); /* an old piece there was freed with its context */
    struct gh_pool *old = kind_of(stale) == POOLED ? pool_numbered(st, number_of(stale)) : NULL;
    if (old)
        touch(st, old, address, stale, -1);
    gh_pointers_put(&st->pointers, address, value);
    touch(st, pool, address, value, 1);
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

bool pool_full(const struct gh_pool *pool, uint64_t bytes) {
    uint64_t most = atomic_load(&pool->most), reserved, used;
    return most && figures(pool, &reserved, &used) && (used > most || bytes > most - used);
}

uint64_t pool_least(struct gh_state *st) {
    uint64_t least = atomic_load(&st->pools.least);
    return least ? least : FIRST_LEAST;
}

/* The most that a pool can grow by to allocate so many more bytes. */
static uint64_t growth_for(struct gh_state *st, const struct gh_pool *pool, uint64_t bytes) {
    uint64_t grain = atomic_load(&pool->grain), least = pool_least(st);
    if (grain < least && least > FIRST_LEAST)
        grain = least; /* a pool has grown by more than we thought */
    bytes = (bytes + grain - 1) & ~(grain - 1);
    return bytes > least ? bytes : least;
}

/* The reserved size is a sum of growths, so its lowest bit is an upper bound for the grain. */
static void learn_grain(struct gh_pool *pool, uint64_t reserved) {
    uint64_t low = reserved & -reserved, grain = atomic_load(&pool->grain);
    low = low > PAGE_BYTES ? low : PAGE_BYTES;
    if (reserved && low < grain)
        atomic_store(&pool->grain, low);
}

/* This driver grows pools by more than we foresaw: foresee twice as much from now on. */
static void learn_least(struct gh_state *st) {
    uint64_t least = pool_least(st);
    if (least < MOST_LEAST)
        atomic_store(&st->pools.least, 2 * least);
}

static uint64_t limit_of(struct gh_state *st, unsigned gpu) {
    struct gh_limit limit;
    if (!gh_policy_limit(st, gpu, &limit))
        return 0;
    return gh_most_units(st, &limit, false);
}

/* Other operations have charged their own growth in advance, whether the driver's figure contains it yet or not. So we
 * set the charge to that figure, but to no more than the pool's charge and our advance: the rest is theirs. Only an
 * operation that is alone may add what nobody foresaw. *idle: the pool has memory that it may release. */
static CUresult correct(struct gh_state *st, struct gh_pool *pool, uint64_t foreseen, bool alone, bool *idle) {
    unsigned gpu = (unsigned)atomic_load(&pool->gpu);
    CUresult result = CUDA_SUCCESS;
    *idle = true;
    for (int i = 0; i < 1000; i++) {
        uint64_t was = atomic_load_explicit(&pool->charged, memory_order_acquire), reserved, used;
        bool only = atomic_load(&pool->inflight) == 1;
        if (!figures(pool, &reserved, &used))
            break;
        only = alone || (only && atomic_load(&pool->inflight) == 1);
        learn_grain(pool, reserved);
        uint64_t have = charged_units(was), now = gh_units(reserved);
        if (!only && now > have + foreseen)
            now = have + foreseen;
        if (now > have + foreseen) {
            uint64_t more = now - have - foreseen;
            learn_least(st);
            if (gh_reserve(st, gpu, more, limit_of(st, gpu)) != GH_RESERVED) {
                result = CUDA_ERROR_OUT_OF_MEMORY;
                /* Charge it all the same: the memory is in use until the caller has undone its call. */
                if (gh_reserve(st, gpu, more, GH_UNLIMITED) != GH_RESERVED)
                    break;
            }
            foreseen += more;
        }
        uint64_t next = charged_next(was, now);
        if (atomic_compare_exchange_strong(&pool->charged, &was, next)) {
            gh_release(st, gpu, have + foreseen - now);
            *idle = reserved > used;
            return result;
        }
    }
    /* The driver does not answer: what was charged in advance stays charged to the pool. */
    uint64_t was = atomic_load(&pool->charged);
    while (!atomic_compare_exchange_strong(&pool->charged, &was, charged_next(was, charged_units(was) + foreseen))) {}
    return result;
}

CUresult pool_correct(struct gh_state *st, struct gh_pool *pool, uint64_t foreseen, bool alone) {
    bool idle;
    return correct(st, pool, foreseen, alone, &idle);
}

/* True if the pool's idle memory suffices: the driver remaps unused pages before it takes more from the GPU, except in
 * pools that other processes can map. The caller is alone at the pool. If true, the release threshold is raised, so
 * that the driver does not release the idle memory meanwhile. */
static bool suffices(struct growth *g, uint64_t bytes, uint64_t back) {
    struct gh_pool *pool = g->pool;
    CUmemoryPool handle = atomic_load(&pool->handle);
    uint64_t reserved, used, all = UINT64_MAX, pages = (bytes + PAGE_BYTES - 1) >> PAGE_SHIFT;
    if (atomic_load(&pool->kind) == POOL_GRAPH)
        return figures(pool, &reserved, &used) && reserved + back >= used + bytes;
    if ((pages > 1 && atomic_load(&pool->exportable)) ||
        REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &g->threshold) ||
        REAL(cuMemPoolSetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all))
        return false;
    int64_t touched = atomic_load(&pool->touched);
    if (figures(pool, &reserved, &used) && reserved >= used + bytes &&
        reserved >> PAGE_SHIFT >= pages + (touched > 0 ? (uint64_t)touched : 0))
        return true;
    REAL(cuMemPoolSetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &g->threshold);
    return false;
}

CUresult pool_begin(struct growth *g, struct gh_state *st, struct gh_pool *pool, void *handle, uint64_t bytes,
                    uint64_t back) {
    *g = (struct growth){st, pool, 0, false, 0};
    if (!pool || atomic_load(&pool->gpu) == NOT_CHARGED) {
        g->pool = NULL;
        return CUDA_SUCCESS;
    }
    int gpu = atomic_load(&pool->gpu);
    if (gpu < 0 || bytes > UINT64_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    gh_policy_wait(st);
    if (gh_pressed(st, (unsigned)gpu))
        pools_trim(st, gpu);
    bool trimmed = false;
    for (int i = 0; i < 1000; i++) {
        uint64_t units = gh_units(growth_for(st, pool, bytes));
        if (!pool_enter(pool, handle))
            return CUDA_ERROR_OUT_OF_MEMORY;
        enum gh_reservation done = gh_reserve(st, (unsigned)gpu, units, limit_of(st, (unsigned)gpu));
        if (done == GH_RESERVED) {
            g->units = units;
            return CUDA_SUCCESS;
        }
        /* No room to grow. The pool's idle memory may suffice; otherwise the pools must release theirs first. */
        enum turn turn = done == GH_NO_ROOM ? be_alone(pool) : TURN_NEVER;
        if (turn == TURN_MINE && suffices(g, bytes, back)) {
            g->alone = true;
            return CUDA_SUCCESS;
        }
        if (turn == TURN_MINE)
            atomic_store(&pool->alone, 0);
        pool_leave(pool);
        if (done != GH_NO_ROOM)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (turn == TURN_OTHERS)
            continue;
        bool closed = !trimmed && pieces_reclaim(st);
        if (trimmed || (!pools_trim(st, gpu) && !closed))
            break;
        trimmed = true;
    }
    gh_press(st, (unsigned)gpu);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pool_end(struct growth *g) {
    if (!g->pool)
        return CUDA_SUCCESS;
    CUresult r = pool_correct(g->st, g->pool, g->units, g->alone);
    if (g->alone) {
        if (atomic_load(&g->pool->kind) != POOL_GRAPH)
            REAL(cuMemPoolSetAttribute)(atomic_load(&g->pool->handle), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                        &g->threshold);
        atomic_store(&g->pool->alone, 0);
    }
    pool_leave(g->pool);
    return r;
}

bool pool_is_accounted(const struct gh_pool *pool) {
    uint32_t kind = atomic_load(&pool->kind);
    return (kind == POOL_ALIVE || kind == POOL_GRAPH) && atomic_load(&pool->gpu) >= 0;
}

uint32_t pools_gpus(const struct gh_state *st) { return atomic_load(&st->pools.gpus); }

void pools_changed(struct gh_state *st) {
    if (atomic_load_explicit(&st->pools.count, memory_order_relaxed))
        atomic_store(&st->pools.dirty, 1);
}

/* The next pool after number *n that is charged for something. */
static struct gh_pool *next_charged(struct gh_state *st, unsigned *n) {
    struct gh_pool *pool;
    while ((pool = pool_numbered(st, ++*n)))
        if (pool_is_accounted(pool) && charged_units(atomic_load(&pool->charged)))
            return pool;
    return NULL;
}

/* True if the pool has idle memory, which the driver may release at any synchronisation. */
static bool look(struct gh_state *st, struct gh_pool *pool) {
    bool idle;
    if (!pool_enter(pool, atomic_load(&pool->handle)))
        return false;
    correct(st, pool, 0, false, &idle);
    pool_leave(pool);
    return idle;
}

void pools_look(struct gh_state *st) {
    if (!atomic_load_explicit(&st->pools.count, memory_order_acquire) || !atomic_exchange(&st->pools.dirty, 0))
        return;
    struct gh_pool *pool;
    for (unsigned n = 0; (pool = next_charged(st, &n));)
        if (look(st, pool))
            atomic_store(&st->pools.dirty, 1);
}

static void trim(struct gh_state *st, struct gh_pool *pool) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* in another mode, a trim invalidates a capture by another thread */
    if (!pool_enter(pool, atomic_load(&pool->handle)))
        return;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (atomic_load(&pool->kind) == POOL_GRAPH)
        REAL(cuDeviceGraphMemTrim)(pool->device);
    else
        REAL(cuMemPoolTrimTo)(atomic_load(&pool->handle), 0);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pool_correct(st, pool, 0, false);
    pool_leave(pool);
}

bool pools_trim(struct gh_state *st, int gpu) {
    struct gh_pool *pool;
    bool any = false;
    for (unsigned n = 0; (pool = next_charged(st, &n));)
        if (atomic_load(&pool->gpu) == gpu) {
            trim(st, pool);
            any = true;
        }
    return any;
}

void pool_freed(struct gh_state *st, uint64_t address, uint64_t value) {
    struct gh_pool *pool = pool_numbered(st, number_of(value));
    if (!pool)
        return;
    touch(st, pool, address, value, -1);
    atomic_store(&st->pools.dirty, 1);
    if (atomic_load(&pool->kind) == POOL_DESTROYED)
        pool_destroyed(st, pool);
}

struct list {
    uint64_t *key;
    size_t count, room;
};

static bool add_piece(uint64_t key, uint64_t value, void *with) {
    struct list *l = with;
    if (kind_of(value) == POOLED && l->count < l->room)
        l->key[l->count++] = key;
    return false;
}

void pools_lost(struct gh_state *st) {
    struct list all = {0};
    CUdeviceptr base;
    size_t bytes;
    struct gh_pool *pool;
    for (unsigned n = 0; (pool = pool_numbered(st, ++n));) {
        int64_t pieces = atomic_load(&pool->pieces);
        all.room += pieces > 0 ? (size_t)pieces : 0;
    }
    if (!all.room || !(all.key = calloc(all.room, sizeof *all.key)))
        return;
    gh_pointers_filter(&st->pointers, add_piece, &all);
    for (size_t i = 0; i < all.count; i++) {
        CUresult r = REAL(cuMemGetAddressRange_v2)(&base, &bytes, all.key[i]);
        bool gone = r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_FOUND;
        uint64_t value = gone ? gh_pointers_take(&st->pointers, all.key[i]) : 0;
        if (value)
            pool_freed(st, all.key[i], value);
    }
    free(all.key);
}
