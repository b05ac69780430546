/* The part of the CUDA driver's binary interface that the stand-in touches, written from its public documentation. */
#ifndef GPU_HOOK_CUDA_H
#define GPU_HOOK_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr; /* since 3.2; before, 32 bits */
typedef struct CUctx_st *CUcontext;
typedef struct {
    unsigned char bytes[16];
} CUuuid;

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);
CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, uint64_t flags, int *status);

CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);

CUresult cuMemAlloc(unsigned *pointer, unsigned bytes);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree(unsigned pointer);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo(unsigned *free, unsigned *total);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

#endif
