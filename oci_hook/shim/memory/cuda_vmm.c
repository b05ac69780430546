/* Virtual memory management: what is charged when is said in memory/piece.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account/shared_slot.h"
#include "driver/real.h"
#include "memory/charge.h"
#include "memory/piece.h"

/* The low bits stay, since an amount that is not whole granules is refused for that. */
static CUresult ask_create(size_t bytes, const CUmemAllocationProp *prop, uint64_t flags) {
    CUmemHandle made = 0;
    CUresult r = REAL(cuMemCreate)(&made, bytes | IMPOSSIBLE, prop, flags);
    if (r == CUDA_SUCCESS)
        REAL(cuMemRelease)(made);
    return r;
}

static CUresult create_refused(size_t bytes, const CUmemAllocationProp *prop, uint64_t flags) {
    CUmemAllocationProp good = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUresult asked = ask_create(bytes, prop, flags);
    return REFUSED(asked, ask_create(0, &good, 0));
}

GH_EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUmemAllocationProp *given, uint64_t flags) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? vmm_of(st) : NULL;
    CUmemAllocationProp prop;
    CUmemHandle made = 0;
    struct charge c = {0};
    if (!given || !handle)
        return REAL(cuMemCreate)(handle, bytes, given, flags);
    copy_once(&prop, given, sizeof prop);
    bool charged = !on_host(&prop.location, prop.type);
    if (!v)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t began = vmm_clock(v);
    struct place at = {.gpu = charged ? gpu_of_device(st, prop.location.id) : NO_CONTEXT,
                       .error = CUDA_ERROR_OUT_OF_MEMORY};
    CUresult r;
    CHARGE_AND_ASK(r, &c, charge_at(&c, st, at, bytes), REAL(cuMemCreate)(&made, bytes, &prop, flags),
                   create_refused(bytes, &prop, flags));
    if (r) {
        uncharge(&c);
        return r;
    }
    /* Without memory for the note, it stays charged until the process ends. Host memory is noted, too, with 0 units. */
    note_piece(st, v, made, (struct piece){.units = c.units, .gpu = charged ? (unsigned)c.at.gpu : 0}, began);
    *handle = made;
    return r;
}

GH_EXPORT CUresult cuMemRelease(CUmemHandle handle) {
    struct piece_call c = begin_by_handle(handle);
    CUresult r = REAL(cuMemRelease)(handle);
    if (!c.piece || !gh_lock(&c.v->lock))
        return r;
    if (r == CUDA_SUCCESS)
        release_use(&c, handle);
    let_go(&c);
    gh_unlock(&c.v->lock);
    pieces_reclaim_now_and_then(c.st);
    return r;
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

GH_EXPORT CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags) {
    struct gh_state *st = gh_here();
    struct piece_call c = {st, vmm_if_any(st), NULL, 0};
    if (c.v && gh_lock(&c.v->lock)) {
        hold(&c, piece_of(st, handle));
        if (!c.piece)
            use_unknown(&c, handle);
        gh_unlock(&c.v->lock);
    }
    CUresult r = REAL(cuMemMap)(at, bytes, offset, handle, flags);
    if (!c.v || !gh_lock(&c.v->lock))
        return r;
    if (r == CUDA_SUCCESS || !c.piece)
        used_by_handle(&c, handle);
    if (r == CUDA_SUCCESS && c.piece)
        note_map(c.v, c.piece, at, bytes);
    if (c.piece)
        let_go(&c);
    gh_unlock(&c.v->lock);
    return r;
}

GH_EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    struct gh_state *st = gh_here();
    struct vmm *v = vmm_if_any(st);
    uint64_t began = v ? vmm_clock(v) : 0;
    CUresult r = REAL(cuMemUnmap)(at, bytes);
    if (r || !v || !gh_lock(&v->lock))
        return r;
    note_unmap(st, v, at, bytes, began);
    gh_unlock(&v->lock);
    pieces_reclaim_now_and_then(st);
    return r;
}

/* ---- exports and imports ---- */

