/* Simulated libcuda: pinned host memory, allocated by the driver or registered by the program, also read-only pages. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

enum { READ_ONLY = 8 }; /* CU_MEMHOSTREGISTER_READ_ONLY */

struct range {
    uint64_t address, bytes;
    bool registered, writable;
    struct range *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

bool host_holding(uint64_t address, uint64_t bytes, bool write) {
    pthread_mutex_lock(&mutex);
    const struct range *r = ranges;
    while (r && !(address - r->address < r->bytes && bytes <= r->bytes - (address - r->address)))
        r = r->next;
    bool ok = r && (r->writable || !write);
    pthread_mutex_unlock(&mutex);
    return ok;
}

static CUresult note(uint64_t address, uint64_t bytes, bool registered, bool writable) {
    struct range *new = malloc(sizeof *new);
    if (!new)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *new = (struct range){address, bytes, registered, writable, NULL};
    pthread_mutex_lock(&mutex);
    const struct range *r = ranges;
    while (r && (r->registered != registered || address + bytes <= r->address || address >= r->address + r->bytes))
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
    while (*p && ((*p)->address != address || (*p)->registered != registered))
        p = &(*p)->next;
    if ((hit = *p))
        *p = hit->next;
    pthread_mutex_unlock(&mutex);
    free(hit);
    return hit != NULL;
}

/* Whether every page of the range is mapped for reading, or for writing too: the driver pins pages for writing unless
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

static CUresult host_alloc(void **out, size_t bytes) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (posix_memalign(out, 4096, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = note((uintptr_t)*out, bytes, false, true);
    if (r)
        free(*out);
    return r;
}

API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : host_alloc(out, bytes);
}

API CUresult cuMemAllocHost_v2(void **out, size_t bytes) { return host_alloc(out, bytes); }

API CUresult cuMemFreeHost(void *at) {
    TRY(sim_ready());
    if (at && !forget((uintptr_t)at, false))
        return CUDA_ERROR_INVALID_VALUE;
    free(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags) {
    TRY(sim_ready());
    if (flags || !out || !at)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    TRY(sim_ready());
    uint64_t from = (uintptr_t)at;
    if (!at || !bytes || flags & ~15u || from + bytes < from || !mapped(from, from + bytes, !(flags & READ_ONLY)))
        return CUDA_ERROR_INVALID_VALUE;
    return note(from, bytes, true, !(flags & READ_ONLY));
}

API CUresult cuMemHostUnregister(void *at) {
    TRY(sim_ready());
    if (!at)
        return CUDA_ERROR_INVALID_VALUE;
    return forget((uintptr_t)at, true) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
