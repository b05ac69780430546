/* The process's device memory by address: whose it is and how it is released. */
#ifndef GPU_HOOK_SIM_HEAP_H
#define GPU_HOOK_SIM_HEAP_H

#include "driver.h"

#define GRAIN 512ull       /* allocations are rounded up to it */
#define BLOCK (2ull << 20) /* the GPU's page: granularity of virtual memory management, pools, graph memory */

struct location { /* CUmemLocation */
    int type, id;
};

enum kind {
    DEVICE, /* counted and mapped for itself */
    MANAGED,
    POOLED,    /* a part of a pool's chunk */
    GRAPH,     /* allocated by a graph launch, counted by the device's graph pool */
    IMPORTED,  /* another process's memory: mapped here, counted there */
    VARIABLES, /* of a module */
    MAPPED,    /* virtual memory management: not in the list, and without a context */
};

struct piece {
    uint64_t address, size;
    uint64_t mapped; /* bytes to unmap when it is freed; 0: none */
    CUcontext ctx;
    enum kind kind;
    CUmemoryPool pool;
    int device;      /* that counts it; a prefetch may move managed memory away from its context's */
    bool exportable; /* MAPPED: with a handle type; and what cuMemSetAccess allowed last, CU_MEM_ACCESS_FLAGS_... */
    int access;
};

static inline uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Counts bytes on the GPU; when it is full, first releases unused memory of this process's pools. */
bool heap_book(struct gpu *gpu, uint64_t bytes);
bool heap_book_piece(struct gpu *gpu, int fd, uint64_t bytes);
/* Sparse host memory, whose address is the device pointer; 0: the host has none. */
uint64_t heap_map(uint64_t bytes);
/* An aligned range of addresses without memory; 0: the host has none. */
uint64_t address_range(uint64_t size, uint64_t alignment);
/* Counts the bytes, maps them and adds the piece. */
CUresult heap_allocate(CUdeviceptr *out, CUcontext ctx, size_t bytes, enum kind kind);
CUresult heap_note(struct piece piece);
/* The piece that begins at this address; the piece or mapping that contains it. */
bool heap_find(uint64_t address, struct piece *out);
bool heap_holding(uint64_t address, struct piece *out);
/* Removes the piece from the list; the caller releases its memory. False: no piece begins there. */
bool heap_take(uint64_t address, struct piece *out);
/* Managed memory moves to another GPU. */
CUresult heap_move(uint64_t address, int device);
/* Frees as cuMemFree does, without waiting for work. */
CUresult heap_free(CUdeviceptr address);
/* Frees all that a context allocated. */
void heap_free_all(CUcontext ctx);

/* pool.c */
void pool_free(struct piece piece);
void pool_release(int device, bool all); /* releases unused memory above each pool's threshold, or all unused memory */
CUresult pool_allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUcontext ctx);
CUmemoryPool pool_current(int device);
/* array.c */
struct array;
struct layout {
    uint64_t address;
    size_t pitch, slice; /* bytes from one row to the next, and from one layer to the next */
};
CUresult array_layout(struct array *array, struct layout *out);
size_t array_element(const struct array *array); /* bytes */
/* copy.c */
struct box { /* one side of a CUDA_MEMCPY3D */
    size_t x, y, z, level;
    unsigned type; /* CU_MEMORYTYPE_: host 1, device 2, array 3, unified 4 */
    void *host;
    CUdeviceptr device;
    struct array *array;
    void *reserved;
    size_t pitch, height;
};
struct copy3d { /* CUDA_MEMCPY3D and, with contexts in the reserved fields, CUDA_MEMCPY3D_PEER */
    struct box from, to;
    size_t width, height, depth;
};
struct fill { /* of rows, each of n elements of `width` bytes */
    uint64_t to;
    size_t pitch, width, n, rows;
    uint32_t value;
};
CUresult copy_linear(uint64_t to, uint64_t from, size_t bytes, CUstream stream, bool wait);
CUresult copy_box(const struct copy3d *copy, CUstream stream, bool wait);
CUresult copy_box_in(const struct copy3d *copy, struct stream *stream);
void fill_row(uint64_t to, uint32_t value, size_t width, size_t n);
/* graph.c */
void graph_memory_free(struct piece piece);
/* vmm.c: one more holder of a handle's memory, or of what is mapped at an address; NULL: there is none. */
struct handle;
struct handle *vmm_hold(unsigned long long handle);
struct handle *vmm_hold_mapped(uint64_t address);
void vmm_drop(struct handle *handle);
/* A multicast object's handle; 0: the host is out of memory. Its size by its handle; 0: it is none. */
unsigned long long vmm_multicast(uint64_t size);
uint64_t vmm_multicast_size(unsigned long long handle);
bool vmm_holding(uint64_t address, struct piece *out); /* what is mapped there */
/* managed.c: the allocation is freed */
void managed_forget(uint64_t address);
/* holders.c: the array or multicast object is destroyed. */
void holder_gone(const void *owner);
bool array_is_sparse(const void *array);
/* An allocation is freed. True: it was exported, and counts as a piece until nobody holds it. */
bool ipc_forget(struct gpu *gpu, uint64_t address);

#endif
