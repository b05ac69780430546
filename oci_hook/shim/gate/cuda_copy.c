/* While the GPU copies or fills its own memory, it computes nothing else. So such a call passes the gate as a kernel
 * does, at a cost learned by size. Copies from and to the host use engines of their own and never wait here. What the
 * gate sees of a call is what the driver gets: another thread of the program may change the structures and lists of a
 * call while it runs. */
#include <stdlib.h>
#include <string.h>

#include "driver/cuda.h"
#include "driver/real.h"
#include "gate/cost.h"
#include "gate/gate.h"

#define LEAST (1ull << 16) /* bytes; a shorter call takes as long */
#define LONG (1ull << 20)  /* bytes; of a shorter call, the greater part may be the same for all sizes */

enum { COPY = 1, FILL, UNPACK }; /* in place of a handle, in keys of costs; no function or graph has this one */
enum { ELSEWHERE = -1, SOME_GPU = -2 };

static uint64_t at_least(uint64_t bytes, uint64_t least) { return bytes < least ? least : bytes; }

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
static bool within_gpu(CUdeviceptr to, CUdeviceptr from) {
    int device = device_of(to);
    return device != ELSEWHERE && device == device_of(from);
}

/* What a KiB takes is learned of long ones alone. */
static void begin(struct gate_pass *pass, uintptr_t what, uint64_t bytes, CUstream stream) {
    gate_begin_on(gate_way(), pass, stream, key_of(what, at_least(bytes, LEAST)), NULL, at_least(bytes, LONG) >> 10);
}

/* The driver is asked where addresses are only when the gate is not open for all. */
static void begin_copy(struct gate_pass *pass, CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() != GATE_OPEN && bytes && within_gpu(to, from))
        begin(pass, COPY, bytes, stream);
}

#define NOW(name, pointer, length, stream)                            \
    GH_EXPORT CUresult name(pointer to, pointer from, length bytes) { \
        struct gate_pass pass;                                        \
        begin_copy(&pass, to, from, bytes, stream);                   \
        return gate_end(&pass, REAL(name)(to, from, bytes));          \
    }
NOW(cuMemcpy, CUdeviceptr, size_t, NULL)
NOW(cuMemcpy_ptds, CUdeviceptr, size_t, PER_THREAD(NULL))
NOW(cuMemcpyDtoD, unsigned, unsigned, NULL)
NOW(cuMemcpyDtoD_v2, CUdeviceptr, size_t, NULL)
NOW(cuMemcpyDtoD_v2_ptds, CUdeviceptr, size_t, PER_THREAD(NULL))

#define LATER(name, pointer, length, of)                                               \
    GH_EXPORT CUresult name(pointer to, pointer from, length bytes, CUstream stream) { \
        struct gate_pass pass;                                                         \
        begin_copy(&pass, to, from, bytes, of(stream));                                \
        return gate_end(&pass, REAL(name)(to, from, bytes, stream));                   \
    }
LATER(cuMemcpyAsync, CUdeviceptr, size_t, PLAIN)
LATER(cuMemcpyAsync_ptsz, CUdeviceptr, size_t, PER_THREAD)
LATER(cuMemcpyDtoDAsync, unsigned, unsigned, PLAIN)
LATER(cuMemcpyDtoDAsync_v2, CUdeviceptr, size_t, PLAIN)
LATER(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, size_t, PER_THREAD)

#define NOW_PEER(name, stream)                                                                                 \
    GH_EXPORT CUresult name(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes) { \
        struct gate_pass pass;                                                                                 \
        begin_copy(&pass, to, from, bytes, stream);                                                            \
        return gate_end(&pass, REAL(name)(to, there, from, here, bytes));                                      \
    }
NOW_PEER(cuMemcpyPeer, NULL)
NOW_PEER(cuMemcpyPeer_ptds, PER_THREAD(NULL))

