/* Simulated libcuda: pinned host memory, allocated by the driver or registered by the program, also read-only pages. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

enum { READ_ONLY = 8 };               /* CU_MEMHOSTREGISTER_READ_ONLY */
enum { PORTABLE = 1, DEVICEMAP = 2 }; /* CU_MEMHOSTALLOC_... */

struct range {
    struct host_range at;
    unsigned flags;
    bool registered, writable;
    struct range *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

bool host_holding(uint64_t address, uint64_t bytes, bool write) {
    pthread_mutex_lock(&mutex);
    const struct range *r = ranges;
    while (r && !(address - r->at.address < r->at.bytes && bytes <= r->at.bytes - (address - r->at.address)))
        r = r->next;
    bool ok = r && (r->writable || !write);
    pthread_mutex_unlock(&mutex);
    return ok;
}

bool host_range(uint64_t address, struct host_range *out) {
    pthread_mutex_lock(&mutex);
    const struct range *r = ranges;
    while (r && address - r->at.address >= r->at.bytes)
        r = r->next;
    if (r)
        *out = r->at;
    pthread_mutex_unlock(&mutex);
    return r != NULL;
}

static CUresult note(struct range range) {
    struct range *new = malloc(sizeof *new);
    if (!new)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *new = range;
    uint64_t begin = range.at.address, end = begin + range.at.bytes;
    pthread_mutex_lock(&mutex);
    const struct range *r = ranges;
    while (r && (r->registered != range.registered || end <= r->at.address || begin >= r->at.address + r->at.bytes))
        r = r->next;
    if (!r) {
        new->next = ranges;
        ranges = new;
    }
    pthread_mutex_unlock(&mutex);
    if (r)
        free(new);
    return r ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

static bool forget(uint64_t address, bool registered) {
    pthread_mutex_lock(&mutex);
    struct range **p = &ranges, *hit;
    while (*p && ((*p)->at.address != address || (*p)->registered != registered))
        p = &(*p)->next;
    if ((hit = *p))
        *p = hit->next;
    pthread_mutex_unlock(&mutex);
    free(hit);
    return hit != NULL;
}

/* True if every page of the range is mapped for reading, or for writing too: the driver pins pages for writing unless
 * the caller says READ_ONLY. */
static bool mapped(uint64_t from, uint64_t to, bool writable) {
    FILE *f = fopen("/proc/self/maps", "re");
    unsigned long long a, b;
    char line[512], mode[5];
    if (!f)
        return true;
    while (from < to && fgets(line, sizeof line, f))
        if (sscanf(line, "%llx-%llx %4s", &a, &b, mode) == 3 && from >= a && from < b && mode[0] == 'r' &&
            (mode[1] == 'w' || !writable))
            from = b;
    fclose(f);
    return from >= to;
}

static CUresult host_alloc(void **out, size_t bytes, unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (posix_memalign(out, 4096, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* with unified addresses, all pinned memory has a device address */
    CUresult r = note((struct range){{(uintptr_t)*out, bytes, ctx}, flags | DEVICEMAP, false, true, NULL});
    if (r)
        free(*out);
    return r;
}

API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : host_alloc(out, bytes, flags);
}

API CUresult cuMemAllocHost_v2(void **out, size_t bytes) { return host_alloc(out, bytes, PORTABLE); }
API CUresult cuMemAllocHost(void **out, unsigned bytes) { return host_alloc(out, bytes, PORTABLE); }

/* Not for registered memory. */
API CUresult cuMemHostGetFlags(unsigned *flags, void *at) {
    TRY(sim_ready());
    if (!flags || !at)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    const struct range *r = ranges;
    while (r && (r->registered || (uintptr_t)at - r->at.address >= r->at.bytes))
        r = r->next;
    if (r)
        *flags = r->flags;
    pthread_mutex_unlock(&mutex);
    return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemFreeHost(void *at) {
    TRY(sim_ready());
    if (at && !forget((uintptr_t)at, false))
        return CUDA_ERROR_INVALID_VALUE;
    free(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags) {
    TRY(sim_ready());
    if (flags || !out || !host_holding((uintptr_t)at, 1, false))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

/* The API before CUDA 3.2 has 32-bit device addresses; pinned memory of a 64-bit program has none. */
API CUresult cuMemHostGetDevicePointer(unsigned *out, void *at, unsigned flags) {
    (void)out, (void)at, (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult host_register(void *at, size_t bytes, unsigned flags) {
    TRY(sim_ready());
    CUcontext ctx = NULL;
    sim_context(&ctx); /* without one, too */
    uint64_t from = (uintptr_t)at;
    if (!at || !bytes || flags & ~15u || from + bytes < from || !mapped(from, from + bytes, !(flags & READ_ONLY)))
        return CUDA_ERROR_INVALID_VALUE;
    return note((struct range){{from, bytes, ctx}, flags, true, !(flags & READ_ONLY), NULL});
}

API CUresult cuMemHostRegister(void *at, size_t bytes, unsigned flags) { return host_register(at, bytes, flags); }
API CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) { return host_register(at, bytes, flags); }

API CUresult cuMemHostUnregister(void *at) {
    TRY(sim_ready());
    if (!at)
        return CUDA_ERROR_INVALID_VALUE;
    return forget((uintptr_t)at, true) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
