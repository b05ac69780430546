/* Calls after which memory may live on without a handle or mapping of ours: in sparse arrays, which we do not follow, so
 * that it stays charged until the process ends; by descriptors of address ranges; in multicast objects and logical endpoints. */
#include <stdlib.h>

#include "driver/real.h"
#include "memory/charge.h"
#include "memory/piece.h"

struct held {
    struct piece *piece; /* NULL: not known */
    CUmemHandle handle;  /* by which the call uses it */
    bool by_handle;
};

struct pieces { /* held while the call runs */
    struct gh_state *st;
    struct vmm *v; /* NULL: none */
    struct held *list;
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
static void list_piece(struct pieces *all, struct held one) {
    struct piece_call c = {all->st, all->v, NULL, 0};
    hold(&c, one.piece);
    if (!one.piece)
        use_unknown(&c, one.handle);
    all->list[all->count++] = one;
}

static bool list_handle(struct pieces *all, CUmemHandle handle) {
    if (!open_list(all, 1))
        return !all->v;
    list_piece(all, (struct held){piece_of(all->st, handle), handle, true});
    gh_unlock(&all->v->lock);
    return true;
}

/* With the lock held. lasting: what the call has used stays charged until the process ends. */
static void end_pieces(const struct pieces *all, CUresult r, bool lasting) {
    for (size_t i = 0; i < all->count; i++) {
        const struct held *one = &all->list[i];
        struct piece_call c = {all->st, all->v, one->piece, 0};
        if (one->by_handle && (r == CUDA_SUCCESS || !c.piece))
            used_by_handle(&c, one->handle);
        if (!c.piece)
            continue;
        c.piece->permanent |= lasting && r == CUDA_SUCCESS;
        let_go(&c);
    }
}

static CUresult keep(struct pieces *all, CUresult r) {
    if (all->list && gh_lock(&all->v->lock)) {
        end_pieces(all, r, true);
        gh_unlock(&all->v->lock);
    }
    free(all->list);
    return r;
}

typedef CUresult map_array_call(CUarrayMapInfo *, unsigned, CUstream);

static CUresult map_copied(CUarrayMapInfo *list, unsigned count, CUstream stream, map_array_call *call) {
    struct pieces all;
    bool any = open_list(&all, count);
    if (!any && all.v)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; any && i < count; i++)
        if (list[i].operation == CU_MEM_OPERATION_TYPE_MAP)
            list_piece(&all, (struct held){piece_of(all.st, list[i].handle), list[i].handle, true});
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

static bool list_range(struct pieces *all, CUdeviceptr at, size_t bytes) {
    if (!open_list(all, 1))
        return !all->v;
    for (size_t i = 0; i < all->v->count; i++)
        if (all->v->map[i].at < at + bytes && at < all->v->map[i].at + all->v->map[i].size)
            list_piece(all, (struct held){all->v->map[i].piece, 0, false});
    gh_unlock(&all->v->lock);
    return true;
}

/* ---- descriptors of address ranges, which network adapters use; the driver keeps the memory for them ---- */

/* Notes the new descriptor with each piece. Ends the call. */
static void note_descriptor(struct pieces *all, int fd) {
    struct watch *first = all->count ? watch_open_file(&all->v->observers, fd, 0) : NULL;
    if (!all->list || !gh_lock(&all->v->lock))
        return;
    for (size_t i = 0; i < all->count; i++) {
        struct piece_call c = {all->st, all->v, all->list[i].piece, 0};
        struct watch *w = i && first ? watch_copy(&all->v->observers, first) : first;
        if (w)
            note_export(&c, w);
        else
            c.piece->permanent = true;
        let_go(&c);
    }
    gh_unlock(&all->v->lock);
    free(all->list);
}

/* The pieces of a range, and the linear memory in it as a piece. */
static bool list_memory(struct pieces *all, CUdeviceptr at, size_t bytes) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? vmm_of(st) : NULL;
    CUdeviceptr base = 0;
    size_t size = 0;
    if (!v || !list_range(all, at, bytes))
        return false;
    if (!all->count && !REAL(cuMemGetAddressRange_v2)(&base, &size, at) && gh_lock(&v->lock)) {
        struct piece *p = share_linear(st, base);
        if (p)
            list_piece(all, (struct held){p, 0, false});
        gh_unlock(&v->lock);
    }
    return true;
}

