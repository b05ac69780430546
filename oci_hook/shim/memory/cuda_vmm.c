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
    unsigned calls;         /* running calls that may add or remove some */
    uint64_t mapped;        /* clock of its last mapping */
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

/* A driver may give the value of a released handle to the next piece at once. So a thread that maps by a value while
 * others release and create may map another piece than we think. Such a mapping is strange, and every piece that was
 * made meanwhile stays charged until the process ends. Programs that do not race for one handle never meet this. */
struct vmm {
    struct gh_lock lock;
    uint64_t clock;         /* numbers mappings, to tell those made during a call */
    uint64_t strange;       /* clock of the last strange mapping */
    unsigned unknown_calls; /* running mappings by a value that we do not know */
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
    if (p->handles || p->maps || p->calls || p->permanent)
        return;
    gh_release(st, p->gpu, p->units);
    free(p);
}

static struct vmm *vmm_if_any(struct gh_state *st) {
    return st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL;
}

static struct handle_uses *uses_of(struct gh_state *st, CUmemHandle handle) {
    return (struct handle_uses *)(uintptr_t)gh_pointers_get(&st->pointers, key_of(HANDLE, handle));
}

/* With the lock held: the piece that a handle value stands for, as far as we know. */
static struct piece *piece_of(struct gh_state *st, CUmemHandle handle) {
    struct handle_uses *h = uses_of(st, handle);
    return h ? h->piece : NULL;
}

/* With the lock held: the driver has returned this handle value for the piece once more. */
static bool add_use(struct gh_state *st, CUmemHandle handle, struct piece *p) {
    struct handle_uses *h = uses_of(st, handle);
    if (h && h->piece == p) {
        h->times++;
    } else if (h) { /* another thread has released this value, and has not noted that yet */
        *h = (struct handle_uses){p, 1};
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

/* With the lock held: whether a piece made since `began`, with this handle value, may be mapped without our knowledge. */
static bool mapped_unseen(struct gh_state *st, const struct vmm *v, CUmemHandle handle, uint64_t began) {
    const struct piece *before = piece_of(st, handle);
    return v->strange > began || v->unknown_calls || (before && (before->calls > 1 || before->mapped > began));
}

/* Notes a new piece. Without memory for the note, it stays charged until the process ends. */
static void note_piece(struct gh_state *st, struct vmm *v, CUmemHandle handle, const struct charge *c, uint64_t began) {
    struct piece *p = malloc(sizeof *p);
    if (!p)
        return;
    *p = (struct piece){.units = c->units, .gpu = (unsigned)c->at.gpu};
    if (!gh_lock(&v->lock)) {
        free(p);
        return;
    }
    p->permanent = mapped_unseen(st, v, handle, began);
    if (!add_use(st, handle, p))
        free(p);
    gh_unlock(&v->lock);
}

static uint64_t clock_of(struct vmm *v) {
    uint64_t now = 0; /* without the lock: any strange mapping counts as one made since */
    if (gh_lock(&v->lock)) {
        now = v->clock;
        gh_unlock(&v->lock);
    }
    return now;
}

GH_EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *given, uint64_t flags) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? vmm(st) : NULL;
    CUmemAllocationProp prop;
    CUmemHandle made = 0;
    struct charge c = {0};
    if (!given || !handle)
        return REAL(cuMemCreate)(handle, bytes, given, flags);
    copy_once(&prop, given, sizeof prop);
    bool charged = !on_host(&prop.location, prop.type);
    if (charged && !v)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t began = charged ? clock_of(v) : 0;
    CUresult r = charged ? charge_at(&c, st, (struct place){.gpu = gpu_of_device(st, prop.location.id)}, bytes) : 0;
    if (r)
        return r;
    r = REAL(cuMemCreate)(&made, bytes, &prop, flags);
    if (r) {
        uncharge(&c);
        return r;
    }
    if (charged)
        note_piece(st, v, made, &c, began);
    *handle = made;
    return r;
}

/* A call that may add or remove handles or mappings of a piece: the piece stays while it runs. */
struct piece_call {
    struct gh_state *st;
    struct vmm *v;
    struct piece *piece; /* NULL: not known */
    uint64_t began;
};

/* With the lock held. */
static void hold(struct piece_call *c, struct piece *p) {
    c->piece = p;
    c->began = c->v->clock;
    if (p)
        p->calls++;
}

