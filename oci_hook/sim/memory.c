/* Simulated libcuda: device memory. What counts is the booking on the card; the bytes are host memory that is only
 * touched when a program touches it, at an address that is also the device pointer. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GRAIN 512ull       /* what an allocation is rounded to */
#define BLOCK (2ull << 20) /* granularity of the virtual-memory API */

enum kind { DEVICE, MANAGED, ASYNC };

struct piece {
    uint64_t address, size, mapped;
    CUcontext ctx;
    enum kind kind;
    CUmemoryPool pool;
};

struct pool {
    int device;
    uint64_t used, used_high, threshold;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct piece *pieces; /* by falling address: mmap hands out addresses downwards, so most go to the end */
static size_t count, room;
static struct pool default_pool[CARD_MAX];
static CUmemoryPool device_pool[CARD_MAX];

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Mutex held: index of the first piece whose address is not above this one. */
static size_t position(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pieces[middle].address > address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Mutex held: the piece that holds this address, or NULL. */
static struct piece *holding(uint64_t address)
{
    size_t at = position(address);
    return at < count && address - pieces[at].address < pieces[at].size ? &pieces[at] : NULL;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, enum kind kind, CUmemoryPool pool)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct card *card = sim_card_of(ctx);
    if (bytes > card->file->head.memory_total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t size = round_up(bytes, GRAIN), mapped = round_up(size, 4096);
    if (!card_reserve(card, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutex_lock(&mutex);
    if (at != MAP_FAILED && count == room) {
        size_t more = room ? room * 2 : 256;
        struct piece *grown = realloc(pieces, more * sizeof *grown);
        if (grown) {
            pieces = grown;
            room = more;
        }
    }
    if (at == MAP_FAILED || count == room) {
        pthread_mutex_unlock(&mutex);
        if (at != MAP_FAILED)
            munmap(at, mapped);
        card_release(card, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t index = position((uint64_t)(uintptr_t)at);
    memmove(&pieces[index + 1], &pieces[index], (count - index) * sizeof *pieces);
    pieces[index] = (struct piece){(uint64_t)(uintptr_t)at, size, mapped, ctx, kind, pool};
    count++;
    if (pool) {
        pool->used += size;
        if (pool->used > pool->used_high)
            pool->used_high = pool->used;
    }
    pthread_mutex_unlock(&mutex);
    *out = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

/* Mutex held. */
static void drop(size_t index)
{
    struct piece p = pieces[index];
    count--;
    memmove(&pieces[index], &pieces[index + 1], (count - index) * sizeof *pieces);
    if (p.pool)
        p.pool->used -= p.size;
    munmap((void *)(uintptr_t)p.address, p.mapped);
    card_release(sim_card_of(p.ctx), p.size);
}

static CUresult release(CUdeviceptr address)
{
    TRY(sim_ready());
    if (!address)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    size_t index = position(address);
    bool known = index < count && pieces[index].address == address;
    if (known)
        drop(index);
    pthread_mutex_unlock(&mutex);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_free_all(CUcontext ctx)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = count; i > 0; i--)
        if (pieces[i - 1].ctx == ctx)
            drop(i - 1);
    pthread_mutex_unlock(&mutex);
}

/* Work on the device that uses this memory may be under way: cuMemFree waits for it, as the real one does. */
static CUresult free_synchronised(CUdeviceptr address)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(sim_stream_wait(&ctx->null_stream));
    return release(address);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return allocate(out, bytes, DEVICE, NULL); }
API CUresult cuMemFree_v2(CUdeviceptr address) { return free_synchronised(address); }

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = round_up(width, 512), all;
    if (row < width || __builtin_mul_overflow(row, height, &all))
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(allocate(out, all, DEVICE, NULL));
    *pitch = row;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    if (flags != 1 && flags != 2) /* CU_MEM_ATTACH_GLOBAL, _HOST */
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(out, bytes, MANAGED, NULL);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    struct card *card = sim_card_of(ctx);
    uint64_t all = card->file->head.memory_total, used = card_used(card, true);
    *total = all;
    *free_bytes = used < all ? all - used : 0;
    return CUDA_SUCCESS;
}

/* The API before CUDA 3.2 has 32-bit addresses and sizes; such memory cannot be had from a 64-bit card. */
API CUresult cuMemAlloc(unsigned *out, unsigned bytes)
{
    (void)out, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemFree(unsigned address)
{
    (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t f, t;
    TRY(cuMemGetInfo_v2(&f, &t));
    *free_bytes = f > 0xffffffffu ? 0xffffffffu : (unsigned)f;
    *total = t > 0xffffffffu ? 0xffffffffu : (unsigned)t;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct piece *p = holding(address);
    if (p && base)
        *base = p->address;
    if (p && size)
        *size = p->size;
    pthread_mutex_unlock(&mutex);
    return p ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    TRY(sim_ready());
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    struct piece *p = holding(address);
    if (!p || !data)
        r = CUDA_ERROR_INVALID_VALUE;
    else
        switch (attribute) { /* CU_POINTER_ATTRIBUTE_... */
        case 1: *(CUcontext *)data = p->ctx; break;
        case 2: *(unsigned *)data = 2; break; /* MEMORY_TYPE: device */
        case 3: *(CUdeviceptr *)data = address; break;
        case 4: *(void **)data = (void *)(uintptr_t)address; break;
        case 7: *(unsigned long long *)data = p->address; break; /* BUFFER_ID */
        case 8: *(unsigned *)data = p->kind == MANAGED; break;
        case 9: *(int *)data = p->ctx->device; break; /* DEVICE_ORDINAL */
        case 11: *(CUdeviceptr *)data = p->address; break;
        case 12: *(size_t *)data = p->size; break;
        case 13: *(unsigned *)data = 1; break; /* MAPPED */
        default: r = CUDA_ERROR_NOT_SUPPORTED;
        }
    pthread_mutex_unlock(&mutex);
    return r;
}

/* --- host memory --- */

static CUresult host_alloc(void **out, size_t bytes)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return posix_memalign(out, 4096, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : host_alloc(out, bytes);
}

API CUresult cuMemAllocHost_v2(void **out, size_t bytes) { return host_alloc(out, bytes); }

API CUresult cuMemFreeHost(void *at)
{
    TRY(sim_ready());
    free(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags)
{
    TRY(sim_ready());
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    TRY(sim_ready());
    (void)flags;
    return at && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemHostUnregister(void *at)
{
    TRY(sim_ready());
    return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- copies and fills: kernels touch no memory here, so these act at once; synchronous ones wait for the stream --- */

static CUresult move(uint64_t to, uint64_t from, size_t bytes, CUstream stream, bool wait)
{
    struct stream *s;
    TRY(sim_stream(stream, &s));
    if (bytes && (!to || !from))
        return CUDA_ERROR_INVALID_VALUE;
    if (wait)
        TRY(sim_stream_wait(s));
    memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fill(uint64_t to, uint32_t value, size_t width, size_t n, CUstream stream)
{
    struct stream *s;
    TRY(sim_stream(stream, &s));
    if (n && (!to || to % width))
        return CUDA_ERROR_INVALID_VALUE;
    if (width == 1)
        memset((void *)(uintptr_t)to, (int)value, n);
    else if (width == 2)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)(uintptr_t)to)[i] = (uint16_t)value;
    else
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)(uintptr_t)to)[i] = value;
    return CUDA_SUCCESS;
}

#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))
#define SYNC(name, to_type, from_type)                                                    \
    API CUresult name(to_type to, from_type from, size_t bytes)                           \
    {                                                                                     \
        return move(ADDRESS(to), ADDRESS(from), bytes, NULL, true);                       \
    }
#define ASYNC_COPY(name, to_type, from_type)                                              \
    API CUresult name(to_type to, from_type from, size_t bytes, CUstream stream)          \
    {                                                                                     \
        return move(ADDRESS(to), ADDRESS(from), bytes, stream, false);                    \
    }
#define FILL(name, type, width)                                                           \
    API CUresult name(CUdeviceptr to, type value, size_t n) { return fill(to, value, width, n, NULL); }
#define ASYNC_FILL(name, type, width)                                                     \
    API CUresult name(CUdeviceptr to, type value, size_t n, CUstream stream)              \
    {                                                                                     \
        return fill(to, value, width, n, stream);                                         \
    }

SYNC(cuMemcpy, CUdeviceptr, CUdeviceptr)
SYNC(cuMemcpy_ptds, CUdeviceptr, CUdeviceptr)
SYNC(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
SYNC(cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *)
SYNC(cuMemcpyDtoH_v2, void *, CUdeviceptr)
SYNC(cuMemcpyDtoH_v2_ptds, void *, CUdeviceptr)
SYNC(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
SYNC(cuMemcpyDtoD_v2_ptds, CUdeviceptr, CUdeviceptr)
ASYNC_COPY(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
ASYNC_COPY(cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr)
ASYNC_COPY(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
ASYNC_COPY(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *)
ASYNC_COPY(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
ASYNC_COPY(cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr)
ASYNC_COPY(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)
ASYNC_COPY(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, CUdeviceptr)
FILL(cuMemsetD8_v2, unsigned char, 1)
FILL(cuMemsetD8_v2_ptds, unsigned char, 1)
FILL(cuMemsetD16_v2, unsigned short, 2)
FILL(cuMemsetD16_v2_ptds, unsigned short, 2)
FILL(cuMemsetD32_v2, unsigned, 4)
FILL(cuMemsetD32_v2_ptds, unsigned, 4)
ASYNC_FILL(cuMemsetD8Async, unsigned char, 1)
ASYNC_FILL(cuMemsetD8Async_ptsz, unsigned char, 1)
ASYNC_FILL(cuMemsetD16Async, unsigned short, 2)
ASYNC_FILL(cuMemsetD16Async_ptsz, unsigned short, 2)
ASYNC_FILL(cuMemsetD32Async, unsigned, 4)
ASYNC_FILL(cuMemsetD32Async_ptsz, unsigned, 4)

/* --- stream-ordered allocation: a pool gives memory back as soon as it is freed (release threshold 0) --- */

struct pool_props { /* head of CUmemPoolProps */
    int alloc_type, handle_types, location_type, location_id;
};

static bool pool_valid(CUmemoryPool pool) { return pool && pool->device >= 0 && pool->device < sim_cards; }

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev)
{
    TRY(sim_device(dev));
    default_pool[dev].device = dev;
    *out = &default_pool[dev];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev)
{
    TRY(cuDeviceGetDefaultMemPool(out, dev));
    if (device_pool[dev])
        *out = device_pool[dev];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    TRY(sim_device(dev));
    if (!pool_valid(pool) || pool->device != dev)
        return CUDA_ERROR_INVALID_VALUE;
    device_pool[dev] = pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const struct pool_props *props)
{
    TRY(sim_ready());
    if (!out || !props || sim_device(props->location_id))
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->device = props->location_id;
    *out = pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    TRY(sim_ready());
    if (!pool_valid(pool) || pool == &default_pool[pool->device])
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < count; i++)
        if (pieces[i].pool == pool)
            pieces[i].pool = NULL;
    if (device_pool[pool->device] == pool)
        device_pool[pool->device] = NULL;
    pthread_mutex_unlock(&mutex);
    free(pool);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    (void)keep;
    TRY(sim_ready());
    return pool_valid(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    TRY(sim_ready());
    if (!pool_valid(pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == 4) /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
        pool->threshold = *(uint64_t *)value;
    else if (attribute == 6 || attribute == 8)
        pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    TRY(sim_ready());
    if (!pool_valid(pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case 1: case 2: case 3: *(int *)value = 1; break; /* REUSE_... */
    case 4: *(uint64_t *)value = pool->threshold; break;
    case 5: case 7: *(uint64_t *)value = pool->used; break; /* RESERVED_MEM_CURRENT, USED_MEM_CURRENT */
    case 6: case 8: *(uint64_t *)value = pool->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult from_pool(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct stream *s;
    TRY(sim_stream(stream, &s));
    if (!pool)
        TRY(cuDeviceGetMemPool(&pool, s->ctx->device));
    if (!pool_valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(out, bytes, ASYNC, pool);
}

static CUresult free_in_stream(CUdeviceptr address, CUstream stream)
{
    struct stream *s;
    TRY(sim_stream(stream, &s));
    return release(address);
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t n, CUstream s) { return from_pool(out, n, NULL, s); }
API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t n, CUstream s) { return from_pool(out, n, NULL, s); }
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t n, CUmemoryPool pool, CUstream s)
{
    return pool ? from_pool(out, n, pool, s) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t n, CUmemoryPool pool, CUstream s)
{
    return pool ? from_pool(out, n, pool, s) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream s) { return free_in_stream(address, s); }
API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream s) { return free_in_stream(address, s); }

/* --- virtual memory management: a handle is a sparse memory file, so it can be mapped more than once --- */

struct allocation_prop { /* head of CUmemAllocationProp */
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char flags[8];
};

struct handle {
    uint64_t magic;
    int fd, device, references;
    bool imported;
    uint64_t size;
    struct allocation_prop prop;
    struct handle *next;
};

struct mapping {
    uint64_t address, size;
    struct handle *handle;
    struct mapping *next;
};

#define HANDLE_MAGIC 0x686e646c2d73696dull
static struct handle *handles;
static struct mapping *mappings;

/* Mutex held. */
static struct handle *handle_of(unsigned long long value)
{
    struct handle *h = handles;
    while (h && (uint64_t)(uintptr_t)h != value)
        h = h->next;
    return h;
}

/* Mutex held. */
static void unref(struct handle *h)
{
    if (--h->references)
        return;
    for (struct handle **p = &handles; *p; p = &(*p)->next)
        if (*p == h) {
            *p = h->next;
            break;
        }
    if (!h->imported)
        card_release(&sim_card[h->device], h->size);
    close(h->fd);
    free(h);
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const struct allocation_prop *prop, int option)
{
    TRY(sim_ready());
    (void)option;
    if (!out || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *out = BLOCK;
    return CUDA_SUCCESS;
}

static CUresult new_handle(unsigned long long *out, int fd, uint64_t size, const struct allocation_prop *prop,
                           bool imported)
{
    struct handle *h = calloc(1, sizeof *h);
    if (!h)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct handle){HANDLE_MAGIC, fd, prop->location_id, 1, imported, size, *prop, NULL};
    pthread_mutex_lock(&mutex);
    h->next = handles;
    handles = h;
    pthread_mutex_unlock(&mutex);
    *out = (unsigned long long)(uintptr_t)h;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(unsigned long long *out, size_t size, const struct allocation_prop *prop,
                         unsigned long long flags)
{
    TRY(sim_ready());
    if (!out || !prop || flags || !size || size % BLOCK || prop->location_type != 1 || sim_device(prop->location_id))
        return CUDA_ERROR_INVALID_VALUE;
    struct card *card = &sim_card[prop->location_id];
    if ((card->slot < 0 && !card_claim(card)) || !card_reserve(card, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = (int)syscall(SYS_memfd_create, "simulated-device-memory", 1u /* MFD_CLOEXEC */);
    CUresult r = CUDA_ERROR_OPERATING_SYSTEM;
    if (fd >= 0 && !ftruncate(fd, (off_t)size))
        r = new_handle(out, fd, size, prop, false);
    if (r) {
        if (fd >= 0)
            close(fd);
        card_release(card, size);
    }
    return r;
}

API CUresult cuMemRelease(unsigned long long value)
{
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h)
        unref(h);
    pthread_mutex_unlock(&mutex);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags)
{
    TRY(sim_ready());
    (void)hint;
    if (!out || !size || size % BLOCK || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < BLOCK)
        alignment = BLOCK;
    uint8_t *at = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint8_t *begin = (uint8_t *)round_up((uint64_t)(uintptr_t)at, alignment);
    if (begin > at)
        munmap(at, (size_t)(begin - at));
    munmap(begin + size, (size_t)(at + alignment - begin));
    *out = (CUdeviceptr)(uintptr_t)begin;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    TRY(sim_ready());
    return munmap((void *)(uintptr_t)address, size) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, unsigned long long value,
                      unsigned long long flags)
{
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct handle *h = handle_of(value);
    if (h && !flags && size && size % BLOCK == 0 && offset <= h->size && size <= h->size - offset) {
        struct mapping *m = calloc(1, sizeof *m);
        void *at = m ? mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                            h->fd, (off_t)offset)
                     : MAP_FAILED;
        if (at == MAP_FAILED) {
            free(m);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *m = (struct mapping){address, size, h, mappings};
            mappings = m;
            h->references++;
            r = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    TRY(sim_ready());
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (struct mapping **p = &mappings; *p;) {
        struct mapping *m = *p;
        if (m->address < address || m->address + m->size > address + size) {
            p = &m->next;
            continue;
        }
        mmap((void *)(uintptr_t)m->address, m->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        *p = m->next;
        unref(m->handle);
        free(m);
        found = true;
    }
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct access_desc { /* CUmemAccessDesc */
    int location_type, location_id, flags;
};

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access_desc *desc, size_t n)
{
    TRY(sim_ready());
    if (!desc || !n)
        return CUDA_ERROR_INVALID_VALUE;
    int access = desc[0].flags == 3 ? PROT_READ | PROT_WRITE : desc[0].flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)address, size, access) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(unsigned long long *out, void *address)
{
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct mapping *m = mappings;
    while (m && (uint64_t)(uintptr_t)address - m->address >= m->size)
        m = m->next;
    if (m) {
        m->handle->references++;
        *out = (unsigned long long)(uintptr_t)m->handle;
    }
    pthread_mutex_unlock(&mutex);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(struct allocation_prop *out, unsigned long long value)
{
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h)
        *out = h->prop;
    pthread_mutex_unlock(&mutex);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemExportToShareableHandle(void *out, unsigned long long value, int type, unsigned long long flags)
{
    TRY(sim_ready());
    if (type != 1 || flags) /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    int fd = h ? dup(h->fd) : -1;
    pthread_mutex_unlock(&mutex);
    if (!h)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* An import books nothing: the card's memory is held once, by the exporter. */
API CUresult cuMemImportFromShareableHandle(unsigned long long *out, void *os_handle, int type)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (type != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = dup((int)(intptr_t)os_handle);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size <= 0) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct allocation_prop prop = {.type = 1, .handle_types = 1, .location_type = 1, .location_id = ctx->device};
    CUresult r = new_handle(out, fd, (uint64_t)size, &prop, true);
    if (r)
        close(fd);
    return r;
}
