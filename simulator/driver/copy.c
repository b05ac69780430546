/* Simulated libcuda: copies and fills. They take GPU time in the order of their stream. Kernels here touch no
 * memory, so the bytes are moved at the call; a synchronous copy moves them after its turn on the GPU. */
#define _GNU_SOURCE
#include "heap.h"

#include <string.h>

/* A copy within the GPU uses the bandwidth twice: it reads and writes. */
static CUresult busy(struct stream *s, uint32_t kind, unsigned rate, uint64_t bytes) {
    const struct gpu_head *h = &sim_gpu_of(s->ctx)->file->head;
    uint64_t ns = bytes && h->copy_rate[rate]
                      ? bytes / h->copy_rate[rate] * 1000 + bytes % h->copy_rate[rate] * 1000 / h->copy_rate[rate]
                      : 0;
    if (!bytes)
        return CUDA_SUCCESS;
    return channel_submit(s, (struct gpu_work){.kind = kind, .duration_ns = ns, .width = h->sm_count}, NULL, NULL);
}

static bool within_gpu(uint64_t to, uint64_t from) {
    struct piece p;
    return heap_holding(to, &p) && heap_holding(from, &p);
}

CUresult copy_time(struct stream *s, uint64_t to, uint64_t from, uint64_t bytes) {
    struct piece p;
    bool to_gpu = heap_holding(to, &p), from_gpu = heap_holding(from, &p);
    if (to_gpu && from_gpu)
        return busy(s, WORK_KERNEL, 2, bytes);
    if (!to_gpu && !from_gpu)
        return CUDA_SUCCESS;
    return to_gpu ? busy(s, WORK_TO, 0, bytes) : busy(s, WORK_FROM, 1, bytes);
}

CUresult fill_time(struct stream *s, uint64_t bytes) { return busy(s, WORK_KERNEL, 2, bytes); }

CUresult copy_linear(uint64_t to, uint64_t from, size_t bytes, CUstream stream, bool wait) {
    struct stream *s;
    TRY(sim_stream(stream, &s));
    if (bytes && (!to || !from))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r;
    if (capture_copy(s, to, from, bytes, &r))
        return r;
    TRY(copy_time(s, to, from, bytes));
    if (wait && !within_gpu(to, from)) /* the host does not wait for a copy that touches no host memory */
        TRY(sim_stream_wait(s));
    memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

void fill_row(uint64_t to, uint32_t value, size_t width, size_t n) {
    if (width == 1)
        memset((void *)(uintptr_t)to, (int)value, n);
    else if (width == 2)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)(uintptr_t)to)[i] = (uint16_t)value;
    else
        for (size_t i = 0; i < n; i++)
            ((uint32_t *)(uintptr_t)to)[i] = value;
}

