/* IPC handles of linear memory. What a process exports so gets an account slot of its own, and who opens the handle holds
 * that slot: so it stays charged when its maker frees it first or exits, as long as the driver has it for somebody. A handle is
 * the same each time that it is asked for; where it is not, the memory stays charged until its maker exits. */
#include <string.h>

#include "account/shared_slot.h"
#include "driver/cuda_gpu.h"
#include "driver/real.h"
#include "memory/piece.h"

/* FNV-1a, 64 bits. */
static uint64_t known_by(const CUipcMemHandle *handle) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof handle->bytes; i++)
        hash = (hash ^ (uint8_t)handle->bytes[i]) * 0x100000001b3ull;
    return hash ? hash : 1;
}

static void note_handle(CUdeviceptr pointer, const CUipcMemHandle *handle) {
    struct gh_state *st = gh_here();
    struct vmm *v = st ? vmm_of(st) : NULL;
    CUdeviceptr base = 0;
    size_t size = 0;
    if (!v || REAL(cuMemGetAddressRange_v2)(&base, &size, pointer) || !gh_lock(&v->lock))
        return;
    struct piece *p = share_linear(st, base);
    if (p)
        give_slot(st, p, known_by(handle));
    gh_unlock(&v->lock);
}

GH_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    CUipcMemHandle made;
    CUresult r = REAL(cuIpcGetMemHandle)(handle ? &made : NULL, pointer);
    if (r || !handle)
        return r;
    note_handle(pointer, &made);
    *handle = made;
    return r;
}

/* A driver counts how often a handle was opened, and answers each with the same address. So the note counts, too, with
 * the lock of the vmm held. Without memory for it, the slot stays held until the process ends. */
static void note_opened(struct gh_state *st, CUdeviceptr at, unsigned slot) {
    struct vmm *v = vmm_of(st);
    unsigned context = current_place(st).context;
    if (!v || !gh_lock(&v->lock))
        return;
    uint64_t key = key_of(OPENED, at), was = gh_pointers_get(&st->pointers, key);
    uint64_t times = opened_slot(was) == slot ? opened_times(was) + 1 : 1;
    gh_pointers_put(&st->pointers, key, pack(times << 10 | slot, 0, context, OPENED));
    gh_unlock(&v->lock);
}

/* Counts the note down. Returns its slot; 0: there is none. */
static unsigned note_closed(struct gh_state *st, CUdeviceptr at) {
    struct vmm *v = vmm_if_any(st);
    if (!v || !gh_lock(&v->lock))
        return 0;
    uint64_t key = key_of(OPENED, at), note = gh_pointers_take(&st->pointers, key), times = opened_times(note);
    if (times > 1)
        gh_pointers_put(&st->pointers, key, pack((times - 1) << 10 | opened_slot(note), 0, number_of(note), OPENED));
    gh_unlock(&v->lock);
    return opened_slot(note);
}

typedef CUresult open_call(CUdeviceptr *, CUipcMemHandle, unsigned);

static CUresult open_handle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags, open_call *call) {
    struct gh_state *st = gh_here();
    CUdeviceptr opened = 0;
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    gh_policy_wait(st);
    unsigned slot = gh_shared_hold(st, known_by(&handle)); /* before the driver has it for us */
    CUresult r = call(pointer ? &opened : NULL, handle, flags);
    if (r != CUDA_SUCCESS) {
        gh_shared_let_go(st, slot);
        return r;
    }
    if (slot)
        note_opened(st, opened, slot);
    *pointer = opened;
    return r;
}

GH_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    return open_handle(pointer, handle, flags, REAL(cuIpcOpenMemHandle));
}
GH_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags) {
    return open_handle(pointer, handle, flags, REAL(cuIpcOpenMemHandle_v2));
}

GH_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    struct gh_state *st = gh_here();
    unsigned slot = note_closed(st, pointer); /* before another handle can be opened there */
    CUresult r = REAL(cuIpcCloseMemHandle)(pointer);
    if (slot && r == CUDA_SUCCESS)
        gh_shared_let_go(st, slot);
    else if (slot)
        note_opened(st, pointer, slot);
    return r;
}
