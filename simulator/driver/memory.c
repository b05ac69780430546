/* Simulated libcuda: linear device memory, and what the driver says of an address. */
#define _GNU_SOURCE
#include "heap.h"

static CUresult allocate(CUdeviceptr *out, size_t bytes, enum kind kind) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    return heap_allocate(out, ctx, bytes, kind);
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { return allocate(out, bytes, DEVICE); }

/* Queued work may still use this memory: cuMemFree waits for it, as the real one does. */
API CUresult cuMemFree_v2(CUdeviceptr address) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    TRY(sim_context_wait(ctx));
    struct piece p;
    return heap_find(address, &p) && p.kind == VARIABLES ? CUDA_ERROR_INVALID_VALUE : heap_free(address);
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
    struct gpu *gpu = sim_gpu_of(ctx);
    uint64_t all = gpu->file->head.memory_total, used = gpu_used(gpu, true);
    *total = all;
    *free_bytes = used < all ? all - used : 0;
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
    *free_bytes = f > 0xffffffffu ? 0xffffffffu : (unsigned)f;
    *total = t > 0xffffffffu ? 0xffffffffu : (unsigned)t;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    struct piece p;
    TRY(sim_ready());
    if (!heap_holding(address, &p))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = p.address;
    if (size)
        *size = p.size;
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    struct piece p;
    TRY(sim_ready());
    if (!data || !heap_holding(address, &p))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) { /* CU_POINTER_ATTRIBUTE_... */
    case 1: *(CUcontext *)data = p.ctx; break;
    case 2: *(unsigned *)data = 2; break; /* MEMORY_TYPE: device */
    case 3: *(CUdeviceptr *)data = address; break;
    case 4: *(void **)data = (void *)(uintptr_t)address; break;
    case 7: *(unsigned long long *)data = p.address; break; /* BUFFER_ID */
    case 8: *(unsigned *)data = p.kind == MANAGED; break;
    case 9: *(int *)data = p.ctx->device; break;          /* DEVICE_ORDINAL */
    case 10: *(unsigned *)data = p.kind == DEVICE; break; /* IS_LEGACY_CUDA_IPC_CAPABLE */
    case 11: *(CUdeviceptr *)data = p.address; break;
    case 12: *(size_t *)data = p.size; break;
    case 13: *(unsigned *)data = 1; break;          /* MAPPED */
    case 17: *(CUmemoryPool *)data = p.pool; break; /* MEMPOOL_HANDLE */
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

/* --- where managed memory lies: all of an allocation at once, and on some GPU even if it prefers the host --- */

static CUresult prefetch(CUdeviceptr at, CUdevice dev) {
    if (dev == -1) /* CU_DEVICE_CPU */
        return sim_ready();
    TRY(sim_device(dev));
    return sim_gpu[dev].slot < 0 ? CUDA_ERROR_INVALID_DEVICE : heap_move(at, dev);
}

struct location { /* CUmemLocation */
    int type, id;
};

API CUresult cuMemPrefetchAsync(CUdeviceptr at, size_t bytes, CUdevice dev, CUstream s) {
    return (void)bytes, (void)s, prefetch(at, dev);
}
API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr at, size_t bytes, CUdevice dev, CUstream s) {
    return (void)bytes, (void)s, prefetch(at, dev);
}
API CUresult cuMemPrefetchAsync_v2(CUdeviceptr at, size_t bytes, struct location to, unsigned flags, CUstream s) {
    return (void)bytes, (void)flags, (void)s, prefetch(at, to.type == 1 ? to.id : -1);
}
API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr at, size_t bytes, struct location to, unsigned flags, CUstream s) {
    return (void)bytes, (void)flags, (void)s, prefetch(at, to.type == 1 ? to.id : -1);
}

API CUresult cuMemAdvise(CUdeviceptr at, size_t bytes, int advice, CUdevice dev) {
    struct piece p;
    (void)bytes, (void)dev;
    TRY(sim_ready());
    return heap_holding(at, &p) && p.kind == MANAGED && advice > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