static struct piece_call begin_by_handle(CUmemHandle handle) {
    struct gh_state *st = gh_here();
    struct piece_call c = {st, vmm_if_any(st), NULL, 0};
    if (c.v && gh_lock(&c.v->lock)) {
        hold(&c, piece_of(st, handle));
        gh_unlock(&c.v->lock);
    }
    return c;
}

/* Ends the call. With the lock held. */
static void let_go(struct piece_call *c) {
    c->piece->calls--;
    drop_if_free(c->st, c->piece);
}

GH_EXPORT CUresult cuMemRelease(CUmemHandle handle) {
    struct piece_call c = begin_by_handle(handle);
    CUresult r = REAL(cuMemRelease)(handle);
    if (!c.piece || !gh_lock(&c.v->lock))
        return r;
    struct handle_uses *h = r == CUDA_SUCCESS ? uses_of(c.st, handle) : NULL;
    if (h && h->piece == c.piece && !--h->times) {
        gh_pointers_take(&c.st->pointers, key_of(HANDLE, handle));
        free(h);
    }
    if (r == CUDA_SUCCESS && c.piece->mapped > c.began)
        c.v->strange = ++c.v->clock;
    if (r == CUDA_SUCCESS && c.piece->handles)
        c.piece->handles--;
    let_go(&c);
    gh_unlock(&c.v->lock);
    return r;
}

/* With the lock held. */
static struct piece *piece_at(const struct vmm *v, uint64_t address) {
    for (size_t i = 0; i < v->count; i++)
        if (address - v->map[i].at < v->map[i].size)
            return v->map[i].piece;
    return NULL;
}

GH_EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address) {
    struct gh_state *st = gh_here();
    struct piece_call c = {st, vmm_if_any(st), NULL, 0};
    CUmemHandle made = 0;
    if (c.v && gh_lock(&c.v->lock)) {
        hold(&c, piece_at(c.v, (uintptr_t)address));
        gh_unlock(&c.v->lock);
    }
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle ? &made : NULL, address);
    if (c.piece && gh_lock(&c.v->lock)) {
        struct piece *now = piece_at(c.v, (uintptr_t)address); /* another one, if it was unmapped meanwhile */
        if (r == CUDA_SUCCESS && (!add_use(st, made, c.piece) || now != c.piece))
            c.piece->permanent = true;
        if (r == CUDA_SUCCESS && now && now != c.piece)
            now->permanent = true;
        let_go(&c);
        gh_unlock(&c.v->lock);
    }
    if (r == CUDA_SUCCESS)
        *handle = made;
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

/* With the lock held: notes a new mapping of a piece. */
static void note_map(struct vmm *v, struct piece *p, uint64_t at, uint64_t bytes) {
    p->mapped = ++v->clock;
    if (insert(v, (struct mapping){at, bytes, v->clock, p}))
        p->maps++;
    else
        p->permanent = true;
}

GH_EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags) {
    struct gh_state *st = gh_here();
    struct piece_call c = {st, vmm_if_any(st), NULL, 0};
    bool followed = c.v && gh_lock(&c.v->lock);
    if (followed) {
        hold(&c, piece_of(st, handle));
        c.v->unknown_calls += !c.piece;
        gh_unlock(&c.v->lock);
    }
    CUresult r = REAL(cuMemMap)(at, bytes, offset, handle, flags);
    if (!followed || !gh_lock(&c.v->lock))
        return r;
    struct piece *now = piece_of(st, handle);
    if (r == CUDA_SUCCESS && (now != c.piece || !now))
        c.v->strange = ++c.v->clock;
    if (r == CUDA_SUCCESS && now)
        now->permanent |= now != c.piece;
    if (r == CUDA_SUCCESS && c.piece)
        note_map(c.v, c.piece, at, bytes);
    if (c.piece)
        let_go(&c);
    else
        c.v->unknown_calls--;
    gh_unlock(&c.v->lock);
    return r;
}

GH_EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    struct gh_state *st = gh_here();
    struct vmm *v = vmm_if_any(st);
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

/* ---- calls after which a piece may live on without our knowledge: it then stays charged until the process ends ---- */

struct pieces { /* held while the call runs */
    struct gh_state *st;
    struct vmm *v; /* NULL: none */
    struct piece **list;
    size_t count;
};

/* Makes place for so many pieces, at least as many as there are mappings, and takes the lock. False: nothing to hold
 * (v is NULL), or no memory. */
static bool open_list(struct pieces *all, size_t room) {
    struct gh_state *st = gh_here();
    *all = (struct pieces){st, vmm_if_any(st), NULL, 0};
    if (!all->v || !gh_lock(&all->v->lock))
        return false;
    room = room > all->v->count ? room : all->v->count;
    all->list = calloc(room + 1, sizeof *all->list);
    if (!all->list)
        gh_unlock(&all->v->lock);
    return all->list != NULL;
}

