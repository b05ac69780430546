/* Simulated libcuda: where managed memory lies: all of an allocation at once, and on some GPU even if it prefers the
 * host. Of what a program advises, only what the queries say of it is kept. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>
#include <string.h>

enum { ON_DEVICE = 1, ON_HOST = 2 };                   /* CU_MEM_LOCATION_TYPE_... */
enum { CPU = -1, NOWHERE = -2 };                       /* CU_DEVICE_CPU, CU_DEVICE_INVALID */
enum { READ_MOSTLY = 1, PREFERRED = 3, ACCESSED = 5 }; /* CU_MEM_ADVISE_SET_...; 1 more: unset */

/* --- what was advised for the allocation at an address --- */

struct advice {
    uint64_t address;
    bool read_mostly;
    int preferred, prefetched; /* device, CPU or NOWHERE */
    uint64_t accessed;         /* bit N: device N; bit 63: the host */
    struct advice *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct advice *advices;

/* Mutex held. make: adds it if there is none. */
static struct advice *advice_at(uint64_t address, bool make) {
    struct advice *a = advices;
    while (a && a->address != address)
        a = a->next;
    if (!a && make && (a = malloc(sizeof *a))) {
        *a = (struct advice){.address = address, .preferred = NOWHERE, .prefetched = NOWHERE, .next = advices};
        advices = a;
    }
    return a;
}

void managed_forget(uint64_t address) {
    pthread_mutex_lock(&mutex);
    for (struct advice **p = &advices; *p; p = &(*p)->next)
        if ((*p)->address == address) {
            struct advice *gone = *p;
            *p = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&mutex);
}

static bool managed(CUdeviceptr at, size_t bytes, struct piece *p) {
    return bytes && heap_holding(at, p) && p->kind == MANAGED && bytes <= p->size - (at - p->address);
}

static CUresult known_device(int dev) { return dev == CPU ? sim_ready() : sim_device(dev); }

static CUresult advise(CUdeviceptr at, size_t bytes, int advice, int dev) {
    struct piece p;
    TRY(sim_ready());
    if (advice < 1 || advice > 6 || !managed(at, bytes, &p))
        return CUDA_ERROR_INVALID_VALUE;
    if (advice >= PREFERRED && advice != PREFERRED + 1)
        TRY(known_device(dev));
    pthread_mutex_lock(&mutex);
    struct advice *a = advice_at(p.address, true);
    uint64_t bit = 1ull << (dev & 63); /* CPU: bit 63 */
    if (a)
        switch (advice) {
        case READ_MOSTLY:
        case READ_MOSTLY + 1: a->read_mostly = advice == READ_MOSTLY; break;
        case PREFERRED:
        case PREFERRED + 1: a->preferred = advice == PREFERRED ? dev : NOWHERE; break;
        case ACCESSED: a->accessed |= bit; break;
        default: a->accessed &= ~bit;
        }
    pthread_mutex_unlock(&mutex);
    return a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int device_of(struct location l) { return l.type == ON_DEVICE ? l.id : CPU; }

API CUresult cuMemAdvise(CUdeviceptr at, size_t bytes, int advice, CUdevice dev) {
    return advise(at, bytes, advice, dev);
}

API CUresult cuMemAdvise_v2(CUdeviceptr at, size_t bytes, int advice, struct location where) {
    return advise(at, bytes, advice, device_of(where));
}

/* --- prefetches --- */

static CUresult prefetch(CUdeviceptr at, size_t bytes, int dev, CUstream handle) {
    struct piece p;
    struct stream *s;
    TRY(sim_stream(handle, &s));
    TRY(known_device(dev));
    if (!managed(at, bytes, &p))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    if (dev != CPU)
        r = sim_gpu[dev].slot < 0 ? CUDA_ERROR_INVALID_DEVICE : heap_move(at, dev);
    pthread_mutex_lock(&mutex);
    struct advice *a = r ? NULL : advice_at(p.address, true);
    if (a)
        a->prefetched = dev;
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUdevice dev, CUstream s) {
    return prefetch(at, bytes, dev, s);
}
API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr at, size_t bytes, CUdevice dev, CUstream s) {
    return prefetch(at, bytes, dev, PER_THREAD(s));
}
API CUresult cuMemPrefetchAsync_v2(CUdeviceptr at, size_t bytes, struct location to, unsigned flags, CUstream s) {
    return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(at, bytes, device_of(to), s);
}
API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t bytes, struct location to, unsigned flags, CUstream s) {
    return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(at, bytes, device_of(to), PER_THREAD(s));
}

/* --- and what they were --- */

static int place_type(int dev) { return dev == NOWHERE ? 0 : dev == CPU ? ON_HOST : ON_DEVICE; }

/* ACCESSED_BY: a list of devices, filled up with NOWHERE. */
static CUresult accessors(int *out, size_t room, uint64_t accessed) {
    size_t n = 0;
    for (int dev = CPU; dev < GPU_MAX && n < room; dev++)
        if (accessed >> (dev & 63) & 1)
            out[n++] = dev;
    while (n < room)
        out[n++] = NOWHERE;
    return CUDA_SUCCESS;
}

static CUresult range_attribute(void *data, size_t size, int attribute, const struct advice *a) {
    if (!data || size < 4 || size % 4)
        return CUDA_ERROR_INVALID_VALUE;
    int *out = data;
    switch (attribute) { /* CU_MEM_RANGE_ATTRIBUTE_... */
    case 1: *out = a->read_mostly; break;
    case 2: *out = a->preferred; break;
    case 3: return accessors(out, size / 4, a->accessed);
    case 4: *out = a->prefetched; break;
    case 5: *out = place_type(a->preferred); break;
    case 6: *out = a->preferred < 0 ? 0 : a->preferred; break;
    case 7: *out = place_type(a->prefetched); break;
    case 8: *out = a->prefetched < 0 ? 0 : a->prefetched; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute == 3 || size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, const int *attributes, size_t n, CUdeviceptr at,
                                     size_t bytes) {
    struct piece p;
    TRY(sim_ready());
    if (!data || !sizes || !attributes || !n || !managed(at, bytes, &p))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    const struct advice *a = advice_at(p.address, false), none = {.preferred = NOWHERE, .prefetched = NOWHERE};
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < n && !r; i++)
        r = range_attribute(data[i], sizes[i], attributes[i], a ? a : &none);
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr at, size_t bytes) {
    return cuMemRangeGetAttributes(&data, &size, &attribute, 1, at, bytes);
}

static CUresult attach(CUstream handle, CUdeviceptr at, size_t bytes, unsigned flags) {
    struct piece p;
    struct stream *s;
    TRY(sim_stream(handle, &s));
    bool known = heap_find(at, &p) && p.kind == MANAGED && (!bytes || bytes == p.size);
    return known && (flags == 1 || flags == 2 || flags == 4) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuStreamAttachMemAsync(CUstream s, CUdeviceptr at, size_t bytes, unsigned flags) {
    return attach(s, at, bytes, flags);
}
API CUresult cuStreamAttachMemAsync_ptsz(CUstream s, CUdeviceptr at, size_t bytes, unsigned flags) {
    return attach(PER_THREAD(s), at, bytes, flags);
}
