/* The part of the CUDA driver's binary interface that the shim touches, written from its public documentation. */
#ifndef GPU_HOOK_CUDA_H
#define GPU_HOOK_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int CUresult;
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
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

/* Copies what a program passed by pointer, exactly once: from here on the copy counts, whatever the program's other
 * threads write to the original. The barrier keeps the compiler from reading the original again. */
static inline void copy_once(void *copy, const void *original, size_t bytes) {
    memcpy(copy, original, bytes);
    __asm__ volatile("" : : "r"(copy) : "memory");
}

typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef struct {
    CUuuid from, to;
} CUcheckpointGpuPair;
typedef struct { /* before CUDA 13.0 all of it was reserved, and 0 */
    const CUcheckpointGpuPair *pairs;
    unsigned count;
    char reserved[64 - sizeof(void *) - sizeof(unsigned)];
    uint64_t reserved1; /* since 13.0 */
} CUcheckpointRestoreArgs;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmemPool_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUextMemory_st *CUexternalMemory;
typedef unsigned long long CUmemHandle;

typedef struct {
    int type; /* 1 device, 2..4 host */
    int id;
} CUmemLocation;
/* True if this kind of memory, at this location, is host memory and stays it. Managed memory (CUDA 13.0) may lie on the
 * GPU wherever it prefers to be. */
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2 };
enum { CU_MEM_ATTACH_GLOBAL = 1, CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1 };
static inline bool on_host(const CUmemLocation *l, int type) {
    return l->type >= 2 && l->type <= 4 && type != CU_MEM_ALLOCATION_TYPE_MANAGED;
}

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *security;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *security;
    size_t max_size;
    unsigned char reserved[56];
} CUmemPoolProps;

