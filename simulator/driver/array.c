/* Simulated libcuda: arrays and mip-mapped arrays. An array takes more memory than its elements: rows are padded to 64 bytes,
 * columns to 8 rows, and the whole array to 64 KiB. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>

#define ROW 64u
#define ROWS 8u
#define WHOLE 65536u
enum { LAYERED = 0x01, CUBEMAP = 0x04, SPARSE = 0x40, DEFERRED = 0x80 }; /* CUDA_ARRAY3D_... */

struct desc3d { /* CUDA_ARRAY3D_DESCRIPTOR */
    size_t width, height, depth;
    unsigned format, channels, flags;
};

struct desc { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    unsigned format, channels;
};

struct desc_v1 {
    unsigned width, height, format, channels;
};
struct desc3d_v1 {
    unsigned width, height, depth, format, channels, flags;
};

struct array {
    uint64_t magic;
    struct desc3d desc;
    struct layout layout;
    CUdeviceptr memory; /* 0: it has none of its own, as a level of a mip-mapped array */
    uint64_t size;
};

struct mipmap {
    uint64_t magic;
    CUdeviceptr memory;
    uint64_t size;
    struct desc3d desc;
    unsigned levels;
    struct array level[32];
};

#define ARRAY_MAGIC 0x6172726179212121ull
#define MIPMAP_MAGIC 0x6d69706d61702121ull

/* Bytes of one element; 0 for a format that is not simulated. */
static unsigned element(const struct desc3d *d) {
    unsigned c = d->channels == 1 || d->channels == 2 || d->channels == 4 ? d->channels : 0;
    /* clang-format off */
    switch (d->format) { /* CU_AD_FORMAT_... */
    case 0x01: case 0x08: return c;                /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 2 * c; /* 16-bit integers, half */
    case 0x03: case 0x0a: case 0x20: return 4 * c; /* 32-bit integers, float */
    case 0xc0: case 0xc6: return 1;                /* UNORM_INT8X1, SNORM_INT8X1 */
    case 0xc1: case 0xc7: case 0xc3: case 0xc9: return 2;
    case 0xc2: case 0xc8: case 0xc4: case 0xca: return 4;
    case 0xc5: case 0xcb: return 8;                /* ..._INT16X4 */
    default: return 0;
    }
    /* clang-format on */
}

static CUresult check(const struct desc3d *d) {
    if (!d->width || !element(d) || d->width > 1u << 17 || d->height > 1u << 17 || d->depth > 1u << 14)
        return CUDA_ERROR_INVALID_VALUE;
    if (d->depth && !d->height && !(d->flags & LAYERED))
        return CUDA_ERROR_INVALID_VALUE;
    if (d->flags & LAYERED && !d->depth)
        return CUDA_ERROR_INVALID_VALUE;
    if (d->flags & CUBEMAP &&
        (d->width != d->height || d->depth % 6 || !d->depth || (d->depth != 6 && !(d->flags & LAYERED))))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Sets the array's pitch and slice; returns its size in bytes. */
static uint64_t lay_out(const struct desc3d *d, struct layout *l) {
    l->pitch = round_up(d->width * element(d), ROW);
    l->slice = l->pitch * (d->height ? round_up(d->height, ROWS) : 1);
    return l->slice * (d->depth ? d->depth : 1);
}

static CUresult create(struct array **out, struct desc3d desc) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check(&desc));
    struct array *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    a->magic = ARRAY_MAGIC;
    a->desc = desc;
    a->size = round_up(lay_out(&desc, &a->layout), WHOLE);
    CUresult r = desc.flags & (SPARSE | DEFERRED) ? CUDA_SUCCESS : heap_allocate(&a->memory, ctx, a->size, DEVICE);
    if (r) {
        free(a);
        return r;
    }
    a->layout.address = a->memory;
    *out = a;
    return CUDA_SUCCESS;
}

