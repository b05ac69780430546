/* Simulated libcuda: texture references, the way before texture objects. Drivers still have these functions; a module
 * here declares no references, so a program gets one by cuTexRefCreate only. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>

#define REFERENCE_MAGIC 0x7465787265662121ull

struct reference { /* CUtexref */
    uint64_t magic;
    void *array, *mipmap;
    CUdeviceptr address;
    int address_mode[3], filter, mipmap_filter, format, channels, anisotropy;
    float bias, low, high, border[4];
    unsigned flags;
};

struct desc { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    unsigned format, channels;
};

static CUresult valid(const struct reference *t) {
    TRY(sim_ready());
    return t && t->magic == REFERENCE_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTexRefCreate(struct reference **out) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    struct reference *t = out ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    t->magic = REFERENCE_MAGIC;
    t->channels = 1;
    *out = t;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefDestroy(struct reference *t) {
    TRY(valid(t));
    t->magic = 0;
    free(t);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetTexRef(struct reference **out, CUmodule m, const char *name) {
    TRY(sim_ready());
    return !out || !m || !name ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetSurfRef(void **out, CUmodule m, const char *name) {
    TRY(sim_ready());
    return !out || !m || !name ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

/* No module has a surface reference, so none is ever valid. */
API CUresult cuSurfRefSetArray(void *surface, void *array, unsigned flags) {
    (void)surface, (void)array, (void)flags;
    TRY(sim_ready());
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuSurfRefGetArray(void **array, void *surface) {
    (void)array, (void)surface;
    TRY(sim_ready());
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult bind(struct reference *t, CUdeviceptr address, size_t bytes, size_t *offset) {
    struct piece p;
    TRY(valid(t));
    if (address && (!heap_holding(address, &p) || bytes > p.size - (address - p.address)))
        return CUDA_ERROR_INVALID_VALUE;
    t->address = address - address % 512; /* aligned as textures must be; the program adds the rest itself */
    t->array = NULL;
    if (offset)
        *offset = address % 512;
    return offset || address % 512 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTexRefSetAddress_v2(size_t *offset, struct reference *t, CUdeviceptr address, size_t bytes) {
    return bind(t, address, bytes, offset);
}

API CUresult cuTexRefSetAddress2D_v3(struct reference *t, const struct desc *d, CUdeviceptr address, size_t pitch) {
    return d && pitch ? bind(t, address, pitch * d->height, NULL) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTexRefSetAddress2D_v2(struct reference *t, const struct desc *d, CUdeviceptr address, size_t pitch) {
    return cuTexRefSetAddress2D_v3(t, d, address, pitch);
}

/* The API before CUDA 3.2 has 32-bit addresses. */
API CUresult cuTexRefSetAddress(unsigned *offset, struct reference *t, unsigned address, unsigned bytes) {
    (void)offset, (void)t, (void)address, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuTexRefSetAddress2D(struct reference *t, const void *d, unsigned address, unsigned pitch) {
    (void)t, (void)d, (void)address, (void)pitch;
    return CUDA_ERROR_NOT_SUPPORTED;
}
API CUresult cuTexRefGetAddress(unsigned *address, struct reference *t) {
    (void)address, (void)t;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API CUresult cuTexRefSetArray(struct reference *t, struct array *array, unsigned flags) {
    TRY(valid(t));
    if (flags != 1 || !array_alive(array)) /* CU_TRSA_OVERRIDE_FORMAT */
        return CUDA_ERROR_INVALID_VALUE;
    t->array = array;
    t->address = 0;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetMipmappedArray(struct reference *t, void *mipmap, unsigned flags) {
    TRY(valid(t));
    if (flags != 1 || !mipmap)
        return CUDA_ERROR_INVALID_VALUE;
    t->mipmap = mipmap;
    return CUDA_SUCCESS;
}

#define GET(name, type, value, there)                   \
    API CUresult name(type *out, struct reference *t) { \
        TRY(valid(t));                                  \
        if (!out || !(there))                           \
            return CUDA_ERROR_INVALID_VALUE;            \
        *out = value;                                   \
        return CUDA_SUCCESS;                            \
    }
#define SET(name, type, field, allowed)                  \
    API CUresult name(struct reference *t, type value) { \
        TRY(valid(t));                                   \
        if (!(allowed))                                  \
            return CUDA_ERROR_INVALID_VALUE;             \
        t->field = value;                                \
        return CUDA_SUCCESS;                             \
    }
GET(cuTexRefGetAddress_v2, CUdeviceptr, t->address, t->address)
GET(cuTexRefGetArray, void *, t->array, t->array)
GET(cuTexRefGetMipmappedArray, void *, t->mipmap, t->mipmap)
GET(cuTexRefGetFilterMode, int, t->filter, true)
GET(cuTexRefGetMipmapFilterMode, int, t->mipmap_filter, true)
GET(cuTexRefGetMipmapLevelBias, float, t->bias, true)
GET(cuTexRefGetMaxAnisotropy, int, t->anisotropy, true)
GET(cuTexRefGetFlags, unsigned, t->flags, true)
SET(cuTexRefSetFilterMode, int, filter, value == 0 || value == 1)
SET(cuTexRefSetMipmapFilterMode, int, mipmap_filter, value == 0 || value == 1)
SET(cuTexRefSetMipmapLevelBias, float, bias, true)
SET(cuTexRefSetMaxAnisotropy, unsigned, anisotropy, value <= 16)
SET(cuTexRefSetFlags, unsigned, flags, value < 64)

API CUresult cuTexRefGetAddressMode(int *out, struct reference *t, int dimension) {
    TRY(valid(t));
    if (!out || dimension < 0 || dimension > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *out = t->address_mode[dimension];
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetAddressMode(struct reference *t, int dimension, int mode) {
    TRY(valid(t));
    if (dimension < 0 || dimension > 2 || mode < 0 || mode > 3)
        return CUDA_ERROR_INVALID_VALUE;
    t->address_mode[dimension] = mode;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetFormat(int *format, int *channels, struct reference *t) {
    TRY(valid(t));
    if (!format || !channels)
        return CUDA_ERROR_INVALID_VALUE;
    *format = t->format;
    *channels = t->channels;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetFormat(struct reference *t, int format, int channels) {
    TRY(valid(t));
    if (channels < 1 || channels > 4)
        return CUDA_ERROR_INVALID_VALUE;
    t->format = format;
    t->channels = channels;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetMipmapLevelClamp(float *low, float *high, struct reference *t) {
    TRY(valid(t));
    if (!low || !high)
        return CUDA_ERROR_INVALID_VALUE;
    *low = t->low;
    *high = t->high;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetMipmapLevelClamp(struct reference *t, float low, float high) {
    TRY(valid(t));
    t->low = low;
    t->high = high;
    return CUDA_SUCCESS;
}

API CUresult cuTexRefGetBorderColor(float *out, struct reference *t) {
    TRY(valid(t));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        out[i] = t->border[i];
    return CUDA_SUCCESS;
}

API CUresult cuTexRefSetBorderColor(struct reference *t, const float *color) {
    TRY(valid(t));
    if (!color)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        t->border[i] = color[i];
    return CUDA_SUCCESS;
}
