/* Arrays and mip-maps, charged by the size they take. The driver tells that size only for arrays without memory of
 * their own (deferred mapping), so we make such a twin, ask for its size and destroy it. For drivers without such
 * arrays we use an upper bound of the layouts of GPUs: blocks of 64 bytes by 8 rows, up to 16 high and 32 deep. */
#include "driver/real.h"
#include "memory/charge.h"

static uint64_t up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Bits of one element; a compressed block of 4 x 4 counts as 16 elements. Unknown formats count as the widest one. */
static uint64_t element_bits(int format, unsigned channels) {
    /* clang-format off */
    switch (format) {
    case 1: case 8: return 8ull * channels;
    case 2: case 9: case 16: return 16ull * channels;
    case 3: case 10: case 32: return 32ull * channels;
    case 145: case 146: case 153: case 154: return channels > 4 ? 128 : 32; /* BC1, BC4 and BC5: at most 8 bits */
    case 192: case 198: return 8;
    case 193: case 199: case 195: case 201: return 16;
    case 194: case 200: case 196: case 202: return 32;
    case 197: case 203: return 64;
    default: return channels > 4 ? 32ull * channels : 128;
    }
    /* clang-format on */
}

static uint64_t block(uint64_t n, uint64_t unit, uint64_t most) {
    uint64_t size = unit;
    while (size < n && size < unit * most)
        size *= 2;
    return up(n, size);
}

static uint64_t level_bytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t bits, bool layered) {
    uint64_t row = up(up(width * bits, 8) / 8, 64);
    uint64_t rows = height ? block(height, 8, 16) : 1;
    uint64_t slices = depth ? (layered ? depth : block(depth, 1, 32)) : 1;
    uint64_t bytes;
    if (__builtin_mul_overflow(row, rows, &bytes) || __builtin_mul_overflow(bytes, slices, &bytes))
        return UINT64_MAX / 4;
    return up(bytes, 512);
}

static bool has_memory(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    return !(d->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

#define TOO_LONG (1ull << 32) /* longer than on any GPU; keeps the products below in range */

static uint64_t upper_bound(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    bool layered = d->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t bits = element_bits(d->format, d->channels), bytes = 0, w = d->width, h = d->height, depth = d->depth;
    if (w > TOO_LONG || h > TOO_LONG || depth > TOO_LONG)
        return UINT64_MAX / 4;
    for (unsigned i = 0; i < levels && i < 32 && bytes < UINT64_MAX / 8; i++) {
        bytes += level_bytes(w, h, depth, bits, layered);
        w = w > 1 ? w / 2 : w;
        h = h > 1 ? h / 2 : h;
        depth = depth > 1 && !layered ? depth / 2 : depth;
    }
    return up(bytes, 64 << 10); /* arrays have pages of their own */
}

static CUresult make_twin(CUarray *made, CUDA_ARRAY3D_DESCRIPTOR d) {
    d.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    return REAL(cuArray3DCreate_v2)(made, &d);
}

static CUresult make_mipmap_twin(CUmipmappedArray *made, CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels) {
    d.flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    return REAL(cuMipmappedArrayCreate)(made, &d, levels);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS need = {0};
    CUarray array;
    CUdevice device;
    bool told = false;
    if (!has_memory(d))
        return 0;
    if (!REAL(cuCtxGetDevice)(&device) && !make_twin(&array, *d)) {
        told = !REAL(cuArrayGetMemoryRequirements)(&need, array, device) && need.size;
        REAL(cuArrayDestroy)(array);
    }
    return told ? need.size : upper_bound(d, 1);
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS need = {0};
    CUmipmappedArray array;
    CUdevice device;
    bool told = false;
    if (!has_memory(d))
        return 0;
    if (!REAL(cuCtxGetDevice)(&device) && !make_mipmap_twin(&array, *d, levels)) {
        told = !REAL(cuMipmappedArrayGetMemoryRequirements)(&need, array, device) && need.size;
        REAL(cuMipmappedArrayDestroy)(array);
    }
    return told ? need.size : upper_bound(d, levels);
}

/* The program's answer where a charge was refused: what the driver says of the twin, which takes no memory. If it does not
 * make any twins, it has said nothing of the array. */
static CUresult twin_refused(CUresult twin) {
    CUDA_ARRAY3D_DESCRIPTOR least = {.width = 1, .height = 1, .format = 1, .channels = 1};
    CUarray array;
    CUresult any = make_twin(&array, least);
    if (any == CUDA_SUCCESS)
        REAL(cuArrayDestroy)(array);
    return any == CUDA_ERROR_NOT_SUPPORTED ? CUDA_ERROR_OUT_OF_MEMORY : refused_for(twin, any);
}

static CUresult array_refused(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    CUarray array;
    CUresult r = make_twin(&array, *d);
    if (r == CUDA_SUCCESS)
        REAL(cuArrayDestroy)(array);
    return twin_refused(r);
}

static CUresult mipmap_refused(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    CUmipmappedArray array;
    CUresult r = make_mipmap_twin(&array, *d, levels);
    if (r == CUDA_SUCCESS)
        REAL(cuMipmappedArrayDestroy)(array);
    return twin_refused(r);
}

/* Given the driver's answer: notes the charge, and only then gives the array to the program. */
static CUresult finish_array(struct charge *c, CUresult r, const CUarray *made, CUarray *array) {
    r = finish_alloc(c, r, ARRAY, (uintptr_t)*made);
    if (r == CUDA_SUCCESS)
        *array = *made;
    return r;
}

GH_EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *given) {
    CUDA_ARRAY_DESCRIPTOR_v1 d;
    struct charge c;
    CUarray made = NULL;
    if (!given || !array)
        return REAL(cuArrayCreate)(array, given);
    copy_once(&d, given, sizeof d);
    CUDA_ARRAY3D_DESCRIPTOR same = {d.width, d.height, 0, d.format, d.channels, 0};
    CUresult r;
    CHARGE_AND_ASK(r, &c, charge(&c, array_bytes(&same)), REAL(cuArrayCreate)(&made, &d), array_refused(&same));
    return finish_array(&c, r, &made, array);
}

GH_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *given) {
    CUDA_ARRAY_DESCRIPTOR d;
    struct charge c;
    CUarray made = NULL;
    if (!given || !array)
        return REAL(cuArrayCreate_v2)(array, given);
    copy_once(&d, given, sizeof d);
    CUDA_ARRAY3D_DESCRIPTOR same = {d.width, d.height, 0, d.format, d.channels, 0};
    CUresult r;
    CHARGE_AND_ASK(r, &c, charge(&c, array_bytes(&same)), REAL(cuArrayCreate_v2)(&made, &d), array_refused(&same));
    return finish_array(&c, r, &made, array);
}