API CUresult cuArray3DCreate_v2(struct array **out, const struct desc3d *d) {
    return d ? create(out, *d) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArrayCreate_v2(struct array **out, const struct desc *d) {
    return d ? create(out, (struct desc3d){d->width, d->height, 0, d->format, d->channels, 0})
             : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArrayCreate(struct array **out, const struct desc_v1 *d) {
    return d ? create(out, (struct desc3d){d->width, d->height, 0, d->format, d->channels, 0})
             : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuArray3DCreate(struct array **out, const struct desc3d_v1 *d) {
    return d ? create(out, (struct desc3d){d->width, d->height, d->depth, d->format, d->channels, d->flags})
             : CUDA_ERROR_INVALID_VALUE;
}

static CUresult valid(const struct array *a) {
    TRY(sim_ready());
    return a && a->magic == ARRAY_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult array_layout(struct array *a, struct layout *out) {
    TRY(valid(a));
    if (!a->layout.address)
        return CUDA_ERROR_INVALID_VALUE;
    *out = a->layout;
    return CUDA_SUCCESS;
}

size_t array_element(const struct array *a) { return element(&a->desc); }

API CUresult cuArrayDestroy(struct array *a) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(valid(a));
    TRY(sim_context_wait(ctx));
    CUresult r = heap_free(a->memory);
    holder_gone(a);
    a->magic = 0;
    free(a);
    return r ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor_v2(struct desc3d *out, struct array *a) {
    TRY(valid(a));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = a->desc;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(struct desc *out, struct array *a) {
    TRY(valid(a));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct desc){a->desc.width, a->desc.height, a->desc.format, a->desc.channels};
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor(struct desc3d_v1 *out, struct array *a) {
    TRY(valid(a));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct desc3d_v1){(unsigned)a->desc.width, (unsigned)a->desc.height, (unsigned)a->desc.depth,
                              a->desc.format,          a->desc.channels,         a->desc.flags};
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor(struct desc_v1 *out, struct array *a) {
    TRY(valid(a));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct desc_v1){(unsigned)a->desc.width, (unsigned)a->desc.height, a->desc.format, a->desc.channels};
    return CUDA_SUCCESS;
}

/* No format here has several planes. */
API CUresult cuArrayGetPlane(struct array **out, struct array *a, unsigned plane) {
    (void)plane;
    TRY(valid(a));
    return (void)out, CUDA_ERROR_INVALID_VALUE;
}

bool array_is_sparse(const void *array) {
    const struct array *a = array;
    const struct mipmap *m = array;
    return a && ((a->magic == ARRAY_MAGIC && a->desc.flags & SPARSE) ||
                 (m->magic == MIPMAP_MAGIC && m->desc.flags & SPARSE));
}

struct requirements { /* CUDA_ARRAY_MEMORY_REQUIREMENTS */
    size_t size, alignment;
    unsigned reserved[4];
};

API CUresult cuArrayGetMemoryRequirements(struct requirements *out, struct array *a, CUdevice dev) {
    TRY(sim_device(dev));
    TRY(valid(a));
    if (!out || !(a->desc.flags & DEFERRED))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct requirements){a->size, WHOLE, {0}};
    return CUDA_SUCCESS;
}

/* --- mip-maps: each level is half as wide, high and deep as the one before; the number of layers stays --- */

API CUresult cuMipmappedArrayCreate(struct mipmap **out, const struct desc3d *desc, unsigned levels) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    if (!out || !desc || !levels)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check(desc));
    struct mipmap *m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->magic = MIPMAP_MAGIC;
    m->desc = *desc;
    struct desc3d d = *desc;
    uint64_t offset[32];
    bool volume = !(d.flags & (LAYERED | CUBEMAP));
    while (m->levels < levels && m->levels < 32) {
        struct array *a = &m->level[m->levels];
        *a = (struct array){.magic = ARRAY_MAGIC, .desc = d};
        offset[m->levels++] = m->size;
        m->size += round_up(lay_out(&d, &a->layout), GRAIN);
        if (d.width == 1 && d.height <= 1 && (!volume || d.depth <= 1))
            break;
        d.width = d.width > 1 ? d.width / 2 : 1;
        d.height = d.height > 1 ? d.height / 2 : d.height;
        if (volume)
            d.depth = d.depth > 1 ? d.depth / 2 : d.depth;
    }
    m->size = round_up(m->size, WHOLE);
    CUresult r = d.flags & (SPARSE | DEFERRED) ? CUDA_SUCCESS : heap_allocate(&m->memory, ctx, m->size, DEVICE);
    if (r) {
        free(m);
        return r;
    }
    for (unsigned i = 0; m->memory && i < m->levels; i++)
        m->level[i].layout.address = m->memory + offset[i];
    *out = m;
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetLevel(struct array **out, struct mipmap *m, unsigned level) {
    TRY(sim_ready());
    if (!m || m->magic != MIPMAP_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || level >= m->levels)
        return CUDA_ERROR_INVALID_VALUE;
    *out = &m->level[level];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(struct requirements *out, struct mipmap *m, CUdevice dev) {
    TRY(sim_device(dev));
    if (!m || m->magic != MIPMAP_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!out || !(m->desc.flags & DEFERRED))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct requirements){m->size, WHOLE, {0}};
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(struct mipmap *m) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!m || m->magic != MIPMAP_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(sim_context_wait(ctx));
    CUresult r = heap_free(m->memory);
    holder_gone(m);
    m->magic = 0;
    free(m);
    return r ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

/* --- sparse arrays: tiles of 64 KiB, and one tail for the levels that are smaller than a tile --- */

struct sparse { /* CUDA_ARRAY_SPARSE_PROPERTIES */
    unsigned tile[3], tail_level;
    unsigned long long tail_bytes;
    unsigned flags, reserved[4];
};
_Static_assert(sizeof(struct sparse) == 48, "CUDA_ARRAY_SPARSE_PROPERTIES");

static CUresult sparse(struct sparse *out, const struct desc3d *d, unsigned levels) {
    if (!out || !(d->flags & SPARSE))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned bytes = element(d), rows = 256;
    while ((uint64_t)rows * rows * bytes > WHOLE)
        rows /= 2;
    *out = (struct sparse){.tile = {WHOLE / rows / bytes, rows, 1}, .tail_level = levels, .tail_bytes = 0};
    for (unsigned i = 0; i < levels; i++)
        if (d->width >> i < out->tile[0] || d->height >> i < rows) {
            out->tail_level = i;
            out->tail_bytes = WHOLE;
            break;
        }
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetSparseProperties(struct sparse *out, struct array *a) {
    TRY(valid(a));
    return sparse(out, &a->desc, 1);
}

API CUresult cuMipmappedArrayGetSparseProperties(struct sparse *out, struct mipmap *m) {
    TRY(sim_ready());
    if (!m || m->magic != MIPMAP_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return sparse(out, &m->desc, m->levels);
}
