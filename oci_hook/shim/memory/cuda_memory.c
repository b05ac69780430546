/* Linear memory, and the figures that a program gets of its memory. */
#include "driver/real.h"
#include "memory/charge.h"
#include "memory/cuda_pool.h"

GH_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct charge c;
    CUresult r = charge(&c, bytes);
    if (r)
        return r;
    r = REAL(cuMemAlloc_v2)(pointer, bytes);
    return finish_alloc(&c, r, LINEAR, r ? 0 : *pointer);
}

GH_EXPORT CUresult cuMemAlloc(unsigned *pointer, unsigned bytes) {
    struct charge c;
    CUresult r = charge(&c, bytes);
    if (r)
        return r;
    r = REAL(cuMemAlloc)(pointer, bytes);
    return finish_alloc(&c, r, LINEAR, r ? 0 : *pointer);
}

/* All of a managed allocation may lie on the GPU, so all of it is charged. */
GH_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    struct charge c;
    CUresult r = charge(&c, bytes);
    if (r)
        return r;
    r = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    return finish_alloc(&c, r, LINEAR, r ? 0 : *pointer);
}

#define PITCH 512ull /* every GPU so far rounds rows up to this; corrected by the driver's answer */

static bool rows(uint64_t pitch, uint64_t height, uint64_t *bytes) {
    return !__builtin_mul_overflow((pitch + PITCH - 1) & ~(PITCH - 1), height, bytes);
}

#define ALLOC_PITCH(name, address, length, undo)                                                              \
    GH_EXPORT CUresult name(address *pointer, length *pitch, length width, length height, unsigned element) { \
        struct charge c;                                                                                      \
        uint64_t bytes;                                                                                       \
        if (!rows(width, height, &bytes))                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                  \
        CUresult r = charge(&c, bytes);                                                                       \
        if (r)                                                                                                \
            return r;                                                                                         \
        r = REAL(name)(pointer, pitch, width, height, element);                                               \
        if (r == CUDA_SUCCESS && recharge(&c, (uint64_t)*pitch * height)) {                                   \
            REAL(undo)(*pointer);                                                                             \
            r = CUDA_ERROR_OUT_OF_MEMORY;                                                                     \
        }                                                                                                     \
        return finish_alloc(&c, r, LINEAR, r ? 0 : *pointer);                                                 \
    }
ALLOC_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t, cuMemFree_v2)
ALLOC_PITCH(cuMemAllocPitch, unsigned, unsigned, cuMemFree)

GH_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct owed o = begin_free(LINEAR, pointer);
    return end_free(&o, REAL(cuMemFree_v2)(pointer));
}

GH_EXPORT CUresult cuMemFree(unsigned pointer) {
    struct owed o = begin_free(LINEAR, pointer);
    return end_free(&o, REAL(cuMemFree)(pointer));
}

/* Limits the driver's figures to what the container may have. */
static void narrow(struct gh_state *st, int gpu, uint64_t *free, uint64_t *total) {
    uint64_t left, limit;
    bool whole = false;
    if (!st || !gpu_memory(st, gpu, &left, &limit, &whole)) {
        *free = 0;
        return;
    }
    if (whole)
        return;
    *total = limit < *total ? limit : *total;
    *free = left < *free ? left : *free;
    *free = *free < *total ? *free : *total;
}

GH_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    size_t f = 0, t = 0;
    CUresult r = REAL(cuMemGetInfo_v2)(free ? &f : NULL, total ? &t : NULL);
    if (r)
        return r;
    struct gh_state *st = gh_here();
    if (st) {
        gh_sweep_now_and_then(st);
        pools_look(st);
    }
    uint64_t f64 = f, t64 = total ? t : UINT64_MAX;
    narrow(st, st ? current_place(st).gpu : NO_GPU, &f64, &t64);
    if (free)
        *free = f64;
    if (total)
        *total = t64;
    return r;
}

GH_EXPORT CUresult cuMemGetInfo(unsigned *free, unsigned *total) {
    unsigned f = 0, t = 0;
    CUresult r = REAL(cuMemGetInfo)(free ? &f : NULL, total ? &t : NULL);
    if (r)
        return r;
    struct gh_state *st = gh_here();
    uint64_t f64 = f, t64 = total ? t : UINT64_MAX;
    narrow(st, st ? current_place(st).gpu : NO_GPU, &f64, &t64);
    if (free)
        *free = (unsigned)f64;
    if (total)
        *total = (unsigned)t64;
    return r;
}

GH_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult r = REAL(cuDeviceTotalMem_v2)(bytes, device);
    struct gh_state *st = gh_here();
    uint64_t free = 0, total;
    if (r == CUDA_SUCCESS && bytes && st) {
        total = *bytes;
        narrow(st, gpu_of_device(st, device), &free, &total);
        *bytes = total;
    }
    return r;
}

GH_EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    CUresult r = REAL(cuDeviceTotalMem)(bytes, device);
    struct gh_state *st = gh_here();
    uint64_t free = 0, total;
    if (r == CUDA_SUCCESS && bytes && st) {
        total = *bytes;
        narrow(st, gpu_of_device(st, device), &free, &total);
        *bytes = (unsigned)total;
    }
    return r;
}
