/* Virtual memory management. A piece of memory exists as long as a handle or a mapping of it, so it is charged from
 * cuMemCreate until the last of these is gone. A piece that was exported, mapped into a sparse array or bound to a
 * multicast object may exist for longer without our knowledge, so it stays charged until the process ends. */
#include <stdlib.h>
#include <string.h>

#include "driver/real.h"
#include "memory/charge.h"

struct piece {
    uint64_t units;
    unsigned gpu;
    unsigned handles, maps; /* how many of each exist */
    bool permanent;         /* charged until the process ends */
};

struct handle_uses { /* how often the driver has returned a handle value */
    struct piece *piece;
    unsigned times;
};

struct mapping {
    uint64_t at, size, made;
    struct piece *piece;
};

struct vmm {
    struct gh_lock lock;
    uint64_t clock; /* numbers mappings, to tell those made during an unmapping */
    struct mapping *map;
    size_t count, room;
};

static struct vmm *vmm(struct gh_state *st) {
    struct vmm *v = atomic_load_explicit(&st->vmm, memory_order_acquire), *none = NULL;
    if (v || !(v = calloc(1, sizeof *v)))
        return v;
    if (atomic_compare_exchange_strong(&st->vmm, &none, v))
        return v;
    free(v);
    return none;
}

/* With the lock held. */
static void drop_if_free(struct gh_state *st, struct piece *p) {
    if (p->handles || p->maps || p->permanent)
        return;
    gh_release(st, p->gpu, p->units);
    free(p);
}

static struct handle_uses *uses_of(struct gh_state *st, CUmemHandle handle) {
    return (struct handle_uses *)(uintptr_t)gh_pointers_get(&st->pointers, key_of(HANDLE, handle));
}

/* With the lock held: the driver has returned this handle value for the piece once more. */
static bool add_use(struct gh_state *st, CUmemHandle handle, struct piece *p) {
    struct handle_uses *h = uses_of(st, handle);
    if (h && h->piece == p) {
        h->times++;
    } else {
        if (!(h = malloc(sizeof *h)))
            return false;
        *h = (struct handle_uses){p, 1};
        if (!gh_pointers_put(&st->pointers, key_of(HANDLE, handle), (uintptr_t)h)) {
            free(h);
            return false;
        }
    }
    p->handles++;
    return true;
}

GH_EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *prop, uint64_t flags) {
    struct gh_state *st = gh_here();
    struct charge c;
    if (prop && on_host(&prop->location))
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    struct vmm *v = st ? vmm(st) : NULL;
    if (!v)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = charge_at(&c, st, (struct place){prop ? gpu_of_device(st, prop->location.id) : NO_CONTEXT, 0}, bytes);
    if (r)
        return r;
    r = REAL(cuMemCreate)(handle, bytes, prop, flags);
    struct piece *p = r ? NULL : malloc(sizeof *p);
    if (!p || c.at.gpu < 0) { /* without memory for the note, it stays charged until the process ends */
        if (r)
            uncharge(&c);
        free(p);
        return r;
    }
    *p = (struct piece){.units = c.units, .gpu = (unsigned)c.at.gpu};
    if (gh_lock(&v->lock)) {
        if (!add_use(st, *handle, p))
            free(p);
        gh_unlock(&v->lock);
    }
    return r;
}

GH_EXPORT CUresult cuMemRelease(CUmemHandle handle) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
    struct piece *p = NULL;
    /* before the driver can give the value to another piece */
    if (v && gh_lock(&v->lock)) {
        struct handle_uses *h = uses_of(st, handle);
        if (h) {
            p = h->piece;
            if (!--h->times) {
                gh_pointers_take(&st->pointers, key_of(HANDLE, handle));
                free(h);
            }
        }
        gh_unlock(&v->lock);
    }
    CUresult r = REAL(cuMemRelease)(handle);
    if (p && gh_lock(&v->lock)) {
        p->handles--;
        if (r == CUDA_SUCCESS)
            drop_if_free(st, p);
        else if (!add_use(st, handle, p))
            p->permanent = true;
        gh_unlock(&v->lock);
    }
    return r;
}

GH_EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address) {
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct gh_state *st = gh_here();
    struct vmm *v = st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
    if (r || !v || !gh_lock(&v->lock))
        return r;
    for (size_t i = 0; i < v->count; i++)
        if ((uintptr_t)address - v->map[i].at < v->map[i].size) {
            if (!add_use(st, *handle, v->map[i].piece))
                v->map[i].piece->permanent = true;
            break;
        }
    gh_unlock(&v->lock);
    return r;
}

