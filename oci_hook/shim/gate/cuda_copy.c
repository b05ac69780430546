/* While the GPU copies or fills its own memory, it computes nothing else. So such a call passes the gate as a kernel
 * does if it is long enough, at a cost learned by size. Copies from and to the host use engines of their own and never
 * wait here. */
#include "driver/cuda.h"
#include "driver/real.h"
#include "gate/cost.h"
#include "gate/gate.h"

#define LEAST (1ull << 20) /* bytes; shorter calls take less time than the kernels around them */

enum { COPY = 1, FILL }; /* in place of a handle, in keys of costs; no function or graph has this one */
enum { ELSEWHERE = -1, SOME_GPU = -2 };

/* Sizes that differ by less than a sixteenth cost the same. */
static uint64_t key_of(uintptr_t what, uint64_t bytes) {
    unsigned shift = 63 - (unsigned)__builtin_clzll(bytes) - 4;
    return cost_key((const void *)what, bytes >> shift, shift, 0);
}

/* The device of an address; host addresses lack these attributes. */
static int device_of(CUdeviceptr at) {
    unsigned type = 0;
    int device = ELSEWHERE;
    if (REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) || type != CU_MEMORYTYPE_DEVICE ||
        REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at))
        return ELSEWHERE;
    return device;
}

static int side(unsigned type, CUdeviceptr at) {
    return type == CU_MEMORYTYPE_HOST ? ELSEWHERE : type == CU_MEMORYTYPE_ARRAY ? SOME_GPU : device_of(at);
}

static bool same_gpu(int a, int b) {
    return a != ELSEWHERE && b != ELSEWHERE && (a == b || a == SOME_GPU || b == SOME_GPU);
}

/* `bytes` from `from` to `to`, both addresses: through the gate if that is a long copy within one GPU. */
#define COPY_THROUGH_GATE(to, from, bytes, stream, call) \
    THROUGH_GATE_IF((bytes) >= LEAST && same_gpu(device_of(to), device_of(from)), stream, key_of(COPY, bytes), call)
#define NOW(name, pointer, length, stream)                                              \
    GH_EXPORT CUresult name(pointer to, pointer from, length bytes) {                   \
        return COPY_THROUGH_GATE(to, from, bytes, stream, REAL(name)(to, from, bytes)); \
    }
#define LATER(name, pointer, length, of)                                                            \
    GH_EXPORT CUresult name(pointer to, pointer from, length bytes, CUstream stream) {              \
        return COPY_THROUGH_GATE(to, from, bytes, of(stream), REAL(name)(to, from, bytes, stream)); \
    }
#define NOW_PEER(name, stream)                                                                                 \
    GH_EXPORT CUresult name(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes) { \
        return COPY_THROUGH_GATE(to, from, bytes, stream, REAL(name)(to, there, from, here, bytes));           \
    }
#define LATER_PEER(name, of)                                                                                     \
    GH_EXPORT CUresult name(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes,     \
                            CUstream stream) {                                                                   \
        return COPY_THROUGH_GATE(to, from, bytes, of(stream), REAL(name)(to, there, from, here, bytes, stream)); \
    }
NOW(cuMemcpy, CUdeviceptr, size_t, NULL)
NOW(cuMemcpy_ptds, CUdeviceptr, size_t, PER_THREAD(NULL))
NOW(cuMemcpyDtoD, unsigned, unsigned, NULL)
NOW(cuMemcpyDtoD_v2, CUdeviceptr, size_t, NULL)
NOW(cuMemcpyDtoD_v2_ptds, CUdeviceptr, size_t, PER_THREAD(NULL))
LATER(cuMemcpyAsync, CUdeviceptr, size_t, PLAIN)
LATER(cuMemcpyAsync_ptsz, CUdeviceptr, size_t, PER_THREAD)
LATER(cuMemcpyDtoDAsync, unsigned, unsigned, PLAIN)
LATER(cuMemcpyDtoDAsync_v2, CUdeviceptr, size_t, PLAIN)
LATER(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, size_t, PER_THREAD)

NOW_PEER(cuMemcpyPeer, NULL)
NOW_PEER(cuMemcpyPeer_ptds, PER_THREAD(NULL))
LATER_PEER(cuMemcpyPeerAsync, PLAIN)
LATER_PEER(cuMemcpyPeerAsync_ptsz, PER_THREAD)

/* An array is on the context's GPU. `device`: where the other side of the copy is. */
#define ARRAY_THROUGH_GATE(device, bytes, stream, call) \
    THROUGH_GATE_IF((bytes) >= LEAST && same_gpu(SOME_GPU, device), stream, key_of(COPY, bytes), call)
