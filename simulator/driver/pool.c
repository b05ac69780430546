/* Simulated libcuda: stream-ordered memory. A pool takes memory from the GPU in chunks, hands out parts of them, and
 * keeps what is freed until a synchronisation finds more unused than its release threshold. Before it grows, it uses
 * its own free pages again by remapping them; so do real drivers, except for pools that other processes may map. */
#define _GNU_SOURCE
#include "heap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK (32ull << 20) /* the least that a pool grows by */
#define POOL_MAGIC 0x706f6f6c2d73696dull
#define EXPORT_MAGIC 0x7074722d73696d21ull

struct part { /* of a chunk; parts are in order of address, without gaps */
    uint64_t address, size;
    bool used;
    bool moved; /* its memory went to another chunk (then `used` is set, too) */
    struct part *next;
};

struct chunk {
    uint64_t address, size, used, moved, offset; /* offset: in the pool's file */
    struct part *parts;
    struct chunk *next;
};

struct pool {
    uint64_t magic;
    int device;
    int fd; /* the memory file of a pool that can be shared; -1: none */
    bool imported, destroyed;
    bool host;     /* in host memory, which takes nothing of the GPU */
    bool lasting;  /* a default one: never destroyed */
    uint64_t most; /* that it reserves: its maxSize; 0: as much as there is */
    uint64_t file_end;
    uint64_t reserved, reserved_high, used, used_high, threshold;
    int reuse[3];
    struct chunk *chunks;
    struct pool *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools; /* all, the default ones included */
static struct pool *default_pool[GPU_MAX], *device_pool[GPU_MAX];

struct pool_props { /* head of CUmemPoolProps */
    int alloc_type, handle_types, location_type, location_id;
    void *security;
    size_t max_size; /* since CUDA 12.2 */
};

/* Mutex held. */
static struct pool *new_pool(int device, int fd) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    *pool = (struct pool){.magic = POOL_MAGIC, .device = device, .fd = fd, .reuse = {1, 1, 1}, .next = pools};
    pools = pool;
    return pool;
}

/* Mutex held. */
static bool valid(CUmemoryPool pool) {
    struct pool *p = pools;
    while (p && p != pool)
        p = p->next;
    return p && !p->destroyed;
}

/* Mutex held. */
static struct pool *default_of(int device) {
    if (!default_pool[device])
        default_pool[device] = new_pool(device, -1);
    return default_pool[device];
}

CUmemoryPool pool_current(int device) {
    pthread_mutex_lock(&mutex);
    struct pool *pool = device_pool[device] ? device_pool[device] : default_of(device);
    pthread_mutex_unlock(&mutex);
    return pool;
}

/* --- chunks --- */