#define LATER_PEER(name, of)                                                                                 \
    GH_EXPORT CUresult name(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes, \
                            CUstream stream) {                                                               \
        struct gate_pass pass;                                                                               \
        begin_copy(&pass, to, from, bytes, of(stream));                                                      \
        return gate_end(&pass, REAL(name)(to, there, from, here, bytes, stream));                            \
    }
LATER_PEER(cuMemcpyPeerAsync, PLAIN)
LATER_PEER(cuMemcpyPeerAsync_ptsz, PER_THREAD)

#define ATTRIBUTED(name, of)                                                                                     \
    GH_EXPORT CUresult name(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream) { \
        struct gate_pass pass;                                                                                   \
        begin_copy(&pass, to, from, bytes, of(stream));                                                          \
        return gate_end(&pass, REAL(name)(to, from, bytes, attributes, stream));                                 \
    }
ATTRIBUTED(cuMemcpyWithAttributesAsync, PLAIN)
ATTRIBUTED(cuMemcpyWithAttributesAsync_ptsz, PER_THREAD)

/* ---- arrays ---- */

/* An array is on the context's GPU. */
static void begin_arrays(struct gate_pass *pass, uint64_t bytes, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() != GATE_OPEN && bytes)
        begin(pass, COPY, bytes, stream);
}
static void begin_array(struct gate_pass *pass, CUdeviceptr other, uint64_t bytes, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() != GATE_OPEN && bytes && same_gpu(SOME_GPU, device_of(other)))
        begin(pass, COPY, bytes, stream);
}