typedef struct {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct { /* the same size since CUDA 12.2 */
    int type;    /* CUgraphNodeType */
    int reserved[3];
    union {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUgraph child;
        long long room[29];
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    uint64_t flags;
    CUstream upload;
    CUgraphNode error; /* out */
    int result;        /* out */
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct { /* before 3.2, lengths were 32 bits */
    unsigned width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;
typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;
typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

enum {
    CU_MEM_OPERATION_TYPE_MAP = 1,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1
};
typedef struct {
    int resource_type;
    void *resource;
    int subresource_type;
    union {
        struct {
            unsigned level, layer, offset[3], extent[3];
        } sparse;
        struct {
            unsigned layer;
            unsigned long long offset, size;
        } tail;
    } subresource;
    int operation; /* CU_MEM_OPERATION_TYPE_... */
    int handle_type;
    CUmemHandle handle;
    unsigned long long offset;
    unsigned device_mask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
    int type;
    union {
        int fd;
        void *win32[2];
    } handle;
    unsigned long long size;
    unsigned flags;
    unsigned reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct {
    int id;
    int reserved;
    unsigned char value[64];
} CUlaunchAttribute;
typedef struct {
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned count;
} CUlaunchConfig;
typedef struct {
    CUfunction f;
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

#define GH_MEMCPY(length, pointer, flat, solid)    \
    typedef struct {                               \
        struct {                                   \
            length x, y;                           \
            unsigned type; /* CU_MEMORYTYPE_... */ \
            void *host;                            \
            pointer device;                        \
            CUarray array;                         \
            length pitch;                          \
        } from, to;                                \
        length width, height;                      \
    } flat;                                        \
    typedef struct {                               \
        struct {                                   \
            length x, y, z, level;                 \
            unsigned type;                         \
            void *host;                            \
            pointer device;                        \
            CUarray array;                         \
            void *reserved;                        \
            length pitch, height;                  \
        } from, to;                                \
        length width, height, depth;               \
    } solid;
GH_MEMCPY(size_t, CUdeviceptr, CUDA_MEMCPY2D, CUDA_MEMCPY3D)
GH_MEMCPY(unsigned, unsigned, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D_v1)
#undef GH_MEMCPY
typedef CUDA_MEMCPY3D CUDA_MEMCPY3D_PEER; /* its reserved fields hold contexts */

enum { CU_MEMCPY_OPERAND_TYPE_POINTER = 1, CU_MEMCPY_OPERAND_TYPE_ARRAY = 2 };
typedef struct {
    unsigned type; /* CU_MEMCPY_OPERAND_TYPE_... */
    union {
        struct {
            CUdeviceptr at;
            size_t row, layer;
            int hint[2];
        } pointer;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    };
} CUmemcpy3DOperand;
typedef struct {
    CUmemcpy3DOperand from, to;
    size_t width, height, depth; /* elements */
    unsigned order, flags;
} CUDA_MEMCPY3D_BATCH_OP;

enum { CU_FABRIC_COPY_OPERAND_TYPE_POINTER = 1 }; /* else a logical endpoint */
typedef struct {
    unsigned type;  /* CU_FABRIC_COPY_OPERAND_TYPE_... */
    CUdeviceptr at; /* or the number of a logical endpoint */
    uint64_t hint;  /* or an offset in that */
} CUfabricCpyOperand;
typedef struct {
    CUfabricCpyOperand from, to;
    size_t size;
    unsigned flags;
} CUDA_FABRIC_COPY_BATCH_OP;
typedef struct {
    size_t packed, unpacked; /* bytes; the second one may be 0 */
    void *written;
    const void *from;
    void *to;
    int algorithm;
    unsigned char padding[20];
} CUmemDecompressParams;

enum {
    CU_STREAM_LEGACY = 1,
    CU_STREAM_PER_THREAD = 2,
    CU_LIMIT_STACK_SIZE = 0,
    CU_LIMIT_PRINTF_FIFO_SIZE = 1,
    CU_LIMIT_MALLOC_HEAP_SIZE = 2,
    CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_NODE_TYPE_MEM_FREE = 11,
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_EVENT_DISABLE_TIMING = 2,
    CUDA_ARRAY3D_LAYERED = 1,
    CUDA_ARRAY3D_CUBEMAP = 4,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

CUresult cuDeviceGetCount(int *count);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuInit(unsigned flags);
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx context);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);
CUresult cuCheckpointProcessLock(int pid, void *args);
CUresult cuCheckpointProcessCheckpoint(int pid, void *args);
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
CUresult cuCheckpointProcessUnlock(int pid, void *args);
CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxAttach(CUcontext *context, unsigned flags);
CUresult cuCtxDetach(CUcontext context);
CUresult cuCtxSetLimit(int limit, size_t value);
CUresult cuCtxGetLimit(size_t *value, int limit);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);
CUresult cuEventSynchronize(CUevent event);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);

CUresult cuMemAlloc(unsigned *pointer, unsigned bytes);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree(unsigned pointer);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);
CUresult cuMemGetInfo(unsigned *free, unsigned *total);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element);
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *number, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count);
CUresult cuStreamQuery(CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *with);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *os, int type, uint64_t flags);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type);
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type);

typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
CUresult cuModuleLoad(CUmodule *module, const char *path);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *options, void **values);
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *jit, void **jit_values, unsigned jit_n,
                           int *options, void **values, unsigned n);
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned jit_n,
                               int *options, void **values, unsigned n);
CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, void *data);
#define GH_PREFETCHES(end)                                                                                           \
    CUresult cuMemPrefetchAsync##end(CUdeviceptr at, size_t bytes, CUdevice to, CUstream stream);                    \
    CUresult cuMemPrefetchAsync_v2##end(CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags,              \
                                        CUstream stream);                                                            \
    CUresult cuMemPrefetchBatchAsync##end(CUdeviceptr *at, size_t *bytes, size_t n, CUmemLocation *to, size_t *from, \
                                          size_t places, uint64_t flags, CUstream stream);                           \
    CUresult cuMemDiscardAndPrefetchBatchAsync##end(CUdeviceptr *at, size_t *bytes, size_t n, CUmemLocation *to,     \
                                                    size_t *from, size_t places, uint64_t flags, CUstream stream);