GH_EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t bytes, int type, uint64_t flags) {
    struct pieces all;
    int fd = -1;
    bool descriptor = type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && handle;
    if (!list_memory(&all, at, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!descriptor)
        return keep(&all, REAL(cuMemGetHandleForAddressRange)(handle, at, bytes, type, flags));
    CUresult r = REAL(cuMemGetHandleForAddressRange)(&fd, at, bytes, type, flags);
    if (r)
        return keep(&all, r);
    note_descriptor(&all, fd);
    *(int *)handle = fd;
    return r;
}

/* ---- multicast objects and logical endpoints ----
 *
 * Memory that is bound to one was charged when it was made, and is kept by it: until it is unbound, or the multicast object
 * has no handle, mapping and export any more. */

struct object {             /* to which memory is bound */
    struct piece_call call; /* of a multicast object; piece: NULL, if it is not known */
    CUmemHandle handle;
    struct bond place;
};

static struct object multicast(CUmemHandle handle, uint64_t at, uint64_t size) {
    return (struct object){begin_by_handle(handle), handle, {.at = at, .size = size, .gpu = NO_GPU}};
}

static struct object multicast_on(CUmemHandle handle, CUdevice device, uint64_t at, uint64_t size) {
    struct object o = multicast(handle, at, size);
    if (o.call.st)
        o.place.gpu = gpu_of_device(o.call.st, device);
    return o;
}

static struct object endpoint(unsigned id, CUdevice device, uint64_t at, uint64_t size) {
    struct gh_state *st = gh_here();
    struct vmm *v = vmm_if_any(st);
    struct object o = {{st, v, NULL, v ? vmm_clock(v) : 0}, 0, {.endpoint = id, .at = at, .size = size, .gpu = NO_GPU}};
    if (st)
        o.place.gpu = gpu_of_device(st, device);
    return o;
}

/* With the lock held: its list of bonds; NULL: there is none, or a handle may stand for another object by now. */
static struct bond **bonds_of(const struct object *o) {
    if (!o->handle)
        return &o->call.v->endpoints;
    bool same = o->call.piece && piece_of(o->call.st, o->handle) == o->call.piece;
    return same ? &o->call.piece->bonds : NULL;
}

static void let_go_of_object(const struct object *o, CUresult r) {
    if (o->call.piece && r == CUDA_SUCCESS)
        used_by_handle(&o->call, o->handle);
    if (o->call.piece)
        let_go(&o->call);
}

/* Given the driver's answer: notes a bond of each piece. Ends both calls. The driver says of what is bound by a handle on
 * which GPU it is only where it is asked (CUDA 13.1); it is the memory's. */
static CUresult bound(struct pieces *all, struct object *o, CUresult r) {
    struct vmm *v = o->call.v;
    if (r == CUDA_SUCCESS && all->st)
        gh_note_fixed(all->st);
    if (v && gh_lock(&v->lock)) {
        struct bond **list = bonds_of(o);
        for (size_t i = 0; r == CUDA_SUCCESS && list && i < all->count; i++) {
            struct bond b = o->place;
            if (!(b.memory = all->list[i].piece))
                continue;
            if (b.gpu < 0 && !b.memory->imported)
                b.gpu = (int)b.memory->gpu;
            note_bond(v, list, b);
        }
        end_pieces(all, r, !list);
        let_go_of_object(o, r);
        gh_unlock(&v->lock);
    }
    free(all->list);
    return r;
}

/* While another thread uses the object's handle, which it may release, what is unbound stays charged until the object goes. */
static CUresult unbound(struct object *o, CUresult r) {
    struct vmm *v = o->call.v;
    if (!v || !gh_lock(&v->lock))
        return r;
    struct bond **list = bonds_of(o);
    if (r == CUDA_SUCCESS && list && (!o->handle || o->call.piece->calls == 1))
        note_unbind(o->call.st, v, list, o->place, o->call.began);
    let_go_of_object(o, r);
    gh_unlock(&v->lock);
    pieces_reclaim_now_and_then(o->call.st);
    return r;
}

GH_EXPORT CUresult cuMulticastCreate(CUmemHandle *object, const void *prop) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? vmm_of(st) : NULL;
    CUmemHandle made = 0;
    uint64_t began = v ? vmm_clock(v) : 0;
    CUresult r = REAL(cuMulticastCreate)(object ? &made : NULL, prop);
    if (r)
        return r;
    if (v)
        note_piece(st, v, made, (struct piece){0}, began);
    *object = made;
    return r;
}