/* With the lock held. */
static void list_piece(struct pieces *all, struct piece *p) {
    if (!p)
        return;
    p->calls++;
    all->list[all->count++] = p;
}

static bool list_handle(struct pieces *all, CUmemHandle handle) {
    if (!open_list(all, 1))
        return !all->v;
    list_piece(all, piece_of(all->st, handle));
    gh_unlock(&all->v->lock);
    return true;
}

static CUresult keep(struct pieces *all, CUresult r) {
    if (all->list && gh_lock(&all->v->lock)) {
        for (size_t i = 0; i < all->count; i++) {
            struct piece_call one = {all->st, all->v, all->list[i], 0};
            one.piece->permanent |= r == CUDA_SUCCESS;
            let_go(&one);
        }
        gh_unlock(&all->v->lock);
    }
    free(all->list);
    return r;
}

GH_EXPORT CUresult cuMemExportToShareableHandle(void *os, CUmemHandle handle, int type, uint64_t flags) {
    struct pieces all;
    if (!list_handle(&all, handle))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(&all, REAL(cuMemExportToShareableHandle)(os, handle, type, flags));
}

typedef CUresult map_array_call(CUarrayMapInfo *, unsigned, CUstream);

static CUresult map_copied(CUarrayMapInfo *list, unsigned count, CUstream stream, map_array_call *call) {
    struct pieces all;
    bool any = open_list(&all, count);
    if (!any && all.v)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; any && i < count; i++)
        if (list[i].operation == CU_MEM_OPERATION_TYPE_MAP)
            list_piece(&all, piece_of(all.st, list[i].handle));
    if (any)
        gh_unlock(&all.v->lock);
    return keep(&all, call(list, count, stream));
}

/* The driver gets our copy of the list, so what we keep is what it maps. */
static CUresult map_array(CUarrayMapInfo *given, unsigned count, CUstream stream, map_array_call *call) {
    CUarrayMapInfo *list = given && count ? calloc(count, sizeof *list) : NULL;
    if (!given || !count)
        return call(given, count, stream);
    if (!list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy_once(list, given, count * sizeof *list);
    CUresult r = map_copied(list, count, stream, call);
    free(list);
    return r;
}

GH_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    return map_array(list, count, stream, REAL(cuMemMapArrayAsync));
}
GH_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
    return map_array(list, count, stream, REAL(cuMemMapArrayAsync_ptsz));
}

/* Memory bound to a multicast object was charged when it was made. From now on the object may keep it. */
static bool list_range(struct pieces *all, CUdeviceptr at, size_t bytes) {
    if (!open_list(all, 1))
        return !all->v;
    for (size_t i = 0; i < all->v->count; i++)
        if (all->v->map[i].at < at + bytes && at < all->v->map[i].at + all->v->map[i].size)
            list_piece(all, all->v->map[i].piece);
    gh_unlock(&all->v->lock);
    return true;
}

GH_EXPORT CUresult cuMulticastBindMem(CUmemHandle object, size_t offset, CUmemHandle memory, size_t from, size_t bytes,
                                      uint64_t flags) {
    struct pieces all;
    if (!list_handle(&all, memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(&all, REAL(cuMulticastBindMem)(object, offset, memory, from, bytes, flags));
}
GH_EXPORT CUresult cuMulticastBindMem_v2(CUmemHandle object, CUdevice device, size_t offset, CUmemHandle memory,
                                         size_t from, size_t bytes, uint64_t flags) {
    struct pieces all;
    if (!list_handle(&all, memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(&all, REAL(cuMulticastBindMem_v2)(object, device, offset, memory, from, bytes, flags));
}
GH_EXPORT CUresult cuMulticastBindAddr(CUmemHandle object, size_t offset, CUdeviceptr at, size_t bytes,
                                       uint64_t flags) {
    struct pieces all;
    if (!list_range(&all, at, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(&all, REAL(cuMulticastBindAddr)(object, offset, at, bytes, flags));
}
GH_EXPORT CUresult cuMulticastBindAddr_v2(CUmemHandle object, CUdevice device, size_t offset, CUdeviceptr at,
                                          size_t bytes, uint64_t flags) {
    struct pieces all;
    if (!list_range(&all, at, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return keep(&all, REAL(cuMulticastBindAddr_v2)(object, device, offset, at, bytes, flags));
}