GH_EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *given) {
    CUDA_ARRAY3D_DESCRIPTOR_v1 d;
    struct charge c;
    CUarray made = NULL;
    if (!given || !array)
        return REAL(cuArray3DCreate)(array, given);
    copy_once(&d, given, sizeof d);
    CUDA_ARRAY3D_DESCRIPTOR same = {d.width, d.height, d.depth, d.format, d.channels, d.flags};
    CUresult r;
    CHARGE_AND_ASK(r, &c, charge(&c, array_bytes(&same)), REAL(cuArray3DCreate)(&made, &d), array_refused(&same));
    return finish_array(&c, r, &made, array);
}

GH_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *given) {
    CUDA_ARRAY3D_DESCRIPTOR d;
    struct charge c;
    CUarray made = NULL;
    if (!given || !array)
        return REAL(cuArray3DCreate_v2)(array, given);
    copy_once(&d, given, sizeof d);
    CUresult r;
    CHARGE_AND_ASK(r, &c, charge(&c, array_bytes(&d)), REAL(cuArray3DCreate_v2)(&made, &d), array_refused(&d));
    return finish_array(&c, r, &made, array);
}

GH_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *given,
                                          unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR d;
    struct charge c;
    CUmipmappedArray made = NULL;
    if (!given || !array)
        return REAL(cuMipmappedArrayCreate)(array, given, levels);
    copy_once(&d, given, sizeof d);
    CUresult r;
    CHARGE_AND_ASK(r, &c, charge(&c, mipmap_bytes(&d, levels)), REAL(cuMipmappedArrayCreate)(&made, &d, levels),
                   mipmap_refused(&d, levels));
    r = finish_alloc(&c, r, ARRAY, (uintptr_t)made);
    if (r == CUDA_SUCCESS)
        *array = made;
    return r;
}

GH_EXPORT CUresult cuArrayDestroy(CUarray array) {
    struct owed o = begin_free(ARRAY, (uintptr_t)array);
    return end_free(&o, REAL(cuArrayDestroy)(array));
}

GH_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct owed o = begin_free(ARRAY, (uintptr_t)array);
    return end_free(&o, REAL(cuMipmappedArrayDestroy)(array));
}
