/* Simulated libcuda: IPC handles. An exported allocation is a piece (piece.c), which processes may open that may look at
 * the exporter. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct ipc_handle { /* within CUipcMemHandle, 64 bytes */
    uint64_t magic;
    int32_t pid, piece;
    uint32_t generation, unused;
    uint64_t size;
    char uuid[32];
};

_Static_assert(sizeof(struct ipc_handle) == 64, "CUipcMemHandle");

#define IPC_MAGIC 0x6970632d73696d21ull

static struct shared { /* an allocation that is a piece, or an importer's mapping of one */
    uint64_t address, size;
    bool imported;
    unsigned opened;
    struct ipc_handle handle;
    struct shared *next;
} *shared;

/* Mutex held. Replaces an allocation's private memory by a piece, which its mapping keeps. */
static struct shared *share(const struct piece *p) {
    for (struct shared *s = shared; s; s = s->next)
        if (s->address == p->address && s->size == p->size && !s->imported)
            return s;
    struct gpu *gpu = sim_gpu_of(p->ctx);
    struct shared *s = calloc(1, sizeof *s);
    int fd = s ? gpu_piece_make(gpu) : -1, piece = gpu_piece_of(gpu, fd);
    uint8_t *old = (uint8_t *)(uintptr_t)p->address;
    void *at = gpu_piece_map(gpu, fd, NULL, p->mapped, 0, PROT_READ | PROT_WRITE);
    if (at == MAP_FAILED) {
        gpu_piece_close(gpu, fd);
        free(s);
        return NULL;
    }
    gpu_release(gpu, p->size); /* it counts as a piece now: at no moment twice */
    gpu_piece_add(gpu, fd, (int64_t)p->size);
    gpu_piece_close(gpu, fd);
    sim_shares = true;
    unsigned char resident;
    for (uint64_t i = 0; i < p->mapped; i += 4096) /* copies only pages that were ever touched */
        if (!mincore(old + i, 4096, &resident) && resident & 1)
            memcpy((uint8_t *)at + i, old + i, 4096);
    mremap(at, p->mapped, p->mapped, MREMAP_MAYMOVE | MREMAP_FIXED, old);
    *s = (struct shared){p->address, p->size, false, 0, {0}, shared};
    s->handle = (struct ipc_handle){IPC_MAGIC, getpid(), piece, gpu_piece_generation(gpu, piece), 0, p->size, ""};
    memcpy(s->handle.uuid, gpu->file->head.uuid + 4, sizeof s->handle.uuid);
    shared = s;
    return s;
}

API CUresult cuIpcGetMemHandle(struct ipc_handle *out, CUdeviceptr address) {
    struct piece p;
    TRY(sim_ready());
    if (!out || !heap_holding(address, &p) || p.kind != DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct shared *s = share(&p);
    if (s)
        *out = s->handle;
    pthread_mutex_unlock(&mutex);
    return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_handle(CUdeviceptr *out, struct ipc_handle handle, unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || flags & ~1u || handle.magic != IPC_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (memcmp(handle.uuid, sim_gpu_of(ctx)->file->head.uuid + 4, sizeof handle.uuid))
        return CUDA_ERROR_INVALID_DEVICE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot open its own handle */
    pthread_mutex_lock(&mutex);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct shared *s = shared;
    while (s && (!s->imported || memcmp(&s->handle, &handle, sizeof handle)))
        s = s->next;
    if (s) {
        s->opened++;
        *out = s->address;
        r = CUDA_SUCCESS;
    } else if ((s = calloc(1, sizeof *s))) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/.", (int)handle.pid); /* only for who may look at the exporter */
        struct gpu *gpu = sim_gpu_of(ctx);
        int fd = access(path, X_OK) ? -1 : gpu_piece_open(gpu, handle.piece, handle.generation);
        uint64_t mapped = round_up(handle.size, 4096);
        void *at = gpu_piece_map(gpu, fd, NULL, mapped, 0, PROT_READ | PROT_WRITE);
        gpu_piece_close(gpu, fd);
        if (at != MAP_FAILED) {
            sim_shares = true;
            *out = (uint64_t)(uintptr_t)at;
            *s = (struct shared){*out, handle.size, true, 1, handle, shared};
            shared = s;
            r = heap_note(
                (struct piece){.address = *out, .size = handle.size, .mapped = mapped, .ctx = ctx, .kind = IMPORTED});
        } else
            free(s);
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, struct ipc_handle h, unsigned flags) {
    return open_handle(out, h, flags);
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc_handle h, unsigned flags) {
    return open_handle(out, h, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct shared **p = &shared;
    while (*p && (!(*p)->imported || (*p)->address != address))
        p = &(*p)->next;
    struct shared *s = *p;
    bool last = s && !--s->opened;
    if (last) {
        *p = s->next;
        free(s);
    }
    pthread_mutex_unlock(&mutex);
    return !s ? CUDA_ERROR_INVALID_VALUE : last ? heap_free(address) : CUDA_SUCCESS;
}

bool ipc_forget(struct gpu *gpu, uint64_t address) {
    bool known = false;
    pthread_mutex_lock(&mutex);
    for (struct shared **p = &shared; *p; p = &(*p)->next)
        if ((*p)->address == address && !(*p)->imported) {
            struct shared *s = *p;
            *p = s->next;
            gpu_piece_freed(gpu, s->handle.piece);
            free(s);
            known = true;
            break;
        }
    pthread_mutex_unlock(&mutex);
    return known;
}