#define ARRAYS(name, pointer, length, stream)                                                                \
    GH_EXPORT CUresult cuMemcpyDtoA##name(CUarray to, length at, pointer from, length bytes) {               \
        struct gate_pass pass;                                                                               \
        begin_array(&pass, from, bytes, stream);                                                             \
        return gate_end(&pass, REAL(cuMemcpyDtoA##name)(to, at, from, bytes));                               \
    }                                                                                                        \
    GH_EXPORT CUresult cuMemcpyAtoD##name(pointer to, CUarray from, length at, length bytes) {               \
        struct gate_pass pass;                                                                               \
        begin_array(&pass, to, bytes, stream);                                                               \
        return gate_end(&pass, REAL(cuMemcpyAtoD##name)(to, from, at, bytes));                               \
    }                                                                                                        \
    GH_EXPORT CUresult cuMemcpyAtoA##name(CUarray to, length at, CUarray from, length there, length bytes) { \
        struct gate_pass pass;                                                                               \
        begin_arrays(&pass, bytes, stream);                                                                  \
        return gate_end(&pass, REAL(cuMemcpyAtoA##name)(to, at, from, there, bytes));                        \
    }
ARRAYS(, unsigned, unsigned, NULL)
ARRAYS(_v2, CUdeviceptr, size_t, NULL)
ARRAYS(_v2_ptds, CUdeviceptr, size_t, PER_THREAD(NULL))

/* ---- two and three dimensions ---- */

struct box {
    unsigned from_type, to_type;
    CUdeviceptr from, to;
    uint64_t bytes;
};
#define FLAT(c) \
    ((struct box){(c)->from.type, (c)->to.type, (c)->from.device, (c)->to.device, (uint64_t)(c)->width * (c)->height})
#define SOLID(c)                                                                  \
    ((struct box){(c)->from.type, (c)->to.type, (c)->from.device, (c)->to.device, \
                  (uint64_t)(c)->width * (c)->height * (c)->depth})

static void begin_box(struct gate_pass *pass, struct box c, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() != GATE_OPEN && c.bytes && same_gpu(side(c.from_type, c.from), side(c.to_type, c.to)))
        begin(pass, COPY, c.bytes, stream);
}

#define BOX_NOW(name, type, box_of, stream)      \
    GH_EXPORT CUresult name(const type *asked) { \
        struct gate_pass pass;                   \
        type c;                                  \
        if (!asked)                              \
            return REAL(name)(asked);            \
        c = *asked;                              \
        begin_box(&pass, box_of(&c), stream);    \
        return gate_end(&pass, REAL(name)(&c));  \
    }
#define BOX_LATER(name, type, box_of, of)                         \
    GH_EXPORT CUresult name(const type *asked, CUstream stream) { \
        struct gate_pass pass;                                    \
        type c;                                                   \
        if (!asked)                                               \
            return REAL(name)(asked, stream);                     \
        c = *asked;                                               \
        begin_box(&pass, box_of(&c), of(stream));                 \
        return gate_end(&pass, REAL(name)(&c, stream));           \
    }
#define BOXES(name, type, box_of)          \
    BOX_NOW(name, type##_v1, box_of, NULL) \
    BOX_NOW(name##_v2, type, box_of, NULL) \
    BOX_NOW(name##_v2_ptds, type, box_of, PER_THREAD(NULL))
#define BOXES_LATER(name, type, box_of)       \
    BOX_LATER(name, type##_v1, box_of, PLAIN) \
    BOX_LATER(name##_v2, type, box_of, PLAIN) \
    BOX_LATER(name##_v2_ptsz, type, box_of, PER_THREAD)
BOXES(cuMemcpy2D, CUDA_MEMCPY2D, FLAT)
BOXES(cuMemcpy2DUnaligned, CUDA_MEMCPY2D, FLAT)
BOXES(cuMemcpy3D, CUDA_MEMCPY3D, SOLID)
BOXES_LATER(cuMemcpy2DAsync, CUDA_MEMCPY2D, FLAT)
BOXES_LATER(cuMemcpy3DAsync, CUDA_MEMCPY3D, SOLID)

BOX_NOW(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, SOLID, NULL)
BOX_NOW(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D_PEER, SOLID, PER_THREAD(NULL))
BOX_LATER(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, SOLID, PLAIN)
BOX_LATER(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D_PEER, SOLID, PER_THREAD)

/* ---- batches: each counts as one copy, of the bytes that it copies within one GPU ---- */

/* The lists of a batch, as the driver gets them. */
struct batch {
    CUdeviceptr *to, *from;
    size_t *sizes;
    CUDA_MEMCPY3D_BATCH_OP *boxes;
    CUDA_FABRIC_COPY_BATCH_OP *copies;
    CUmemDecompressParams *packed;
    void *copy; /* of what the program gave; NULL: it is the program's own, since nobody looks at it */
};

/* NULL: no memory. */
static void *copied(struct batch *b, size_t lists, size_t n, size_t size) {
    size_t each, all;
    if (__builtin_mul_overflow(n, size, &each) || __builtin_mul_overflow(each, lists, &all))
        return NULL;
    return b->copy = malloc(all);
}

static uint64_t bytes_of(const struct batch *b, size_t n) {
    uint64_t within = 0;
    for (size_t i = 0; i < n; i++)
        if (within_gpu(b->to[i], b->from[i]))
            within += b->sizes[i];
    return within;
}

static CUresult begin_batch(struct gate_pass *pass, struct batch *b, size_t n, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() == GATE_OPEN || !b->to || !b->from || !b->sizes || !n)
        return CUDA_SUCCESS;
    char *copy = copied(b, 3, n, sizeof *b->sizes);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t each = n * sizeof *b->sizes;
    b->to = memcpy(copy, b->to, each);
    b->from = memcpy(copy + each, b->from, each);
    b->sizes = memcpy(copy + 2 * each, b->sizes, each);
    begin_arrays(pass, bytes_of(b, n), stream);
    return CUDA_SUCCESS;
}

#define ELEMENT 4 /* bytes of an array's element: 1 to 16, and what a batch costs is learned */
static uint64_t bytes_of_boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t n) {
    uint64_t within = 0;
    for (const CUDA_MEMCPY3D_BATCH_OP *c = list; c < list + n; c++) {
        bool from_array = c->from.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
        bool to_array = c->to.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
        if (same_gpu(from_array ? SOME_GPU : device_of(c->from.pointer.at),
                     to_array ? SOME_GPU : device_of(c->to.pointer.at)))
            within += (uint64_t)c->width * c->height * c->depth * (from_array || to_array ? ELEMENT : 1);
    }
    return within;
}

static CUresult begin_boxes(struct gate_pass *pass, struct batch *b, size_t n, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() == GATE_OPEN || !b->boxes || !n)
        return CUDA_SUCCESS;
    if (!copied(b, 1, n, sizeof *b->boxes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    b->boxes = memcpy(b->copy, b->boxes, n * sizeof *b->boxes);
    begin_arrays(pass, bytes_of_boxes(b->boxes, n), stream);
    return CUDA_SUCCESS;
}

/* A copy to or from a logical endpoint is one to another GPU. */
static CUresult begin_copies(struct gate_pass *pass, struct batch *b, size_t n, CUstream stream) {
    enum { POINTER = CU_FABRIC_COPY_OPERAND_TYPE_POINTER };
    uint64_t within = 0;
    pass->gate = NULL;
    if (gate_way() == GATE_OPEN || !b->copies || !n)
        return CUDA_SUCCESS;
    if (!copied(b, 1, n, sizeof *b->copies))
        return CUDA_ERROR_OUT_OF_MEMORY;
    b->copies = memcpy(b->copy, b->copies, n * sizeof *b->copies);
    for (const CUDA_FABRIC_COPY_BATCH_OP *c = b->copies; c < b->copies + n; c++)
        if (c->to.type == POINTER && c->from.type == POINTER && within_gpu(c->to.at, c->from.at))
            within += c->size;
    begin_arrays(pass, within, stream);
    return CUDA_SUCCESS;
}

/* Also where a GPU has an engine of its own for this: what a command takes is learned, and that engine has the GPU's memory. */
static CUresult begin_packed(struct gate_pass *pass, struct batch *b, size_t n, CUstream stream) {
    uint64_t here = 0;
    pass->gate = NULL;
    if (gate_way() == GATE_OPEN || !b->packed || !n)
        return CUDA_SUCCESS;
    if (!copied(b, 1, n, sizeof *b->packed))
        return CUDA_ERROR_OUT_OF_MEMORY;
    b->packed = memcpy(b->copy, b->packed, n * sizeof *b->packed);
    for (const CUmemDecompressParams *p = b->packed; p < b->packed + n; p++)
        if (device_of((uintptr_t)p->to) != ELSEWHERE)
            here += p->unpacked > p->packed ? p->unpacked : p->packed;
    if (here)
        begin(pass, UNPACK, here, stream);
    return CUDA_SUCCESS;
}

static CUresult end_batch(struct gate_pass *pass, struct batch *b, CUresult result) {
    free(b->copy);
    return gate_end(pass, result);
}

#define BATCHES(name, of)                                                                                              \
    GH_EXPORT CUresult cuMemcpyBatchAsync##name(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n,           \
                                                void *attributes, size_t *which, size_t kinds, size_t *failed,         \
                                                CUstream stream) {                                                     \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.to = to, .from = from, .sizes = sizes};                                                     \
        CUresult r = begin_batch(&pass, &b, n, of(stream));                                                            \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuMemcpyBatchAsync##name)(b.to, b.from, b.sizes, n, attributes, which, kinds, failed, stream);    \
        return end_batch(&pass, &b, r);                                                                                \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpyBatchAsync_v2##name(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t n,        \
                                                   void *attributes, size_t *which, size_t kinds, CUstream stream) {   \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.to = to, .from = from, .sizes = sizes};                                                     \
        CUresult r = begin_batch(&pass, &b, n, of(stream));                                                            \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuMemcpyBatchAsync_v2##name)(b.to, b.from, b.sizes, n, attributes, which, kinds, stream);         \
        return end_batch(&pass, &b, r);                                                                                \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpy3DBatchAsync##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,              \
                                                  unsigned long long flags, CUstream stream) {                         \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.boxes = list};                                                                              \
        CUresult r = begin_boxes(&pass, &b, n, of(stream));                                                            \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuMemcpy3DBatchAsync##name)(n, b.boxes, failed, flags, stream);                                   \
        return end_batch(&pass, &b, r);                                                                                \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpy3DBatchAsync_v2##name(size_t n, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, \
                                                     CUstream stream) {                                                \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.boxes = list};                                                                              \
        CUresult r = begin_boxes(&pass, &b, n, of(stream));                                                            \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuMemcpy3DBatchAsync_v2##name)(n, b.boxes, flags, stream);                                        \
        return end_batch(&pass, &b, r);                                                                                \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemcpy3DWithAttributesAsync##name(CUDA_MEMCPY3D_BATCH_OP *c, unsigned long long flags,        \
                                                           CUstream stream) {                                          \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.boxes = c};                                                                                 \
        CUresult r = begin_boxes(&pass, &b, 1, of(stream));                                                            \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuMemcpy3DWithAttributesAsync##name)(b.boxes, flags, stream);                                     \
        return end_batch(&pass, &b, r);                                                                                \
    }                                                                                                                  \
    GH_EXPORT CUresult cuFabricCpyBatchAsync##name(size_t n, CUDA_FABRIC_COPY_BATCH_OP *list,                          \
                                                   unsigned long long flags, CUstream stream) {                        \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.copies = list};                                                                             \
        CUresult r = begin_copies(&pass, &b, n, of(stream));                                                           \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuFabricCpyBatchAsync##name)(n, b.copies, flags, stream);                                         \
        return end_batch(&pass, &b, r);                                                                                \
    }                                                                                                                  \
    GH_EXPORT CUresult cuMemBatchDecompressAsync##name(CUmemDecompressParams *list, size_t n, unsigned flags,          \
                                                       size_t *failed, CUstream stream) {                              \
        struct gate_pass pass;                                                                                         \
        struct batch b = {.packed = list};                                                                             \
        CUresult r = begin_packed(&pass, &b, n, of(stream));                                                           \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = REAL(cuMemBatchDecompressAsync##name)(b.packed, n, flags, failed, stream);                             \
        return end_batch(&pass, &b, r);                                                                                \
    }
BATCHES(, PLAIN)
BATCHES(_ptsz, PER_THREAD)

/* ---- fills: the driver fills memory by a kernel of its own ---- */

static void begin_fill(struct gate_pass *pass, uint64_t bytes, CUstream stream) {
    pass->gate = NULL;
    if (gate_way() != GATE_OPEN && bytes)
        begin(pass, FILL, bytes, stream);
}

#define FILL_NOW(name, pointer, type, length, stream)           \
    GH_EXPORT CUresult name(pointer to, type value, length n) { \
        struct gate_pass pass;                                  \
        begin_fill(&pass, (uint64_t)n * sizeof value, stream);  \
        return gate_end(&pass, REAL(name)(to, value, n));       \
    }
#define FILL_LATER(name, type, of)                                                   \
    GH_EXPORT CUresult name(CUdeviceptr to, type value, size_t n, CUstream stream) { \
        struct gate_pass pass;                                                       \
        begin_fill(&pass, n * sizeof value, of(stream));                             \
        return gate_end(&pass, REAL(name)(to, value, n, stream));                    \
    }
#define FILL_ROWS_NOW(name, pointer, type, length, stream)                                 \
    GH_EXPORT CUresult name(pointer to, length pitch, type value, length n, length rows) { \
        struct gate_pass pass;                                                             \
        begin_fill(&pass, (uint64_t)rows * n * sizeof value, stream);                      \
        return gate_end(&pass, REAL(name)(to, pitch, value, n, rows));                     \
    }
#define FILL_ROWS_LATER(name, type, of)                                                                         \
    GH_EXPORT CUresult name(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows, CUstream stream) { \
        struct gate_pass pass;                                                                                  \
        begin_fill(&pass, rows * n * sizeof value, of(stream));                                                 \
        return gate_end(&pass, REAL(name)(to, pitch, value, n, rows, stream));                                  \
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