static void *map_chunk(struct pool *pool, uint64_t address, uint64_t size) {
    void *at = (void *)(uintptr_t)address;
    if (pool->fd >= 0)
        return gpu_piece_map(&sim_gpu[pool->device], pool->fd, at, size, pool->file_end, PROT_READ | PROT_WRITE);
    return mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Mutex held. Makes a chunk for memory that the GPU has already counted. */
static struct chunk *new_chunk(struct pool *pool, uint64_t size) {
    struct chunk *chunk = calloc(1, sizeof *chunk);
    struct part *part = calloc(1, sizeof *part);
    uint64_t address = chunk && part ? address_range(size, BLOCK) : 0;
    if (!address || map_chunk(pool, address, size) == MAP_FAILED) {
        if (address)
            munmap((void *)(uintptr_t)address, size);
        free(chunk);
        free(part);
        return NULL;
    }
    *part = (struct part){.address = address, .size = size};
    *chunk = (struct chunk){address, size, 0, 0, pool->file_end, part, pool->chunks};
    if (pool->fd >= 0)
        pool->file_end += size;
    pool->chunks = chunk;
    return chunk;
}

/* Mutex held. What other processes can map counts as a piece, and memory of the host not at all. */
static bool count(struct pool *pool, uint64_t bytes) {
    struct gpu *gpu = &sim_gpu[pool->device];
    return pool->host || (pool->fd >= 0 ? gpu_piece_reserve(gpu, pool->fd, bytes) : gpu_reserve(gpu, bytes));
}

static void uncount(struct pool *pool, uint64_t bytes) {
    struct gpu *gpu = &sim_gpu[pool->device];
    if (pool->fd >= 0)
        gpu_piece_add(gpu, pool->fd, -(int64_t)bytes);
    else if (!pool->host)
        gpu_release(gpu, bytes);
}

/* Mutex held. A pool whose maximum, or whose GPU, has no room for a whole chunk grows by as little as it can. */
static bool grow(struct pool *pool, uint64_t size) {
    uint64_t least = round_up(size, BLOCK), wanted = least < CHUNK ? CHUNK : least;
    uint64_t room = !pool->most ? UINT64_MAX : pool->most > pool->reserved ? pool->most - pool->reserved : 0;
    if (least > room)
        return false;
    if (wanted > room || !count(pool, wanted)) {
        wanted = least;
        if (!count(pool, wanted))
            return false;
    }
    if (!new_chunk(pool, wanted)) {
        uncount(pool, wanted);
        return false;
    }
    pool->reserved += wanted;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return true;
}

/* The whole pages (of BLOCK bytes) within an unused part. */
static uint64_t whole_pages(const struct part *p, uint64_t *from) {
    *from = round_up(p->address, BLOCK);
    uint64_t end = (p->address + p->size) / BLOCK * BLOCK;
    return !p->used && end > *from ? end - *from : 0;
}

/* Mutex held. Takes the pages [from, from + size) out of an unused part. */
static bool take_pages(struct chunk *chunk, struct part *p, uint64_t from, uint64_t size) {
    struct part *pages = calloc(1, sizeof *pages), *rest = calloc(1, sizeof *rest);
    if (!pages || !rest) {
        free(pages);
        free(rest);
        return false;
    }
    *rest = (struct part){.address = from + size, .size = p->address + p->size - from - size, .next = p->next};
    *pages = (struct part){.address = from, .size = size, .used = true, .moved = true, .next = rest};
    p->size = from - p->address;
    p->next = pages;
    chunk->moved += size;
    mmap((void *)(uintptr_t)from, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return true;
}

/* Mutex held. Makes a chunk of `size` bytes from the pool's unused pages. False: there are too few. */
static bool remap(struct pool *pool, uint64_t size) {
    uint64_t need = round_up(size, BLOCK), there = 0, from;
    for (struct chunk *c = pool->chunks; c; c = c->next)
        for (struct part *p = c->parts; p; p = p->next)
            there += whole_pages(p, &from);
    struct chunk *made = pool->fd < 0 && there >= need ? new_chunk(pool, need) : NULL;
    if (!made)
        return false;
    for (struct chunk *c = made->next; c && need; c = c->next)
        for (struct part *p = c->parts; p && need; p = p->next) {
            uint64_t pages = whole_pages(p, &from);
            if (pages > need)
                pages = need;
            if (pages && take_pages(c, p, from, pages))
                need -= pages;
        }
    return true; /* the host is out of memory: this page counts twice */
}

/* Mutex held. Releases unused chunks while the pool has more than `keep` bytes. */
static void trim(struct pool *pool, uint64_t keep) {
    for (struct chunk **p = &pool->chunks; *p && pool->reserved > keep;) {
        struct chunk *chunk = *p;
        if (chunk->used) {
            p = &chunk->next;
            continue;
        }
        *p = chunk->next;
        munmap((void *)(uintptr_t)chunk->address, chunk->size);
        if (pool->fd >= 0)
            gpu_piece_punch(&sim_gpu[pool->device], pool->fd, chunk->size, chunk->offset);
        uncount(pool, chunk->size - chunk->moved);
        pool->reserved -= chunk->size - chunk->moved;
        for (struct part *part = chunk->parts, *next; part; part = next) {
            next = part->next;
            free(part);
        }
        free(chunk);
    }
}

/* Mutex held. A destroyed pool is freed with its last allocation. */
static void bury(struct pool *pool) {
    if (!pool->destroyed || pool->used)
        return;
    trim(pool, 0);
    for (struct pool **p = &pools; *p; p = &(*p)->next)
        if (*p == pool) {
            *p = pool->next;
            break;
        }
    gpu_piece_freed(&sim_gpu[pool->device], gpu_piece_of(&sim_gpu[pool->device], pool->fd));
    gpu_piece_close(&sim_gpu[pool->device], pool->fd);
    free(pool);
}

void pool_release(int device, bool all) {
    pthread_mutex_lock(&mutex);
    for (struct pool *p = pools; p; p = p->next)
        if (p->device == device)
            trim(p, all ? 0 : p->threshold);
    pthread_mutex_unlock(&mutex);
}

/* Mutex held. Takes the smallest free part that fits and leaves its rest free. 0: none fits. */
static uint64_t cut(struct pool *pool, uint64_t size) {
    struct chunk *in = NULL;
    struct part *best = NULL;
    for (struct chunk *c = pool->chunks; c; c = c->next)
        for (struct part *p = c->size - c->used - c->moved >= size ? c->parts : NULL; p; p = p->next)
            if (!p->used && p->size >= size && (!best || p->size < best->size)) {
                in = c;
                best = p;
            }
    if (!best)
        return 0;
    if (best->size > size) {
        struct part *rest = calloc(1, sizeof *rest);
        if (!rest)
            return 0;
        *rest = (struct part){.address = best->address + size, .size = best->size - size, .next = best->next};
        best->next = rest;
        best->size = size;
    }
    best->used = true;
    in->used += size;
    pool->used += size;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    return best->address;
}

/* Mutex held. */
static void join(struct pool *pool, uint64_t address) {
    for (struct chunk *c = pool->chunks; c; c = c->next) {
        if (address - c->address >= c->size)
            continue;
        for (struct part *p = c->parts, *before = NULL; p; before = p, p = p->next) {
            if (p->address != address || !p->used || p->moved)
                continue;
            p->used = false;
            c->used -= p->size;
            pool->used -= p->size;
            if (p->next && !p->next->used) {
                struct part *next = p->next;
                p->size += next->size;
                p->next = next->next;
                free(next);
            }
            if (before && !before->used) {
                before->size += p->size;
                before->next = p->next;
                free(p);
            }
            return;
        }
    }
}

CUresult pool_allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUcontext ctx) {
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult r = valid(pool) && !pool->imported ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    /* Memory that other processes can map must consist of whole pages. */
    struct gpu *gpu = r == CUDA_ERROR_OUT_OF_MEMORY ? &sim_gpu[pool->device] : NULL;
    uint64_t size = round_up(bytes, gpu && pool->fd >= 0 ? 4096 : GRAIN), at = 0;
    if (gpu && bytes <= gpu->file->head.memory_total && (gpu->slot >= 0 || gpu_claim(gpu))) {
        at = cut(pool, size);
        if (!at) {
            bool grown = remap(pool, size) || grow(pool, size);
            if (!grown) { /* the GPU is full: first release the unused memory of other pools */
                for (struct pool *p = pools; p; p = p->next)
                    if (p->device == pool->device)
                        trim(p, 0);
                grown = grow(pool, size);
            }
            at = grown ? cut(pool, size) : 0;
        }
    }
    if (at) {
        r = heap_note((struct piece){.address = at, .size = size, .ctx = ctx, .kind = POOLED, .pool = pool});
        if (r)
            join(pool, at);
        else
            *out = at;
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

void pool_free(struct piece piece) {
    pthread_mutex_lock(&mutex);
    join(piece.pool, piece.address);
    bury(piece.pool);
    pthread_mutex_unlock(&mutex);
}

/* --- the API --- */

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    *out = default_of(dev);
    pthread_mutex_unlock(&mutex);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = pool_current(dev);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- since CUDA 13.0, pools by place and kind of memory: the host's and the managed ones have defaults of their own --- */

enum { PINNED = 1, MANAGED_KIND = 2 }; /* CU_MEM_ALLOCATION_TYPE_... */

/* Mutex held. The cell of the pool; NULL: there is no such kind of memory in that place. */
static CUmemoryPool *place_of(const struct location *where, int kind, CUmemoryPool *by_device) {
    static CUmemoryPool host, managed;
    if (where && kind == PINNED && where->type == 1)
        return where->id >= 0 && where->id < sim_gpus ? &by_device[where->id] : NULL;
    if (where && kind == PINNED && where->type >= 2 && where->type <= 4)
        return &host;
    return kind == MANAGED_KIND ? &managed : NULL;
}

static CUresult pool_by_place(CUmemoryPool *out, const struct location *where, int kind, bool current) {
    CUmemoryPool pool = NULL;
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    CUmemoryPool *cell = out ? place_of(where, kind, default_pool) : NULL;
    bool device = cell && kind == PINNED && where->type == 1;
    if (device)
        pool = current && device_pool[where->id] ? device_pool[where->id] : default_of(where->id);
    else if (cell && !*cell && (*cell = new_pool(0, -1))) {
        (*cell)->host = kind == PINNED;
        (*cell)->lasting = true;
    }
    if (cell)
        *out = device ? pool : *cell;
    pthread_mutex_unlock(&mutex);
    return !cell ? CUDA_ERROR_INVALID_VALUE : *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, const struct location *where, int kind) {
    return pool_by_place(out, where, kind, false);
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, const struct location *where, int kind) {
    return pool_by_place(out, where, kind, true);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool);
API CUresult cuMemSetMemPool(const struct location *where, int kind, CUmemoryPool pool) {
    TRY(sim_ready());
    return where && kind == PINNED && where->type == 1 ? cuDeviceSetMemPool(where->id, pool) : CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    TRY(sim_device(dev));
    pthread_mutex_lock(&mutex);
    bool ok = valid(pool) && pool->device == dev;
    if (ok)
        device_pool[dev] = pool;
    pthread_mutex_unlock(&mutex);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const struct pool_props *props) {
    TRY(sim_ready());
    if (!out || !props || props->handle_types & ~1)
        return CUDA_ERROR_INVALID_VALUE;
    /* Since CUDA 13.0 there are pools of managed memory, which may lie on the GPU wherever they say. */
    bool managed = props->alloc_type == 2, device_known = props->location_type == 1;
    bool host = !managed && props->location_type >= 2 && props->location_type <= 4;
    int device = device_known ? props->location_id : 0;
    if (sim_device(device) || (!device_known && !host && !managed) || (props->handle_types && (host || managed)) ||
        (managed && props->max_size))
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = &sim_gpu[device];
    int fd = -1;
    if (props->handle_types && ((gpu->slot < 0 && !gpu_claim(gpu)) || (fd = gpu_piece_make(gpu)) < 0))
        return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&mutex);
    *out = new_pool(device, fd);
    if (*out) {
        (*out)->host = host;
        (*out)->most = props->max_size;
    }
    pthread_mutex_unlock(&mutex);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    bool ok = valid(pool) && pool != default_pool[pool->device] && !pool->lasting;
    if (ok) {
        if (device_pool[pool->device] == pool)
            device_pool[pool->device] = NULL;
        pool->destroyed = true;
        bury(pool);
    }
    pthread_mutex_unlock(&mutex);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    bool ok = valid(pool);
    if (ok)
        trim(pool, keep);
    pthread_mutex_unlock(&mutex);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

enum { /* CU_MEMPOOL_ATTR_... */
       RELEASE_THRESHOLD = 4,
       RESERVED_CURRENT = 5,
       RESERVED_HIGH = 6,
       USED_CURRENT = 7,
       USED_HIGH = 8,
};

static CUresult attribute(CUmemoryPool pool, int which, void *value, bool set) {
    uint64_t *number = value;
    switch (which) {
    case 1:
    case 2:
    case 3: /* REUSE_... */
        if (set)
            pool->reuse[which - 1] = *(int *)value;
        else
            *(int *)value = pool->reuse[which - 1];
        return CUDA_SUCCESS;
    case RELEASE_THRESHOLD:
        if (set)
            pool->threshold = *number;
        else
            *number = pool->threshold;
        return CUDA_SUCCESS;
    case RESERVED_HIGH:
    case USED_HIGH: {
        uint64_t *high = which == RESERVED_HIGH ? &pool->reserved_high : &pool->used_high;
        if (set && *number)
            return CUDA_ERROR_INVALID_VALUE; /* these marks can only be reset */
        if (set)
            *high = which == RESERVED_HIGH ? pool->reserved : pool->used;
        else
            *number = *high;
        return CUDA_SUCCESS;
    }
    case RESERVED_CURRENT:
    case USED_CURRENT:
        if (set)
            return CUDA_ERROR_INVALID_VALUE;
        *number = which == RESERVED_CURRENT ? pool->reserved : pool->used;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult checked_attribute(CUmemoryPool pool, int which, void *value, bool set) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    CUresult r = value && valid(pool) ? attribute(pool, which, value, set) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool p, int which, void *v) { return checked_attribute(p, which, v, true); }
API CUresult cuMemPoolGetAttribute(CUmemoryPool p, int which, void *v) { return checked_attribute(p, which, v, false); }

struct access_desc { /* CUmemAccessDesc */
    int location_type, location_id, flags;
};

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const struct access_desc *map, size_t n) {
    (void)map, (void)n;
    TRY(sim_ready());
    return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, const int *location) {
    TRY(sim_ready());
    if (!flags || !pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location[1] == pool->device ? 3 : 0;
    return CUDA_SUCCESS;
}

static bool device_of(CUmemoryPool pool, int *device) {
    pthread_mutex_lock(&mutex);
    bool ok = valid(pool);
    if (ok)
        *device = pool->device;
    pthread_mutex_unlock(&mutex);
    return ok;
}

static CUresult from_pool(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
    struct stream *s;
    TRY(sim_stream(stream, &s));
    CUresult r;
    int device = s->ctx->device;
    if (!pool)
        pool = pool_current(device);
    else if (!device_of(pool, &device))
        return CUDA_ERROR_INVALID_VALUE;
    return capture_alloc(s, out, bytes, device, &r) ? r : pool_allocate(out, bytes, pool, s->ctx);
}

static CUresult free_in_stream(CUdeviceptr address, CUstream stream) {
    struct stream *s;
    struct piece piece;
    TRY(sim_stream(stream, &s));
    CUresult r;
    bool there = heap_find(address, &piece);
    if (there && piece.kind != GRAPH && s->capture) /* a captured free must be of a graph's memory */
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_free(s, address, &r))
        return r;
    if (!there)
        return CUDA_ERROR_INVALID_VALUE;
    if (piece.kind == DEVICE) /* not from a pool: it must not be freed before the work that uses it */
        TRY(sim_stream_wait(s));
    return heap_free(address);
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t n, CUstream s) { return from_pool(out, n, NULL, s); }
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t n, CUstream s) {
    return from_pool(out, n, NULL, PER_THREAD(s));
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t n, CUmemoryPool pool, CUstream s) {
    return pool ? from_pool(out, n, pool, s) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t n, CUmemoryPool pool, CUstream s) {
    return pool ? from_pool(out, n, pool, PER_THREAD(s)) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream s) { return free_in_stream(address, s); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream s) { return free_in_stream(address, PER_THREAD(s)); }

/* --- sharing: the pool is a memory file; its memory counts for the process that made it --- */

struct export { /* within CUmemPoolPtrExportData, 64 bytes */
    uint64_t magic, offset, size;
};

API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags) {
    TRY(sim_ready());
    if (!out || type != 1 || flags) /* a POSIX file descriptor */
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    bool ours = valid(pool) && pool->fd >= 0 && !pool->imported;
    struct gpu *gpu = ours ? &sim_gpu[pool->device] : NULL;
    int piece = ours ? gpu_piece_of(gpu, pool->fd) : -1;
    int fd = piece >= 0 ? gpu_piece_open(gpu, piece, gpu_piece_generation(gpu, piece)) : -1;
    sim_shares = true;
    pthread_mutex_unlock(&mutex);
    *(int *)out = fd;
    return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || type != 1 || flags)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_piece = gpu_piece_of(sim_gpu_of(ctx), (int)(intptr_t)handle) >= 0;
    int fd = is_piece ? fcntl((int)(intptr_t)handle, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_shares = true;
    pthread_mutex_lock(&mutex);
    *out = new_pool(ctx->device, fd);
    if (*out)
        (*out)->imported = true;
    pthread_mutex_unlock(&mutex);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Mutex held. The offset of this address in the pool's file. */
static bool offset_of(const struct pool *pool, uint64_t address, uint64_t *offset) {
    const struct chunk *c = pool->chunks;
    while (c && address - c->address >= c->size)
        c = c->next;
    *offset = c ? c->offset + (address - c->address) : 0;
    return c != NULL;
}

API CUresult cuMemPoolExportPointer(struct export *out, CUdeviceptr address) {
    struct piece piece;
    TRY(sim_ready());
    if (!out || !heap_find(address, &piece) || piece.kind != POOLED)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, 64);
    pthread_mutex_lock(&mutex);
    bool ok = piece.pool->fd >= 0 && offset_of(piece.pool, address, &out->offset);
    pthread_mutex_unlock(&mutex);
    out->magic = EXPORT_MAGIC;
    out->size = piece.size;
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, const struct export *data) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !data || data->magic != EXPORT_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    int fd = valid(pool) && pool->imported ? pool->fd : -1;
    void *at = fd < 0 ? MAP_FAILED
                      : gpu_piece_map(sim_gpu_of(ctx), fd, NULL, data->size, data->offset, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&mutex);
    if (at == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (uint64_t)(uintptr_t)at;
    return heap_note((struct piece){
        .address = *out, .size = data->size, .mapped = data->size, .ctx = ctx, .kind = IMPORTED, .pool = pool});
}