GH_PREFETCHES()
GH_PREFETCHES(_ptsz)
#undef GH_PREFETCHES

CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *prop, uint64_t flags);
CUresult cuMemRelease(CUmemHandle handle);
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags);
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes);
CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address);
typedef struct {
    char bytes[64];
} CUipcMemHandle;
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer);
CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);
CUresult cuMemExportToShareableHandle(void *os, CUmemHandle handle, int type, uint64_t flags);
CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *os, int type);
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t bytes, int type, uint64_t flags);
CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream);
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream);

CUresult cuMulticastCreate(CUmemHandle *object, const void *prop);
CUresult cuMulticastUnbind(CUmemHandle object, CUdevice device, size_t offset, size_t bytes);
CUresult cuLogicalEndpointUnbind(unsigned id, CUdevice device, uint64_t offset, uint64_t bytes);
CUresult cuMulticastBindMem(CUmemHandle object, size_t offset, CUmemHandle memory, size_t from, size_t bytes,
                            uint64_t flags);
CUresult cuMulticastBindMem_v2(CUmemHandle object, CUdevice device, size_t offset, CUmemHandle memory, size_t from,
                               size_t bytes, uint64_t flags);
CUresult cuMulticastBindAddr(CUmemHandle object, size_t offset, CUdeviceptr at, size_t bytes, uint64_t flags);
CUresult cuMulticastBindAddr_v2(CUmemHandle object, CUdevice device, size_t offset, CUdeviceptr at, size_t bytes,
                                uint64_t flags);
CUresult cuLogicalEndpointBindMem(unsigned id, CUdevice device, uint64_t offset, CUmemHandle memory, uint64_t from,
                                  uint64_t bytes, uint64_t flags);
CUresult cuLogicalEndpointBindAddr(unsigned id, CUdevice device, uint64_t offset, CUdeviceptr at, uint64_t bytes,
                                   uint64_t flags);

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d);
CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d);
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d);
CUresult cuArrayDestroy(CUarray array);
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *r, CUarray array, CUdevice device);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *r, CUmipmappedArray array,
                                               CUdevice device);

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                        CUgraphNodeParams *params);
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           CUgraphNodeParams *params);
CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           CUgraphNodeParams *params);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode node, int *type);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph);
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size);
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags);
CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *result);
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info);
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child);
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream);
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value);
CUresult cuDeviceGraphMemTrim(CUdevice device);

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **parameters);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned shared, CUstream stream, void **parameters);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags);
CUresult cuLaunch(CUfunction f);
CUresult cuLaunchGrid(CUfunction f, int width, int height);
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream);
CUresult cuFuncGetName(const char **name, CUfunction f);
CUresult cuKernelGetName(const char **name, CUfunction f); /* programs may launch a CUkernel as a CUfunction */
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end);

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer);
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoD(unsigned to, unsigned from, unsigned bytes);
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync(unsigned to, unsigned from, unsigned bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes);
CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes);
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, CUstream s);
CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes,
                                CUstream stream);
#define GH_ARRAYS(name, pointer, length)                                            \
    CUresult cuMemcpyDtoA##name(CUarray to, length at, pointer from, length bytes); \
    CUresult cuMemcpyAtoD##name(pointer to, CUarray from, length at, length bytes); \
    CUresult cuMemcpyAtoA##name(CUarray to, length at, CUarray from, length there, length bytes);
