/* Linear memory, and the figures that a program gets of its memory. */
#include "driver/real.h"
#include "memory/charge.h"
#include "memory/cuda_pool.h"
#include "memory/piece.h"

/* The driver writes addresses into variables of ours, and the program gets them after they were noted: what another
 * thread writes to the program's variable meanwhile changes no note. */
static CUresult alloc_refused(size_t bytes) {
    CUdeviceptr made = 0;
    CUresult asked = REAL(cuMemAlloc_v2)(&made, bytes | IMPOSSIBLE);
    if (asked == CUDA_SUCCESS)
        REAL(cuMemFree_v2)(made);
    return refused_for(asked, CUDA_ERROR_INVALID_VALUE);
}

GH_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct charge c;
    CUdeviceptr made = 0;
    CUresult r;
    if (!pointer)
        return REAL(cuMemAlloc_v2)(pointer, bytes);
    CHARGE_AND_ASK(r, &c, charge_linear(&c, bytes), REAL(cuMemAlloc_v2)(&made, bytes), alloc_refused(bytes));
    r = finish_alloc(&c, r, LINEAR, made);
    if (r == CUDA_SUCCESS)
        *pointer = made;
    return r;
}

/* With 32 bits there is no impossible amount; nothing is what every driver refuses. */
GH_EXPORT CUresult cuMemAlloc(unsigned *pointer, unsigned bytes) {
    struct charge c;
    unsigned made = 0;
    CUresult r;
    if (!pointer)
        return REAL(cuMemAlloc)(pointer, bytes);
    CHARGE_AND_ASK(r, &c, charge_linear(&c, bytes), REAL(cuMemAlloc)(&made, bytes),
                   refused_for(REAL(cuMemAlloc)(&made, 0), CUDA_ERROR_INVALID_VALUE));
    r = finish_alloc(&c, r, LINEAR, made);
    if (r == CUDA_SUCCESS)
        *pointer = made;
    return r;
}

/* All of a managed allocation may lie on any one of the process's GPUs: a prefetch or a kernel there moves it. So all of it
 * is charged on each. */
static CUresult ask_managed(unsigned flags) {
    CUdeviceptr made = 0;
    CUresult r = REAL(cuMemAllocManaged)(&made, IMPOSSIBLE, flags);
    if (r == CUDA_SUCCESS)
        REAL(cuMemFree_v2)(made);
    return r;
}

GH_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    struct charge c;
    CUdeviceptr made = 0;
    if (!pointer || !bytes) /* the driver refuses these first, even before cuInit (535) */
        return REAL(cuMemAllocManaged)(pointer, 0, flags);
    CUresult r = charge_everywhere(&c, bytes);
    if (r) {
        r = ask_managed(flags);
        return REFUSED(r, ask_managed(CU_MEM_ATTACH_GLOBAL));
    }
    r = REAL(cuMemAllocManaged)(&made, bytes, flags);
    if (r == CUDA_SUCCESS && c.st)
        gh_note_fixed(c.st);
    r = finish_everywhere(&c, r, made);
    if (r == CUDA_SUCCESS)
        *pointer = made;
    return r;
}

#define PITCH 512ull /* every GPU so far rounds rows up to this; corrected by the driver's answer */

/* Charges rows of so many bytes. A product beyond 64 bits is refused. */
static CUresult charge_rows(struct charge *c, uint64_t width, uint64_t height) {
    uint64_t bytes;
    *c = (struct charge){0};
    if (__builtin_mul_overflow((width + PITCH - 1) & ~(PITCH - 1), height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return charge_linear(c, bytes);
}

static CUresult ask_pitch(size_t width, size_t height, unsigned element) {
    CUdeviceptr made = 0;
    size_t wide, row = width < PITCH ? PITCH : width > IMPOSSIBLE ? IMPOSSIBLE : (width + PITCH - 1) & ~(PITCH - 1);
    height = !height || height > IMPOSSIBLE / row ? height : IMPOSSIBLE / row;
    CUresult r = REAL(cuMemAllocPitch_v2)(&made, &wide, width, height, element);
    if (r == CUDA_SUCCESS)
        REAL(cuMemFree_v2)(made);
    return r;
}

static CUresult pitch_refused(size_t width, size_t height, unsigned element) {
    CUresult asked = ask_pitch(width, height, element);
    return REFUSED(asked, ask_pitch(PITCH, 1, 4));
}

GH_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                      unsigned element) {
    struct charge c;
    CUdeviceptr made = 0;
    size_t wide = 0;
    CUresult r;
    if (!pointer || !pitch)
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    CHARGE_AND_ASK(r, &c, charge_rows(&c, width, height),
                   REAL(cuMemAllocPitch_v2)(&made, &wide, width, height, element),
                   pitch_refused(width, height, element));
    if (r == CUDA_SUCCESS && recharge_linear(&c, (uint64_t)wide * height)) {
        REAL(cuMemFree_v2)(made);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    r = finish_alloc(&c, r, LINEAR, made);
    if (r == CUDA_SUCCESS) {
        *pointer = made;
        *pitch = wide;
    }
    return r;
}

GH_EXPORT CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height,
                                   unsigned element) {
    struct charge c;
    unsigned made = 0, wide = 0;
    CUresult r;
    if (!pointer || !pitch)
        return REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    CHARGE_AND_ASK(r, &c, charge_rows(&c, width, height), REAL(cuMemAllocPitch)(&made, &wide, width, height, element),
                   refused_for(REAL(cuMemAllocPitch)(&made, &wide, 0, height, element), CUDA_ERROR_INVALID_VALUE));
    if (r == CUDA_SUCCESS && recharge_linear(&c, (uint64_t)wide * height)) {
        REAL(cuMemFree)(made);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    r = finish_alloc(&c, r, LINEAR, made);
    if (r == CUDA_SUCCESS) {
        *pointer = made;
        *pitch = wide;
    }
    return r;
}

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
        gh_sweep_before_shown(st);
        pools_look(st);
        pieces_reclaim(st);
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
    size_t all = 0;
    CUresult r = REAL(cuDeviceTotalMem_v2)(bytes ? &all : NULL, device);
    struct gh_state *st = gh_here();
    uint64_t free = 0, total = all;
    if (r || !bytes)
        return r;
    if (st)
        narrow(st, gpu_of_device(st, device), &free, &total);
    *bytes = total;
    return r;
}

GH_EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    unsigned all = 0;
    CUresult r = REAL(cuDeviceTotalMem)(bytes ? &all : NULL, device);
    struct gh_state *st = gh_here();
    uint64_t free = 0, total = all;
    if (r || !bytes)
        return r;
    if (st)
        narrow(st, gpu_of_device(st, device), &free, &total);
    *bytes = (unsigned)total;
    return r;
}
