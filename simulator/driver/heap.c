/* Simulated libcuda: device memory by address. The GPU counts the bytes; they are host memory, which costs nothing
 * until a program touches it. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct piece *pieces; /* by falling address: mmap assigns addresses downwards, so most new ones go to the end */
static size_t count, room;

/* Mutex held. Index of the first piece whose address is not above this one. */
static size_t position(uint64_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pieces[middle].address > address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool heap_book(struct gpu *gpu, uint64_t bytes) {
    if (gpu_reserve(gpu, bytes))
        return true;
    pool_release((int)(gpu - sim_gpu), true);
    return gpu_reserve(gpu, bytes);
}

static bool book_managed(struct gpu *gpu, uint64_t bytes) {
    if (gpu_reserve_managed(gpu, bytes))
        return true;
    pool_release((int)(gpu - sim_gpu), true);
    return gpu_reserve_managed(gpu, bytes);
}

bool heap_book_piece(struct gpu *gpu, int fd, uint64_t bytes) {
    if (gpu_piece_reserve(gpu, fd, bytes))
        return true;
    pool_release((int)(gpu - sim_gpu), true);
    return gpu_piece_reserve(gpu, fd, bytes);
}

uint64_t heap_map(uint64_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)at;
}

uint64_t address_range(uint64_t size, uint64_t alignment) {
    uint64_t all = size + alignment, at, begin;
    void *there =
        all > size ? mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (there == MAP_FAILED)
        return 0;
    at = (uint64_t)(uintptr_t)there;
    begin = round_up(at, alignment);
    if (begin > at)
        munmap(there, begin - at);
    munmap((void *)(uintptr_t)(begin + size), at + alignment - begin);
    return begin;
}

CUresult heap_note(struct piece piece) {
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (count == room) {
        size_t more = room ? room * 2 : 256;
        struct piece *grown = realloc(pieces, more * sizeof *grown);
        if (grown) {
            pieces = grown;
            room = more;
        } else
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!r) {
        size_t index = position(piece.address);
        memmove(&pieces[index + 1], &pieces[index], (count - index) * sizeof *pieces);
        pieces[index] = piece;
        pieces[index].ctx = piece.ctx->memory;
        pieces[index].device = piece.ctx->device;
        count++;
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

/* What the driver takes for linear memory: whole blocks; of pieces that are smaller than one, as many as fit share it. */
static uint64_t taken_for(const struct gpu *gpu, uint64_t bytes) {
    uint64_t size = round_up(bytes, GRAIN), block = gpu->file->head.block_bytes;
    if (block <= GRAIN)
        return size;
    return size >= block ? round_up(size, block) : block / GRAIN / (block / size) * GRAIN;
}

CUresult heap_allocate(CUdeviceptr *out, CUcontext ctx, size_t bytes, enum kind kind) {
    struct gpu *gpu = sim_gpu_of(ctx);
    if (!out || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > gpu->file->head.memory_total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t size = kind == DEVICE ? taken_for(gpu, bytes) : round_up(bytes, GRAIN), mapped = round_up(size, 4096);
    if (!(kind == MANAGED ? book_managed(gpu, size) : heap_book(gpu, size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t at = heap_map(mapped);
    if (!at || heap_note((struct piece){.address = at, .size = size, .mapped = mapped, .ctx = ctx, .kind = kind})) {
        if (at)
            munmap((void *)(uintptr_t)at, mapped);
        (kind == MANAGED ? gpu_release_managed : gpu_release)(gpu, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = at;
    return CUDA_SUCCESS;
}

bool heap_find(uint64_t address, struct piece *out) {
    pthread_mutex_lock(&mutex);
    size_t index = position(address);
    bool known = index < count && pieces[index].address == address;
    if (known)
        *out = pieces[index];
    pthread_mutex_unlock(&mutex);
    return known;
}

bool heap_holding(uint64_t address, struct piece *out) {
    pthread_mutex_lock(&mutex);
    size_t index = position(address);
    bool known = index < count && address - pieces[index].address < pieces[index].size;
    if (known)
        *out = pieces[index];
    pthread_mutex_unlock(&mutex);
    return known || vmm_holding(address, out);
}

/* Mutex held. */
static void take(size_t index, struct piece *out) {
    *out = pieces[index];
    count--;
    memmove(&pieces[index], &pieces[index + 1], (count - index) * sizeof *pieces);
}

bool heap_take(uint64_t address, struct piece *out) {
    pthread_mutex_lock(&mutex);
    size_t index = position(address);
    bool known = index < count && pieces[index].address == address;
    if (known)
        take(index, out);
    pthread_mutex_unlock(&mutex);
    return known;
}

static void give_back(struct piece piece) {
    bool exported = piece.kind == DEVICE && ipc_forget(sim_gpu_of(piece.ctx), piece.address);
    if (piece.mapped)
        munmap((void *)(uintptr_t)piece.address, piece.mapped);
    if (piece.kind == MANAGED) {
        managed_forget(piece.address);
        gpu_release_managed(&sim_gpu[piece.device], piece.size);
    } else if ((piece.kind == DEVICE && !exported) || piece.kind == VARIABLES)
        gpu_release(&sim_gpu[piece.device], piece.size);
    else if (piece.kind == POOLED)
        pool_free(piece);
    else if (piece.kind == GRAPH)
        graph_memory_free(piece);
}

CUresult heap_move(uint64_t address, int device) {
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    size_t index = position(address);
    struct piece *p = index < count && address - pieces[index].address < pieces[index].size ? &pieces[index] : NULL;
    if (p && p->kind == MANAGED) {
        r = CUDA_SUCCESS; /* also when there is no room: then it stays where it is */
        if (p->device != device && gpu_reserve_managed(&sim_gpu[device], p->size)) {
            gpu_release_managed(&sim_gpu[p->device], p->size);
            p->device = device;
        }
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

CUresult heap_free(CUdeviceptr address) {
    struct piece piece;
    if (!address)
        return CUDA_SUCCESS;
    if (!heap_take(address, &piece))
        return CUDA_ERROR_INVALID_VALUE;
    give_back(piece);
    return CUDA_SUCCESS;
}

void heap_free_all(CUcontext ctx) {
    for (size_t i = 0;;) {
        struct piece piece;
        pthread_mutex_lock(&mutex);
        while (i < count && pieces[i].ctx != ctx)
            i++;
        bool found = i < count;
        if (found)
            take(i, &piece);
        pthread_mutex_unlock(&mutex);
        if (!found)
            return;
        give_back(piece);
    }
}