GH_ARRAYS(, unsigned, unsigned)
GH_ARRAYS(_v2, CUdeviceptr, size_t)
GH_ARRAYS(_v2_ptds, CUdeviceptr, size_t)
#undef GH_ARRAYS
#define GH_COPY(name, type)               \
    CUresult name(const type##_v1 *copy); \
    CUresult name##_v2(const type *copy); \
    CUresult name##_v2_ptds(const type *copy);
#define GH_COPY_ASYNC(name, type)                          \
    CUresult name(const type##_v1 *copy, CUstream stream); \
    CUresult name##_v2(const type *copy, CUstream stream); \
    CUresult name##_v2_ptsz(const type *copy, CUstream stream);
GH_COPY(cuMemcpy2D, CUDA_MEMCPY2D)
GH_COPY(cuMemcpy2DUnaligned, CUDA_MEMCPY2D)
GH_COPY(cuMemcpy3D, CUDA_MEMCPY3D)
GH_COPY_ASYNC(cuMemcpy2DAsync, CUDA_MEMCPY2D)
GH_COPY_ASYNC(cuMemcpy3DAsync, CUDA_MEMCPY3D)
#undef GH_COPY
#undef GH_COPY_ASYNC
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy);
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);
#define GH_BATCHES(name)                                                                                             \
    CUresult cuMemcpyBatchAsync##name(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n, void *attributes, \
                                      size_t *which, size_t kinds, size_t *failed, CUstream stream);                 \
    CUresult cuMemcpyBatchAsync_v2##name(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n,                \
                                         void *attributes, size_t *which, size_t kinds, CUstream stream);            \
    CUresult cuMemcpy3DBatchAsync##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,                      \
                                        unsigned long long flags, CUstream stream);                                  \
    CUresult cuMemcpy3DBatchAsync_v2##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,         \
                                           CUstream stream);                                                         \
    CUresult cuMemcpyWithAttributesAsync##name(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes,     \
                                               CUstream stream);                                                     \
    CUresult cuMemcpy3DWithAttributesAsync##name(CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags,             \
                                                 CUstream stream);                                                   \
    CUresult cuFabricCpyBatchAsync##name(size_t n, CUDA_FABRIC_COPY_BATCH_OP *list, unsigned long long flags,        \
                                         CUstream stream);                                                           \
    CUresult cuMemBatchDecompressAsync##name(CUmemDecompressParams *list, size_t n, unsigned flags, size_t *failed,  \
                                             CUstream stream);
GH_BATCHES()
GH_BATCHES(_ptsz)
#undef GH_BATCHES
#define GH_FILL(bits, type)                                                                                 \
    CUresult cuMemsetD##bits(unsigned to, type value, unsigned n);                                          \
    CUresult cuMemsetD2D##bits(unsigned to, unsigned pitch, type value, unsigned n, unsigned rows);         \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t n);                                    \
    CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr to, type value, size_t n);                               \
    CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t n, CUstream stream);                 \
    CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr to, type value, size_t n, CUstream stream);            \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows);       \
    CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows);  \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows,      \
                                      CUstream stream);                                                     \
    CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows, \
                                           CUstream stream);
GH_FILL(8, unsigned char)
GH_FILL(16, unsigned short)
GH_FILL(32, unsigned)
#undef GH_FILL

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d);
CUresult cuDestroyExternalMemory(CUexternalMemory memory);

_Static_assert(sizeof(CUmemPoolProps) == 88 && sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "node parameters");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "node parameters");
_Static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == 32, "instantiation");
_Static_assert(sizeof(CUmemAllocationProp) == 32 && sizeof(CUarrayMapInfo) == 96, "virtual memory");
_Static_assert(sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC) == 104, "external memory");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && sizeof(CUDA_MEMCPY3D) == 200, "copies");
_Static_assert(sizeof(CUDA_FABRIC_COPY_BATCH_OP) == 64 && sizeof(CUmemDecompressParams) == 64, "batches");
_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "copies");

/* Which stream NULL means: in plain functions the legacy default stream, in _ptsz and _ptds functions the thread's. */
#define PLAIN(stream) (stream)
#define PER_THREAD(stream) ((stream) ? (stream) : (CUstream)CU_STREAM_PER_THREAD)

#endif