/* With the lock held: the index of the first mapping at or above an address. The list is sorted. */
static size_t position(const struct vmm *v, uint64_t at) {
    size_t low = 0, high = v->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->map[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(struct vmm *v, struct mapping m) {
    if (v->count == v->room) {
        size_t room = v->room ? v->room * 2 : 64;
        struct mapping *more = realloc(v->map, room * sizeof *more);
        if (!more)
            return false;
        v->map = more;
        v->room = room;
    }
    size_t i = position(v, m.at);
    memmove(v->map + i + 1, v->map + i, (v->count - i) * sizeof *v->map);
    v->map[i] = m;
    v->count++;
    return true;
}

GH_EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags) {
    CUresult r = REAL(cuMemMap)(at, bytes, offset, handle, flags);
    struct gh_state *st = gh_here();
    struct vmm *v = st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
    if (r || !v || !gh_lock(&v->lock))
        return r;
    struct handle_uses *h = uses_of(st, handle);
    if (h) {
        if (insert(v, (struct mapping){at, bytes, ++v->clock, h->piece}))
            h->piece->maps++;
        else
            h->piece->permanent = true;
    }
    gh_unlock(&v->lock);
    return r;
}

GH_EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
    uint64_t began = 0;
    if (v && gh_lock(&v->lock)) {
        began = v->clock;
        gh_unlock(&v->lock);
    }
    CUresult r = REAL(cuMemUnmap)(at, bytes);
    if (r || !v || !gh_lock(&v->lock))
        return r;
    /* A mapping that another thread has made at this address since then has a higher number than `began`. */
    for (size_t i = position(v, at); i < v->count && v->map[i].at + v->map[i].size <= at + bytes;) {
        struct mapping m = v->map[i];
        if (m.made > began) {
            i++;
            continue;
        }
        v->count--;
        memmove(v->map + i, v->map + i + 1, (v->count - i) * sizeof *v->map);
        m.piece->maps--;
        drop_if_free(st, m.piece);
    }
    gh_unlock(&v->lock);
    return r;
}

static void keep(CUmemHandle handle) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
    if (!v || !gh_lock(&v->lock))
        return;
    struct handle_uses *h = uses_of(st, handle);
    if (h)
        h->piece->permanent = true;
    gh_unlock(&v->lock);
}

GH_EXPORT CUresult cuMemExportToShareableHandle(void *os, CUmemHandle handle, int type, uint64_t flags) {
    CUresult r = REAL(cuMemExportToShareableHandle)(os, handle, type, flags);
    if (r == CUDA_SUCCESS)
        keep(handle);
    return r;
}

typedef struct { /* CUarrayMapInfo */
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
    int operation, handle_type; /* operation: 1 is map */
    CUmemHandle handle;
    unsigned long long offset;
    unsigned device_mask, flags, reserved[2];
} CUarrayMapInfo;

#define MAP_ARRAY(name)                                                    \
    GH_EXPORT CUresult name(void *list, unsigned count, CUstream stream) { \
        CUresult r = REAL(name)(list, count, stream);                      \
        const CUarrayMapInfo *info = list;                                 \
        for (unsigned i = 0; r == CUDA_SUCCESS && i < count; i++)          \
            if (info[i].operation == 1)                                    \
                keep(info[i].handle);                                      \
        return r;                                                          \
    }
MAP_ARRAY(cuMemMapArrayAsync)
MAP_ARRAY(cuMemMapArrayAsync_ptsz)

/* Memory bound to a multicast object was charged when it was made. From now on the object may keep it. */
static CUresult bound(CUresult r, CUmemHandle handle) {
    if (r == CUDA_SUCCESS)
        keep(handle);
    return r;
}

static CUresult bound_at(CUresult r, CUdeviceptr at, size_t bytes) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
    if (r || !v || !gh_lock(&v->lock))
        return r;
    for (size_t i = 0; i < v->count; i++)
        if (v->map[i].at < at + bytes && at < v->map[i].at + v->map[i].size)
            v->map[i].piece->permanent = true;
    gh_unlock(&v->lock);
    return r;
}

GH_EXPORT CUresult cuMulticastBindMem(CUmemHandle object, size_t offset, CUmemHandle memory, size_t from, size_t bytes,
                                      uint64_t flags) {
    return bound(REAL(cuMulticastBindMem)(object, offset, memory, from, bytes, flags), memory);
}
GH_EXPORT CUresult cuMulticastBindMem_v2(CUmemHandle object, CUdevice device, size_t offset, CUmemHandle memory,
                                         size_t from, size_t bytes, uint64_t flags) {
    return bound(REAL(cuMulticastBindMem_v2)(object, device, offset, memory, from, bytes, flags), memory);
}
GH_EXPORT CUresult cuMulticastBindAddr(CUmemHandle object, size_t offset, CUdeviceptr at, size_t bytes,
                                       uint64_t flags) {
    return bound_at(REAL(cuMulticastBindAddr)(object, offset, at, bytes, flags), at, bytes);
}
GH_EXPORT CUresult cuMulticastBindAddr_v2(CUmemHandle object, CUdevice device, size_t offset, CUdeviceptr at,
                                          size_t bytes, uint64_t flags) {
    return bound_at(REAL(cuMulticastBindAddr_v2)(object, device, offset, at, bytes, flags), at, bytes);
}
