/* Simulated libcuda: several copies in one call, and copies with attributes (CUDA 12.8, 13.0, 13.2). The attributes say
 * when the source may be read and what may run meanwhile; here the copies are made one after the other. */
#define _GNU_SOURCE
#include "heap.h"

struct operand { /* CUmemcpy3DOperand; type: pointer 1, array 2 */
    unsigned type;
    union {
        struct {
            CUdeviceptr at;
            size_t row, layer;
            int hint[2];
        } pointer; /* elements */
        struct {
            struct array *array;
            size_t x, y, z;
        } array;
    };
};
struct batch_op { /* CUDA_MEMCPY3D_BATCH_OP */
    struct operand from, to;
    size_t width, height, depth; /* in elements for an array, else in bytes */
    unsigned order, flags;
};
_Static_assert(sizeof(struct batch_op) == 112, "CUDA_MEMCPY3D_BATCH_OP");

static CUresult linear(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n, CUstream stream) {
    if (!n || !to || !from || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        TRY(copy_linear(to[i], from[i], bytes[i], stream, false));
    return CUDA_SUCCESS;
}

static size_t element(const struct operand *o) {
    return o->type == 2 && o->array.array ? array_element(o->array.array) : 0;
}

static struct box side(const struct operand *o, size_t bytes) {
    if (o->type == 2)
        return (struct box){
            .type = 3, .array = o->array.array, .x = o->array.x * bytes, .y = o->array.y, .z = o->array.z};
    return (struct box){
        .type = 2, .device = o->pointer.at, .pitch = o->pointer.row * bytes, .height = o->pointer.layer};
}

static CUresult boxes(const struct batch_op *list, size_t n, CUstream stream) {
    if (!n || !list)
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct batch_op *o = list; o < list + n; o++) {
        size_t to = element(&o->to), from = element(&o->from), bytes = to ? to : from ? from : 1;
        struct copy3d c = {side(&o->from, bytes), side(&o->to, bytes), o->width * bytes, o->height, o->depth};
        if (!o->width || !o->height || !o->depth || (to && from && to != from))
            return CUDA_ERROR_INVALID_VALUE;
        TRY(copy_box(&c, stream, false));
    }
    return CUDA_SUCCESS;
}

#define BATCHES(name, in)                                                                                            \
    API CUresult cuMemcpyBatchAsync##name(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,               \
                                          void *attributes, size_t *which, size_t kinds, size_t *failed,             \
                                          CUstream stream) {                                                         \
        return (void)attributes, (void)which, (void)kinds, (void)failed, linear(to, from, bytes, n, in);             \
    }                                                                                                                \
    API CUresult cuMemcpyBatchAsync_v2##name(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n,            \
                                             void *attributes, size_t *which, size_t kinds, CUstream stream) {       \
        return (void)attributes, (void)which, (void)kinds, linear(to, from, bytes, n, in);                           \
    }                                                                                                                \
    API CUresult cuMemcpy3DBatchAsync##name(size_t n, const struct batch_op *list, size_t *failed,                   \
                                            unsigned long long flags, CUstream stream) {                             \
        return (void)failed, (void)flags, boxes(list, n, in);                                                        \
    }                                                                                                                \
    API CUresult cuMemcpy3DBatchAsync_v2##name(size_t n, const struct batch_op *list, unsigned long long flags,      \
                                               CUstream stream) {                                                    \
        return (void)flags, boxes(list, n, in);                                                                      \
    }                                                                                                                \
    API CUresult cuMemcpyWithAttributesAsync##name(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, \
                                                   CUstream stream) {                                                \
        return (void)attributes, copy_linear(to, from, bytes, in, false);                                            \
    }                                                                                                                \
    API CUresult cuMemcpy3DWithAttributesAsync##name(const struct batch_op *op, unsigned long long flags,            \
                                                     CUstream stream) {                                              \
        return (void)flags, boxes(op, 1, in);                                                                        \
    }
BATCHES(, stream)
BATCHES(_ptsz, PER_THREAD(stream))