static CUresult fill(uint64_t to, size_t pitch, uint32_t value, size_t width, size_t n, size_t rows, CUstream stream) {
    struct stream *s;
    TRY(sim_stream(stream, &s));
    if (n && rows && (!to || to % width || (rows > 1 && pitch < n * width)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r;
    if (capture_fill(s, &(struct fill){to, pitch, width, n, rows, value}, &r))
        return r;
    TRY(fill_time(s, rows * n * width));
    for (size_t row = 0; row < rows; row++)
        fill_row(to + row * pitch, value, width, n);
    return CUDA_SUCCESS;
}

#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))
#define SYNC(name, to_type, from_type, stream)                               \
    API CUresult name(to_type to, from_type from, size_t bytes) {            \
        return copy_linear(ADDRESS(to), ADDRESS(from), bytes, stream, true); \
    }
#define ASYNC_COPY(name, to_type, from_type, in)                                   \
    API CUresult name(to_type to, from_type from, size_t bytes, CUstream stream) { \
        return copy_linear(ADDRESS(to), ADDRESS(from), bytes, in, false);          \
    }
#define PEER(name, stream)                                                                       \
    API CUresult name(CUdeviceptr to, void *there, CUdeviceptr from, void *here, size_t bytes) { \
        return (void)there, (void)here, copy_linear(to, from, bytes, stream, true);              \
    }
#define ASYNC_PEER(name, in)                                                                                      \
    API CUresult name(CUdeviceptr to, void *there, CUdeviceptr from, void *here, size_t bytes, CUstream stream) { \
        return (void)there, (void)here, copy_linear(to, from, bytes, in, false);                                  \
    }
#define FILL(name, type, width, stream) \
    API CUresult name(CUdeviceptr to, type value, size_t n) { return fill(to, 0, value, width, n, 1, stream); }
#define ASYNC_FILL(name, type, width, in)                                      \
    API CUresult name(CUdeviceptr to, type value, size_t n, CUstream stream) { \
        return fill(to, 0, value, width, n, 1, in);                            \
    }

SYNC(cuMemcpy, CUdeviceptr, CUdeviceptr, NULL)
SYNC(cuMemcpy_ptds, CUdeviceptr, CUdeviceptr, PER_THREAD(NULL))
SYNC(cuMemcpyHtoD_v2, CUdeviceptr, const void *, NULL)
SYNC(cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *, PER_THREAD(NULL))
SYNC(cuMemcpyDtoH_v2, void *, CUdeviceptr, NULL)
SYNC(cuMemcpyDtoH_v2_ptds, void *, CUdeviceptr, PER_THREAD(NULL))
SYNC(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, NULL)
SYNC(cuMemcpyDtoD_v2_ptds, CUdeviceptr, CUdeviceptr, PER_THREAD(NULL))
PEER(cuMemcpyPeer, NULL)
PEER(cuMemcpyPeer_ptds, PER_THREAD(NULL))
ASYNC_PEER(cuMemcpyPeerAsync, stream)
ASYNC_PEER(cuMemcpyPeerAsync_ptsz, PER_THREAD(stream))
ASYNC_COPY(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, stream)
ASYNC_COPY(cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, PER_THREAD(stream))
ASYNC_COPY(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, stream)
ASYNC_COPY(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *, PER_THREAD(stream))
ASYNC_COPY(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, stream)
ASYNC_COPY(cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr, PER_THREAD(stream))
ASYNC_COPY(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, stream)
ASYNC_COPY(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, CUdeviceptr, PER_THREAD(stream))
FILL(cuMemsetD8_v2, unsigned char, 1, NULL)
FILL(cuMemsetD8_v2_ptds, unsigned char, 1, PER_THREAD(NULL))
FILL(cuMemsetD16_v2, unsigned short, 2, NULL)
FILL(cuMemsetD16_v2_ptds, unsigned short, 2, PER_THREAD(NULL))
FILL(cuMemsetD32_v2, unsigned, 4, NULL)
FILL(cuMemsetD32_v2_ptds, unsigned, 4, PER_THREAD(NULL))
ASYNC_FILL(cuMemsetD8Async, unsigned char, 1, stream)
ASYNC_FILL(cuMemsetD8Async_ptsz, unsigned char, 1, PER_THREAD(stream))
ASYNC_FILL(cuMemsetD16Async, unsigned short, 2, stream)
ASYNC_FILL(cuMemsetD16Async_ptsz, unsigned short, 2, PER_THREAD(stream))
ASYNC_FILL(cuMemsetD32Async, unsigned, 4, stream)
ASYNC_FILL(cuMemsetD32Async_ptsz, unsigned, 4, PER_THREAD(stream))

#define FILL2D(name, type, width, stream)                                                \
    API CUresult name(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows) { \
        return fill(to, pitch, value, width, n, rows, stream);                           \
    }
#define ASYNC_FILL2D(name, type, width, in)                                                               \
    API CUresult name(CUdeviceptr to, size_t pitch, type value, size_t n, size_t rows, CUstream stream) { \
        return fill(to, pitch, value, width, n, rows, in);                                                \
    }
FILL2D(cuMemsetD2D8_v2, unsigned char, 1, NULL)
FILL2D(cuMemsetD2D8_v2_ptds, unsigned char, 1, PER_THREAD(NULL))
FILL2D(cuMemsetD2D16_v2, unsigned short, 2, NULL)
FILL2D(cuMemsetD2D16_v2_ptds, unsigned short, 2, PER_THREAD(NULL))
FILL2D(cuMemsetD2D32_v2, unsigned, 4, NULL)
FILL2D(cuMemsetD2D32_v2_ptds, unsigned, 4, PER_THREAD(NULL))
ASYNC_FILL2D(cuMemsetD2D8Async, unsigned char, 1, stream)
ASYNC_FILL2D(cuMemsetD2D8Async_ptsz, unsigned char, 1, PER_THREAD(stream))
ASYNC_FILL2D(cuMemsetD2D16Async, unsigned short, 2, stream)
ASYNC_FILL2D(cuMemsetD2D16Async_ptsz, unsigned short, 2, PER_THREAD(stream))
ASYNC_FILL2D(cuMemsetD2D32Async, unsigned, 4, stream)
ASYNC_FILL2D(cuMemsetD2D32Async_ptsz, unsigned, 4, PER_THREAD(stream))

/* --- copies of boxes: between host memory, device memory with a pitch, and arrays --- */

struct copy2d { /* CUDA_MEMCPY2D */
    struct {
        size_t x, y;
        unsigned type;
        void *host;
        CUdeviceptr device;
        struct array *array;
        size_t pitch;
    } from, to;
    size_t width, height;
};

static CUresult corner(const struct box *b, size_t width, size_t height, uint64_t *at, size_t *pitch, size_t *slice) {
    struct layout l = {0};
    switch (b->type) {
    case 1: l.address = (uint64_t)(uintptr_t)b->host; break;
    case 2:
    case 4: l.address = b->device; break;
    case 3: TRY(array_layout(b->array, &l)); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (b->type != 3) {
        l.pitch = b->pitch ? b->pitch : b->x + width;
        l.slice = l.pitch * (b->height ? b->height : b->y + height);
    }
    if (!l.address || l.pitch < width)
        return CUDA_ERROR_INVALID_VALUE;
    *at = l.address + b->z * l.slice + b->y * l.pitch + b->x;
    *pitch = l.pitch;
    *slice = l.slice;
    return CUDA_SUCCESS;
}

CUresult copy_box_in(const struct copy3d *c, struct stream *s) {
    uint64_t to, from;
    size_t to_pitch, to_slice, from_pitch, from_slice;
    TRY(corner(&c->to, c->width, c->height, &to, &to_pitch, &to_slice));
    TRY(corner(&c->from, c->width, c->height, &from, &from_pitch, &from_slice));
    TRY(copy_time(s, to, from, c->width * c->height * c->depth));
    for (size_t z = 0; z < c->depth; z++)
        for (size_t y = 0; y < c->height; y++)
            memmove((void *)(uintptr_t)(to + z * to_slice + y * to_pitch),
                    (void *)(uintptr_t)(from + z * from_slice + y * from_pitch), c->width);
    return CUDA_SUCCESS;
}

CUresult copy_box(const struct copy3d *c, CUstream stream, bool wait) {
    struct stream *s;
    TRY(sim_stream(stream, &s));
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r;
    if (capture_box(s, c, &r))
        return r;
    TRY(copy_box_in(c, s));
    return wait ? sim_stream_wait(s) : CUDA_SUCCESS;
}

static CUresult flat(const struct copy2d *c, CUstream stream, bool wait) {
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    struct copy3d d = {
        .from = {.x = c->from.x,
                 .y = c->from.y,
                 .type = c->from.type,
                 .host = c->from.host,
                 .device = c->from.device,
                 .array = c->from.array,
                 .pitch = c->from.pitch},
        .to = {.x = c->to.x,
               .y = c->to.y,
               .type = c->to.type,
               .host = c->to.host,
               .device = c->to.device,
               .array = c->to.array,
               .pitch = c->to.pitch},
        .width = c->width,
        .height = c->height,
        .depth = 1,
    };
    return copy_box(&d, stream, wait);
}

API CUresult cuMemcpy2D_v2(const struct copy2d *c) { return flat(c, NULL, true); }
API CUresult cuMemcpy2D_v2_ptds(const struct copy2d *c) { return flat(c, PER_THREAD(NULL), true); }
API CUresult cuMemcpy2DUnaligned_v2(const struct copy2d *c) { return flat(c, NULL, true); }
API CUresult cuMemcpy2DUnaligned_v2_ptds(const struct copy2d *c) { return flat(c, PER_THREAD(NULL), true); }
API CUresult cuMemcpy2DAsync_v2(const struct copy2d *c, CUstream s) { return flat(c, s, false); }
API CUresult cuMemcpy2DAsync_v2_ptsz(const struct copy2d *c, CUstream s) { return flat(c, PER_THREAD(s), false); }
API CUresult cuMemcpy3D_v2(const struct copy3d *c) { return copy_box(c, NULL, true); }
API CUresult cuMemcpy3D_v2_ptds(const struct copy3d *c) { return copy_box(c, PER_THREAD(NULL), true); }
API CUresult cuMemcpy3DPeer(const struct copy3d *c) { return copy_box(c, NULL, true); }
API CUresult cuMemcpy3DPeer_ptds(const struct copy3d *c) { return copy_box(c, PER_THREAD(NULL), true); }
API CUresult cuMemcpy3DPeerAsync(const struct copy3d *c, CUstream s) { return copy_box(c, s, false); }
API CUresult cuMemcpy3DPeerAsync_ptsz(const struct copy3d *c, CUstream s) { return copy_box(c, PER_THREAD(s), false); }
API CUresult cuMemcpy3DAsync_v2(const struct copy3d *c, CUstream s) { return copy_box(c, s, false); }
API CUresult cuMemcpy3DAsync_v2_ptsz(const struct copy3d *c, CUstream s) { return copy_box(c, PER_THREAD(s), false); }

/* Copies between linear memory and an array of one row; offset in bytes. */
static CUresult array_row(struct array *array, size_t offset, size_t bytes, uint64_t *at) {
    struct layout l;
    TRY(array_layout(array, &l));
    if (offset > l.pitch || bytes > l.pitch - offset)
        return CUDA_ERROR_INVALID_VALUE;
    *at = l.address + offset;
    return CUDA_SUCCESS;
}

#define TO_ARRAY(name, from_type, stream)                                              \
    API CUresult name(struct array *to, size_t offset, from_type from, size_t bytes) { \
        uint64_t at;                                                                   \
        TRY(array_row(to, offset, bytes, &at));                                        \
        return copy_linear(at, ADDRESS(from), bytes, stream, true);                    \
    }
#define FROM_ARRAY(name, to_type, stream)                                            \
    API CUresult name(to_type to, struct array *from, size_t offset, size_t bytes) { \
        uint64_t at;                                                                 \
        TRY(array_row(from, offset, bytes, &at));                                    \
        return copy_linear(ADDRESS(to), at, bytes, stream, true);                    \
    }
TO_ARRAY(cuMemcpyHtoA_v2, const void *, NULL)
TO_ARRAY(cuMemcpyHtoA_v2_ptds, const void *, PER_THREAD(NULL))
TO_ARRAY(cuMemcpyDtoA_v2, CUdeviceptr, NULL)
TO_ARRAY(cuMemcpyDtoA_v2_ptds, CUdeviceptr, PER_THREAD(NULL))
FROM_ARRAY(cuMemcpyAtoH_v2, void *, NULL)
FROM_ARRAY(cuMemcpyAtoH_v2_ptds, void *, PER_THREAD(NULL))
FROM_ARRAY(cuMemcpyAtoD_v2, CUdeviceptr, NULL)
FROM_ARRAY(cuMemcpyAtoD_v2_ptds, CUdeviceptr, PER_THREAD(NULL))

#define TO_ARRAY_LATER(name, in)                                                                          \
    API CUresult name(struct array *to, size_t offset, const void *from, size_t bytes, CUstream stream) { \
        uint64_t at;                                                                                      \
        TRY(array_row(to, offset, bytes, &at));                                                           \
        return copy_linear(at, ADDRESS(from), bytes, in, false);                                          \
    }
#define FROM_ARRAY_LATER(name, in)                                                                  \
    API CUresult name(void *to, struct array *from, size_t offset, size_t bytes, CUstream stream) { \
        uint64_t at;                                                                                \
        TRY(array_row(from, offset, bytes, &at));                                                   \
        return copy_linear(ADDRESS(to), at, bytes, in, false);                                      \
    }
TO_ARRAY_LATER(cuMemcpyHtoAAsync_v2, stream)
TO_ARRAY_LATER(cuMemcpyHtoAAsync_v2_ptsz, PER_THREAD(stream))
FROM_ARRAY_LATER(cuMemcpyAtoHAsync_v2, stream)
FROM_ARRAY_LATER(cuMemcpyAtoHAsync_v2_ptsz, PER_THREAD(stream))

#define BETWEEN_ARRAYS(name, stream)                                                                         \
    API CUresult name(struct array *to, size_t to_offset, struct array *from, size_t offset, size_t bytes) { \
        uint64_t at, source;                                                                                 \
        TRY(array_row(to, to_offset, bytes, &at));                                                           \
        TRY(array_row(from, offset, bytes, &source));                                                        \
        return copy_linear(at, source, bytes, stream, true);                                                 \
    }
BETWEEN_ARRAYS(cuMemcpyAtoA_v2, NULL)
BETWEEN_ARRAYS(cuMemcpyAtoA_v2_ptds, PER_THREAD(NULL))
