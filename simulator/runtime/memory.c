/* The simulator's CUDA runtime: memory, copies, and the handles that need more than a call of the driver. */
#define _GNU_SOURCE
#include "runtime.h"

#include <string.h>

enum { TO_HOST_FROM_HOST = 0, DEFAULT = 4, UNIFIED = 4 }; /* cudaMemcpyKind 0 to 4; CU_MEMORYTYPE_UNIFIED */

#define AT(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

API cudaError_t cudaMalloc(void **out, size_t bytes) {
    TRY(ready());
    if (!out)
        return end(cudaErrorInvalidValue);
    *out = NULL;
    CUdeviceptr at = 0;
    if (bytes) /* 0 bytes: no memory, and no error */
        TRY(driver.cuMemAlloc(&at, bytes));
    *out = (void *)(uintptr_t)at;
    return cudaSuccess;
}

API cudaError_t cudaMallocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    TRY(ready());
    return end(driver.cuMemAllocManaged(out, bytes, flags));
}

API cudaError_t cudaMallocPitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height) {
    TRY(ready());
    return end(driver.cuMemAllocPitch(out, pitch, width, height, 16));
}

API cudaError_t cudaFree(void *at) {
    TRY(ready());
    return end(at ? driver.cuMemFree(AT(at)) : cudaSuccess);
}

API cudaError_t cudaFreeAsync(void *at, CUstream stream) {
    TRY(ready());
    return end(driver.cuMemFreeAsync(AT(at), stream));
}

API cudaError_t cudaMallocHost(void **out, size_t bytes);
API cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
API cudaError_t cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }

API cudaError_t cudaFreeHost(void *at) {
    TRY(ready());
    return end(at ? driver.cuMemFreeHost(at) : cudaSuccess);
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    TRY(ready());
    if (kind < 0 || kind > DEFAULT)
        return end(cudaErrorInvalidMemcpyDirection);
    if (kind == TO_HOST_FROM_HOST) {
        if (bytes)
            memmove(to, from, bytes);
        return cudaSuccess;
    }
    return end(bytes ? driver.cuMemcpy(AT(to), AT(from), bytes) : cudaSuccess);
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, CUstream stream) {
    TRY(ready());
    if (kind < 0 || kind > DEFAULT)
        return end(cudaErrorInvalidMemcpyDirection);
    return end(bytes ? driver.cuMemcpyAsync(AT(to), AT(from), bytes, stream) : cudaSuccess);
}

static struct copy_2d rectangle(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                size_t height) {
    return (struct copy_2d){
        .from_type = UNIFIED,
        .from = AT(from),
        .from_pitch = from_pitch,
        .to_type = UNIFIED,
        .to = AT(to),
        .to_pitch = to_pitch,
        .width = width,
        .height = height,
    };
}

API cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind) {
    struct copy_2d c = rectangle(to, to_pitch, from, from_pitch, width, height);
    TRY(ready());
    if (kind < 0 || kind > DEFAULT)
        return end(cudaErrorInvalidMemcpyDirection);
    return end(width && height ? driver.cuMemcpy2DUnaligned(&c) : cudaSuccess);
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, int kind, CUstream stream) {
    struct copy_2d c = rectangle(to, to_pitch, from, from_pitch, width, height);
    TRY(ready());
    if (kind < 0 || kind > DEFAULT)
        return end(cudaErrorInvalidMemcpyDirection);
    return end(width && height ? driver.cuMemcpy2DAsync(&c, stream) : cudaSuccess);
}

API cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    CUcontext a, b;
    TRY(ready());
    TRY(primary_context(to_device, &a));
    TRY(primary_context(from_device, &b));
    return end(bytes ? driver.cuMemcpyPeer(AT(to), a, AT(from), b, bytes) : cudaSuccess);
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                    CUstream stream) {
    CUcontext a, b;
    TRY(ready());
    TRY(primary_context(to_device, &a));
    TRY(primary_context(from_device, &b));
    return end(bytes ? driver.cuMemcpyPeerAsync(AT(to), a, AT(from), b, bytes, stream) : cudaSuccess);
}

API cudaError_t cudaMemset(void *at, int value, size_t bytes) {
    TRY(ready());
    return end(bytes ? driver.cuMemsetD8(AT(at), (unsigned char)value, bytes) : cudaSuccess);
}

API cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, CUstream stream) {
    TRY(ready());
    return end(bytes ? driver.cuMemsetD8Async(AT(at), (unsigned char)value, bytes, stream) : cudaSuccess);
}

API cudaError_t cudaMemset2D(void *at, size_t pitch, int value, size_t width, size_t height) {
    TRY(ready());
    return end(width && height ? driver.cuMemsetD2D8(AT(at), pitch, (unsigned char)value, width, height) : cudaSuccess);
}

API cudaError_t cudaMemset2DAsync(void *at, size_t pitch, int value, size_t width, size_t height, CUstream stream) {
    TRY(ready());
    if (!width || !height)
        return cudaSuccess;
    return end(driver.cuMemsetD2D8Async(AT(at), pitch, (unsigned char)value, width, height, stream));
}

/* --- what a pointer is --- */

struct pointer_attributes { /* cudaPointerAttributes */
    int type, device;
    void *device_pointer, *host_pointer;
#if CUDA_13
    long reserved[8];
#endif
};

enum { UNREGISTERED = 0, HOST = 1, DEVICE = 2, MANAGED = 3 }; /* cudaMemoryType */
enum {
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9
}; /* CUpointer_attribute */

API cudaError_t cudaPointerGetAttributes(struct pointer_attributes *out, const void *pointer) {
    unsigned type = 0, managed = 0;
    TRY(ready());
    if (!out)
        return end(cudaErrorInvalidValue);
    *out = (struct pointer_attributes){.type = UNREGISTERED, .device = -2, .host_pointer = (void *)(uintptr_t)pointer};
    if (driver.cuPointerGetAttribute(&type, MEMORY_TYPE, AT(pointer)))
        return cudaSuccess; /* memory that CUDA does not know is no error since CUDA 11 */
    out->host_pointer = NULL;
    driver.cuPointerGetAttribute(&managed, IS_MANAGED, AT(pointer));
    driver.cuPointerGetAttribute(&out->device, DEVICE_ORDINAL, AT(pointer));
    driver.cuPointerGetAttribute(&out->device_pointer, DEVICE_POINTER, AT(pointer));
    if (type == HOST || managed)
        driver.cuPointerGetAttribute(&out->host_pointer, HOST_POINTER, AT(pointer));
    out->type = managed ? MANAGED : (int)type;
    return cudaSuccess;
}