/* Notes that the piece is exported by a new descriptor. False: it cannot be watched. */
static bool watch_export(const struct piece_call *c, int fd) {
    struct watch *w = watch_open_file(&c->v->observers, fd, c->piece->known);
    if (!w)
        return false;
    bool locked = gh_lock(&c->v->lock);
    if (locked) {
        note_export(c, w);
        if (w->by)
            give_slot(c->st, c->piece, (uint64_t)w->byte);
        gh_unlock(&c->v->lock);
    } else {
        watch_end(&c->v->observers, w);
    }
    return locked;
}

/* An imported piece is exported on by the descriptor that it was imported with: its maker watches that one. The driver
 * is asked all the same, as it may refuse. */
static CUresult export_descriptor(const struct piece_call *c, CUmemHandle handle, uint64_t flags, int *fd, bool *kept) {
    CUresult r = REAL(cuMemExportToShareableHandle)(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, flags);
    if (r || !c->piece)
        return r;
    if (!c->piece->imported) {
        *kept = !watch_export(c, *fd);
        return r;
    }
    syscall(SYS_close, *fd);
    *fd = inode_of(c->piece->descriptor) == c->piece->inode ? fcntl(c->piece->descriptor, F_DUPFD_CLOEXEC, 0) : -1;
    return *fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : r;
}

/* Other kinds of handles than descriptors say nothing about who still uses them. */
GH_EXPORT CUresult cuMemExportToShareableHandle(void *os, CUmemHandle handle, int type, uint64_t flags) {
    struct piece_call c = begin_by_handle(handle);
    bool kept = type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int fd = -1;
    CUresult r = kept || !os ? REAL(cuMemExportToShareableHandle)(os, handle, type, flags)
                             : export_descriptor(&c, handle, flags, &fd, &kept);
    if (c.piece && gh_lock(&c.v->lock)) {
        c.piece->permanent |= kept && r == CUDA_SUCCESS;
        if (r == CUDA_SUCCESS)
            used_by_handle(&c, handle);
        let_go(&c);
        gh_unlock(&c.v->lock);
    }
    if (r == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        *(int *)os = fd;
    return r;
}

/* Notes an import by our own descriptor. The driver may answer with a handle value that it has returned before, and count
 * it once more; unless that one is being released, so that it may be another piece. *used: the note has the descriptor. */
static bool note_import(struct gh_state *st, struct vmm *v, CUmemHandle handle, struct piece like, uint64_t began,
                        bool *used) {
    struct piece *known = NULL;
    if (gh_lock(&v->lock)) {
        known = piece_of(st, handle);
        if (known && known->calls)
            known->permanent = true;
        if (known && (known->calls || !add_use(st, handle, known)))
            known = NULL;
        gh_unlock(&v->lock);
    }
    *used = !known;
    return known || note_piece(st, v, handle, like, began);
}

/* What is imported stays charged to its maker, for as long as a descriptor of its export is open: so we keep one. After a
 * maker of this container has gone, the memory is charged as long as somebody holds its shared slot: so we do. The driver
 * imports by our descriptor, since the program may use the number of its own for another file meanwhile. */
GH_EXPORT CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *os, int type) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? vmm_of(st) : NULL;
    CUmemHandle made = 0;
    gh_policy_wait_here();
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return REAL(cuMemImportFromShareableHandle)(handle, os, type);
    uint64_t began = v ? vmm_clock(v) : 0;
    int fd = hold_open_file((int)(uintptr_t)os);
    if (!v || (fd < 0 && errno != EBADF))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fd < 0)
        return REAL(cuMemImportFromShareableHandle)(handle, (void *)(uintptr_t)fd, type); /* refuses */
    bool used = false;
    struct piece like = {
        .imported = true, .descriptor = fd, .inode = inode_of(fd), .slot = gh_shared_hold(st, watched_byte(fd))};
    CUresult r = REAL(cuMemImportFromShareableHandle)(&made, (void *)(uintptr_t)fd, type);
    if (r == CUDA_SUCCESS && !note_import(st, v, made, like, began, &used)) {
        REAL(cuMemRelease)(made);
        used = false;
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!used) {
        syscall(SYS_close, fd);
        gh_shared_let_go(st, like.slot);
    }
    if (r == CUDA_SUCCESS)
        *handle = made;
    return r;
}