#define BIND(list, given, ...)           \
    struct pieces all;                   \
    if (!(list))                         \
        return CUDA_ERROR_OUT_OF_MEMORY; \
    struct object o = given;             \
    return bound(&all, &o, __VA_ARGS__);

GH_EXPORT CUresult cuMulticastBindMem(CUmemHandle object, size_t offset, CUmemHandle memory, size_t from, size_t bytes,
                                      uint64_t flags){
    BIND(list_handle(&all, memory), multicast(object, offset, bytes),
         REAL(cuMulticastBindMem)(object, offset, memory, from, bytes, flags))} GH_EXPORT CUresult
    cuMulticastBindMem_v2(CUmemHandle object, CUdevice device, size_t offset, CUmemHandle memory, size_t from,
                          size_t bytes, uint64_t flags){
        BIND(list_handle(&all, memory), multicast_on(object, device, offset, bytes),
             REAL(cuMulticastBindMem_v2)(object, device, offset, memory, from, bytes, flags))} GH_EXPORT CUresult
    cuMulticastBindAddr(CUmemHandle object, size_t offset, CUdeviceptr at, size_t bytes, uint64_t flags){
        BIND(list_memory(&all, at, bytes), multicast(object, offset, bytes),
             REAL(cuMulticastBindAddr)(object, offset, at, bytes, flags))} GH_EXPORT CUresult
    cuMulticastBindAddr_v2(CUmemHandle object, CUdevice device, size_t offset, CUdeviceptr at, size_t bytes,
                           uint64_t flags){
        BIND(list_memory(&all, at, bytes), multicast_on(object, device, offset, bytes),
             REAL(cuMulticastBindAddr_v2)(object, device, offset, at, bytes, flags))} GH_EXPORT CUresult
    cuLogicalEndpointBindMem(unsigned id, CUdevice device, uint64_t offset, CUmemHandle memory, uint64_t from,
                             uint64_t bytes, uint64_t flags){
        BIND(list_handle(&all, memory), endpoint(id, device, offset, bytes),
             REAL(cuLogicalEndpointBindMem)(id, device, offset, memory, from, bytes, flags))} GH_EXPORT CUresult
    cuLogicalEndpointBindAddr(unsigned id, CUdevice device, uint64_t offset, CUdeviceptr at, uint64_t bytes,
                              uint64_t flags){
        BIND(list_memory(&all, at, bytes), endpoint(id, device, offset, bytes),
             REAL(cuLogicalEndpointBindAddr)(id, device, offset, at, bytes, flags))}

GH_EXPORT CUresult cuMulticastUnbind(CUmemHandle object, CUdevice device, size_t offset, size_t bytes) {
    struct object o = multicast_on(object, device, offset, bytes);
    return unbound(&o, REAL(cuMulticastUnbind)(object, device, offset, bytes));
}
GH_EXPORT CUresult cuLogicalEndpointUnbind(unsigned id, CUdevice device, uint64_t offset, uint64_t bytes) {
    struct object o = endpoint(id, device, offset, bytes);
    return unbound(&o, REAL(cuLogicalEndpointUnbind)(id, device, offset, bytes));
}