#define ARRAYS(name, pointer, length, stream)                                                                     \
    GH_EXPORT CUresult cuMemcpyDtoA##name(CUarray to, length at, pointer from, length bytes) {                    \
        return ARRAY_THROUGH_GATE(device_of(from), bytes, stream, REAL(cuMemcpyDtoA##name)(to, at, from, bytes)); \
    }                                                                                                             \
    GH_EXPORT CUresult cuMemcpyAtoD##name(pointer to, CUarray from, length at, length bytes) {                    \
        return ARRAY_THROUGH_GATE(device_of(to), bytes, stream, REAL(cuMemcpyAtoD##name)(to, from, at, bytes));   \
    }                                                                                                             \
    GH_EXPORT CUresult cuMemcpyAtoA##name(CUarray to, length at, CUarray from, length there, length bytes) {      \
        return ARRAY_THROUGH_GATE(SOME_GPU, bytes, stream, REAL(cuMemcpyAtoA##name)(to, at, from, there, bytes)); \
    }
ARRAYS(, unsigned, unsigned, NULL)
ARRAYS(_v2, CUdeviceptr, size_t, NULL)
ARRAYS(_v2_ptds, CUdeviceptr, size_t, PER_THREAD(NULL))

#define FLAT(c) ((c) ? (uint64_t)(c)->width * (c)->height : 0)
#define SOLID(c) ((c) ? (uint64_t)(c)->width * (c)->height * (c)->depth : 0)
#define BOX_THROUGH_GATE(c, bytes, stream, call)                                                              \
    THROUGH_GATE_IF((bytes) >= LEAST &&                                                                       \
                        same_gpu(side((c)->from.type, (c)->from.device), side((c)->to.type, (c)->to.device)), \
                    stream, key_of(COPY, bytes), call)
#define BOX_NOW(name, type, bytes, stream) \
    GH_EXPORT CUresult name(const type *c) { return BOX_THROUGH_GATE(c, bytes(c), stream, REAL(name)(c)); }
#define BOX_LATER(name, type, bytes, of)                                         \
    GH_EXPORT CUresult name(const type *c, CUstream stream) {                    \
        return BOX_THROUGH_GATE(c, bytes(c), of(stream), REAL(name)(c, stream)); \
    }
#define BOXES(name, type, bytes)          \
    BOX_NOW(name, type##_v1, bytes, NULL) \
    BOX_NOW(name##_v2, type, bytes, NULL) \
    BOX_NOW(name##_v2_ptds, type, bytes, PER_THREAD(NULL))
#define BOXES_LATER(name, type, bytes)       \
    BOX_LATER(name, type##_v1, bytes, PLAIN) \
    BOX_LATER(name##_v2, type, bytes, PLAIN) \
    BOX_LATER(name##_v2_ptsz, type, bytes, PER_THREAD)
BOXES(cuMemcpy2D, CUDA_MEMCPY2D, FLAT)
BOXES(cuMemcpy2DUnaligned, CUDA_MEMCPY2D, FLAT)
BOXES(cuMemcpy3D, CUDA_MEMCPY3D, SOLID)
BOXES_LATER(cuMemcpy2DAsync, CUDA_MEMCPY2D, FLAT)
BOXES_LATER(cuMemcpy3DAsync, CUDA_MEMCPY3D, SOLID)

BOX_NOW(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, SOLID, NULL)
BOX_NOW(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D_PEER, SOLID, PER_THREAD(NULL))
BOX_LATER(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, SOLID, PLAIN)
BOX_LATER(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D_PEER, SOLID, PER_THREAD)

/* A batch counts as one copy, of the bytes that it copies within one GPU. */
static uint64_t of_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t n) {
    uint64_t within = 0;
    for (size_t i = 0; to && from && sizes && i < n; i++)
        if (same_gpu(device_of(to[i]), device_of(from[i])))
            within += sizes[i];
    return within;
}

#define ELEMENT 4 /* bytes of an array's element: 1 to 16, and what a batch costs is learned */
static uint64_t of_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t n) {
    uint64_t within = 0;
    for (const CUDA_MEMCPY3D_BATCH_OP *c = list; list && c < list + n; c++) {
        bool from_array = c->from.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
        bool to_array = c->to.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
        if (same_gpu(from_array ? SOME_GPU : device_of(c->from.pointer.at),
                     to_array ? SOME_GPU : device_of(c->to.pointer.at)))
            within += (uint64_t)c->width * c->height * c->depth * (from_array || to_array ? ELEMENT : 1);
    }
    return within;
}

/* `sum`: the bytes of a batch, which are counted only when the gate is not open. */
#define BATCH_THROUGH_GATE(stream, sum, call)                                 \
    __extension__({                                                           \
        uint64_t bytes_ = gate_open() ? 0 : (sum);                            \
        THROUGH_GATE_IF(bytes_ >= LEAST, stream, key_of(COPY, bytes_), call); \
    })
#define BATCHES(name, of)                                                                                              \
    GH_EXPORT CUresult cuMemcpyBatchAsync##name(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n,           \
                                                void *attributes, size_t *which, size_t kinds, size_t *failed,         \
                                                CUstream stream) {                                                     \
        return BATCH_THROUGH_GATE(                                                                                     \
            of(stream), of_batch(to, from, sizes, n),                                                                  \
            REAL(cuMemcpyBatchAsync##name)(to, from, sizes, n, attributes, which, kinds, failed, stream));             \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpyBatchAsync_v2##name(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n,        \
                                                   void *attributes, size_t *which, size_t kinds, CUstream stream) {   \
        return BATCH_THROUGH_GATE(                                                                                     \
            of(stream), of_batch(to, from, sizes, n),                                                                  \
            REAL(cuMemcpyBatchAsync_v2##name)(to, from, sizes, n, attributes, which, kinds, stream));                  \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpy3DBatchAsync##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,              \
                                                  unsigned long long flags, CUstream stream) {                         \
        return BATCH_THROUGH_GATE(of(stream), of_boxes(list, n),                                                       \
                                  REAL(cuMemcpy3DBatchAsync##name)(n, list, failed, flags, stream));                   \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpy3DBatchAsync_v2##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, \
                                                     CUstream stream) {                                                \
        return BATCH_THROUGH_GATE(of(stream), of_boxes(list, n),                                                       \
                                  REAL(cuMemcpy3DBatchAsync_v2##name)(n, list, flags, stream));                        \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpyWithAttributesAsync##name(CUdeviceptr to, CUdeviceptr from, size_t bytes,               \
                                                         void *attributes, CUstream stream) {                          \
        return COPY_THROUGH_GATE(to, from, bytes, of(stream),                                                          \
                                 REAL(cuMemcpyWithAttributesAsync##name)(to, from, bytes, attributes, stream));        \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpy3DWithAttributesAsync##name(CUDA_MEMCPY3D_BATCH_OP *c, unsigned long long flags,        \
                                                           CUstream stream) {                                          \
        return BATCH_THROUGH_GATE(of(stream), of_boxes(c, 1),                                                          \
                                  REAL(cuMemcpy3DWithAttributesAsync##name)(c, flags, stream));                        \
    }
BATCHES(, PLAIN)
BATCHES(_ptsz, PER_THREAD)

/* The driver fills memory by a kernel of its own. */
#define FILL_THROUGH_GATE(bytes, stream, call) THROUGH_GATE_IF((bytes) >= LEAST, stream, key_of(FILL, bytes), call)
#define FILL_NOW(name, pointer, type, length, stream)                                           \
    GH_EXPORT CUresult name(pointer to, type value, length n) {                                 \
        return FILL_THROUGH_GATE((uint64_t)n * sizeof value, stream, REAL(name)(to, value, n)); \
    }
#define FILL_LATER(name, type, of)                                                                \
    GH_EXPORT CUresult name(CUdeviceptr to, type value, size_t n, CUstream stream) {              \
        return FILL_THROUGH_GATE(n * sizeof value, of(stream), REAL(name)(to, value, n, stream)); \
    }
#define FILL_ROWS_NOW(name, pointer, type, length, stream)                                                          \
    GH_EXPORT CUresult name(pointer to, length pitch, type value, length n, length rows) {                          \
        return FILL_THROUGH_GATE((uint64_t)rows * n * sizeof value, stream, REAL(name)(to, pitch, value, n, rows)); \
    }
#define FILL_ROWS_LATER(name, type, of)                                                                               \
    GH_EXPORT CUresult name(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows, CUstream stream) {       \
        return FILL_THROUGH_GATE(rows * n * sizeof value, of(stream), REAL(name)(to, pitch, value, n, rows, stream)); \
    }
#define FILLS(bits, type)                                                                   \
    FILL_NOW(cuMemsetD##bits, unsigned, type, unsigned, NULL)                               \
    FILL_NOW(cuMemsetD##bits##_v2, CUdeviceptr, type, size_t, NULL)                         \
    FILL_NOW(cuMemsetD##bits##_v2_ptds, CUdeviceptr, type, size_t, PER_THREAD(NULL))        \
    FILL_LATER(cuMemsetD##bits##Async, type, PLAIN)                                         \
    FILL_LATER(cuMemsetD##bits##Async_ptsz, type, PER_THREAD)                               \
    FILL_ROWS_NOW(cuMemsetD2D##bits, unsigned, type, unsigned, NULL)                        \
    FILL_ROWS_NOW(cuMemsetD2D##bits##_v2, CUdeviceptr, type, size_t, NULL)                  \
    FILL_ROWS_NOW(cuMemsetD2D##bits##_v2_ptds, CUdeviceptr, type, size_t, PER_THREAD(NULL)) \
    FILL_ROWS_LATER(cuMemsetD2D##bits##Async, type, PLAIN)                                  \
    FILL_ROWS_LATER(cuMemsetD2D##bits##Async_ptsz, type, PER_THREAD)
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
