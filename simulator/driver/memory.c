/* Simulated libcuda: linear device memory. */
#define _GNU_SOURCE
#include "heap.h"

static CUresult allocate(CUdeviceptr *out, size_t bytes, enum kind kind) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    return heap_allocate(out, ctx, bytes, kind);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return allocate(out, bytes, DEVICE); }

/* Queued work may still use this memory: cuMemFree waits for it, as the real one does. No context need be current. */
API CUresult cuMemFree_v2(CUdeviceptr address) {
    struct piece p;
    CUcontext current;
    TRY(sim_ready());
    TRY(capture_forbids());
    if (!address)
        return CUDA_SUCCESS;
    if (!heap_find(address, &p) || p.kind == VARIABLES)
        return CUDA_ERROR_INVALID_VALUE;
    if (p.ctx)
        TRY(sim_context_wait(p.ctx));
    if (!sim_context(&current) && current != p.ctx) /* one of those that share its memory */
        TRY(sim_context_wait(current));
    return heap_free(address);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = round_up(width, 512), all;
    if (row < width || __builtin_mul_overflow(row, height, &all))
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(allocate(out, all, DEVICE));
    *pitch = row;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    if (flags != 1 && flags != 2) /* CU_MEM_ATTACH_GLOBAL, _HOST */
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(out, bytes, MANAGED);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = sim_gpu_of(ctx);
    uint64_t all = gpu->file->head.memory_total, used = gpu_used(gpu, true), left = used < all ? all - used : 0;
    struct gpu_home home;
    struct gpu_bound bound;
    /* Of the cgroup itself: one above leaves the whole GPU, as NVIDIA measured with 615.71.09. */
    if (atomic_load(&gpu->file->head.limits) && cgroup_mine(&home) && gpu_limit_of(gpu, &home, &bound) &&
        bound.hard < all) {
        uint64_t own = bound.used < bound.hard ? bound.hard - bound.used : 0;
        all = bound.hard;
        left = own < left ? own : left;
    }
    *total = all;
    *free_bytes = left;
    return CUDA_SUCCESS;
}

/* The API before CUDA 3.2 has 32-bit addresses and sizes; a 64-bit GPU has no such memory. */
API CUresult cuMemAlloc(unsigned *out, unsigned bytes) {
    (void)out, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemFree(unsigned address) {
    (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total) {
    size_t f, t;
    TRY(cuMemGetInfo_v2(&f, &t));
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = f > 0xffffffffu ? 0xffffffffu : (unsigned)f;
    *total = t > 0xffffffffu ? 0xffffffffu : (unsigned)t;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    (void)out, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_NOT_SUPPORTED;
}
