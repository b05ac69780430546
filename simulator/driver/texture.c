/* Simulated libcuda: texture and surface objects, and the texture and surface references before CUDA 12. They take no
 * memory of the GPU; what a program describes is checked and kept, and no kernel ever reads by it. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>

enum { ARRAY = 0, MIPMAP = 1, LINEAR = 2, PITCH2D = 3 }; /* CU_RESOURCE_TYPE_... */
enum { ALIGNMENT = 512 };                                /* CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT */

struct resource { /* CUDA_RESOURCE_DESC */
    int type;
    union {
        void *array;
        struct {
            CUdeviceptr address;
            unsigned format, channels;
            size_t bytes;
        } linear;
        struct {
            CUdeviceptr address;
            unsigned format, channels;
            size_t width, height, pitch;
        } pitch2d;
        int room[32];
    };
    unsigned flags;
};
_Static_assert(sizeof(struct resource) == 144, "CUDA_RESOURCE_DESC");

struct texture { /* CUDA_TEXTURE_DESC */
    int address[3], filter;
    unsigned flags, anisotropy;
    int mipmap_filter;
    float bias, low, high, border[4];
    int reserved[12];
};
_Static_assert(sizeof(struct texture) == 104, "CUDA_TEXTURE_DESC");

struct view { /* CUDA_RESOURCE_VIEW_DESC */
    int format;
    size_t width, height, depth;
    unsigned levels[2], layers[2], reserved[16];
};
_Static_assert(sizeof(struct view) == 112, "CUDA_RESOURCE_VIEW_DESC");

struct object {
    bool surface, has_view;
    struct resource resource;
    struct texture texture;
    struct view view;
    struct object *next;
};

/* The programs' numbers are addresses of these, and any number may be asked for: so there is a list. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;

static bool whole(CUdeviceptr address, size_t bytes) {
    struct piece p;
    return heap_holding(address, &p) && bytes <= p.size - (address - p.address);
}

static CUresult check(const struct resource *r, bool surface) {
    if (!r || r->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (r->type) {
    case ARRAY: return r->array && array_alive(r->array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case MIPMAP: return r->array && !surface ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case LINEAR:
        return !surface && r->linear.address % ALIGNMENT == 0 && r->linear.bytes &&
                       whole(r->linear.address, r->linear.bytes)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    case PITCH2D:
        return !surface && r->pitch2d.address % ALIGNMENT == 0 && r->pitch2d.width && r->pitch2d.height &&
                       r->pitch2d.pitch % 32 == 0 && whole(r->pitch2d.address, r->pitch2d.pitch * r->pitch2d.height)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult create(uint64_t *out, const struct object *like) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check(&like->resource, like->surface));
    struct object *o = malloc(sizeof *o);
    if (!o)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *o = *like;
    pthread_mutex_lock(&mutex);
    o->next = objects;
    objects = o;
    pthread_mutex_unlock(&mutex);
    *out = (uint64_t)(uintptr_t)o;
    return CUDA_SUCCESS;
}

/* A copy of the object. */
static CUresult find(uint64_t value, bool surface, struct object *out) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    const struct object *o = objects;
    while (o && ((uint64_t)(uintptr_t)o != value || o->surface != surface))
        o = o->next;
    if (o)
        *out = *o;
    pthread_mutex_unlock(&mutex);
    return o ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult destroy(uint64_t value, bool surface) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct object **p = &objects, *o;
    while (*p && ((uint64_t)(uintptr_t)*p != value || (*p)->surface != surface))
        p = &(*p)->next;
    if ((o = *p))
        *p = o->next;
    pthread_mutex_unlock(&mutex);
    free(o);
    return o ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTexObjectCreate(uint64_t *out, const struct resource *r, const struct texture *t, const struct view *v) {
    if (!r || !t)
        return CUDA_ERROR_INVALID_VALUE;
    if (v && (r->type == LINEAR || r->type == PITCH2D))
        return CUDA_ERROR_INVALID_VALUE;
    struct object o = {.resource = *r, .texture = *t, .has_view = v};
    if (v)
        o.view = *v;
    return create(out, &o);
}

API CUresult cuSurfObjectCreate(uint64_t *out, const struct resource *r) {
    if (!r)
        return CUDA_ERROR_INVALID_VALUE;
    return create(out, &(struct object){.surface = true, .resource = *r});
}

API CUresult cuTexObjectDestroy(uint64_t object) { return destroy(object, false); }
API CUresult cuSurfObjectDestroy(uint64_t object) { return destroy(object, true); }

static CUresult get_resource(struct resource *out, uint64_t object, bool surface) {
    struct object o;
    TRY(find(object, surface, &o));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = o.resource;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetResourceDesc(struct resource *out, uint64_t object) {
    return get_resource(out, object, false);
}
API CUresult cuSurfObjectGetResourceDesc(struct resource *out, uint64_t object) {
    return get_resource(out, object, true);
}

API CUresult cuTexObjectGetTextureDesc(struct texture *out, uint64_t object) {
    struct object o;
    TRY(find(object, false, &o));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = o.texture;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetResourceViewDesc(struct view *out, uint64_t object) {
    struct object o;
    TRY(find(object, false, &o));
    if (!out || !o.has_view)
        return CUDA_ERROR_INVALID_VALUE;
    *out = o.view;
    return CUDA_SUCCESS;
}
