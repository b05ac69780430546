/* Simulated libcuda: virtual memory management. Memory that can be exported is a piece (piece.c): it counts once, until
 * its last handle, mapping, exported descriptor and import are gone, in whatever process. */
#define _GNU_SOURCE
#include "heap.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

int memory_file(uint64_t bytes) {
    int fd = (int)syscall(SYS_memfd_create, "simulated-device-memory", 1u /* MFD_CLOEXEC */);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

struct allocation_prop { /* head of CUmemAllocationProp */
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char flags[8];
};

struct handle {
    uint64_t magic;
    int fd, device, references;
    int piece; /* its number; -1: it cannot be exported, and fd is a memory file */
    uint32_t generation;
    void *kept; /* a mapping of the piece, which keeps it when the program closes our descriptor */
    uint64_t size;
    struct allocation_prop prop;
    struct handle *next;
};

struct mapping {
    uint64_t address, size;
    struct handle *handle;
    struct mapping *next;
};

#define HANDLE_MAGIC 0x686e646c2d73696dull
static struct handle *handles;
static struct mapping *mappings;

/* Mutex held. */
static struct handle *handle_of(unsigned long long value) {
    struct handle *h = handles;
    while (h && (uint64_t)(uintptr_t)h != value)
        h = h->next;
    return h;
}

/* Mutex held. The descriptor of its memory; opened again if the program has closed it. */
static int memory_of(struct handle *h) {
    struct gpu *gpu = &sim_gpu[h->device];
    if (h->piece >= 0 && gpu_piece_of(gpu, h->fd) != h->piece)
        h->fd = gpu_piece_open(gpu, h->piece, h->generation);
    return h->fd;
}

/* Mutex held. */
static void unref(struct handle *h) {
    struct gpu *gpu = &sim_gpu[h->device];
    if (--h->references)
        return;
    for (struct handle **p = &handles; *p; p = &(*p)->next)
        if (*p == h) {
            *p = h->next;
            break;
        }
    if (h->piece < 0) {
        gpu_release(gpu, h->size);
        close(h->fd);
    } else {
        munmap(h->kept, 4096);
        if (gpu_piece_of(gpu, h->fd) == h->piece)
            gpu_piece_close(gpu, h->fd);
    }
    free(h);
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const struct allocation_prop *prop, int option) {
    TRY(sim_ready());
    (void)option;
    if (!out || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *out = BLOCK;
    return CUDA_SUCCESS;
}

/* fd: a piece, or a memory file. */
static CUresult new_handle(unsigned long long *out, int fd, uint64_t size, const struct allocation_prop *prop) {
    struct gpu *gpu = &sim_gpu[prop->location_id];
    int piece = gpu_piece_of(gpu, fd);
    void *kept = piece >= 0 ? gpu_piece_map(gpu, fd, NULL, 4096, 0, PROT_NONE) : NULL;
    struct handle *h = kept == MAP_FAILED ? NULL : calloc(1, sizeof *h);
    if (!h) {
        if (kept && kept != MAP_FAILED)
            munmap(kept, 4096);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *h = (struct handle){.magic = HANDLE_MAGIC,
                         .fd = fd,
                         .device = prop->location_id,
                         .references = 1,
                         .piece = piece,
                         .generation = piece >= 0 ? gpu_piece_generation(gpu, piece) : 0,
                         .kept = kept,
                         .size = size,
                         .prop = *prop};
    pthread_mutex_lock(&mutex);
    h->next = handles;
    handles = h;
    pthread_mutex_unlock(&mutex);
    *out = (unsigned long long)(uintptr_t)h;
    return CUDA_SUCCESS;
}

/* The descriptor of new memory, which is counted; -1: the GPU is full, or the host. */
static int new_memory(struct gpu *gpu, uint64_t size, bool exportable) {
    int fd = exportable ? gpu_piece_make(gpu) : memory_file(size);
    bool counted = fd >= 0 && (exportable ? heap_book_piece(gpu, fd, size) : heap_book(gpu, size));
    if (counted)
        return fd;
    if (exportable)
        gpu_piece_close(gpu, fd);
    else if (fd >= 0)
        close(fd);
    return -1;
}

API CUresult cuMemCreate(unsigned long long *out, size_t size, const struct allocation_prop *prop,
                         unsigned long long flags) {
    TRY(sim_ready());
    if (!out || !prop || flags || !size || size % BLOCK || prop->location_type != 1 || sim_device(prop->location_id))
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = &sim_gpu[prop->location_id];
    bool exportable = prop->handle_types & 1;
    int fd = gpu->slot >= 0 || gpu_claim(gpu) ? new_memory(gpu, size, exportable) : -1;
    CUresult r = fd >= 0 ? new_handle(out, fd, size, prop) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r && exportable)
        gpu_piece_close(gpu, fd);
    else if (r && fd >= 0) {
        close(fd);
        gpu_release(gpu, size);
    }
    return r;
}

API CUresult cuMemRelease(unsigned long long value) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h)
        unref(h);
    pthread_mutex_unlock(&mutex);
    return h || multicast_release(value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags) {
    TRY(sim_ready());
    (void)hint;
    if (!out || !size || size % BLOCK || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    *out = address_range(size, alignment < BLOCK ? BLOCK : alignment);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    TRY(sim_ready());
    return munmap((void *)(uintptr_t)address, size) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Mutex held. */
static void *map_memory(struct handle *h, uint64_t address, uint64_t size, uint64_t offset) {
    void *at = (void *)(uintptr_t)address;
    if (h->piece >= 0)
        return gpu_piece_map(&sim_gpu[h->device], memory_of(h), at, size, offset, PROT_NONE);
    return mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, h->fd, (off_t)offset);
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, unsigned long long value,
                      unsigned long long flags) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct handle *h = handle_of(value);
    if (h && !flags && size && size % BLOCK == 0 && offset <= h->size && size <= h->size - offset) {
        struct mapping *m = calloc(1, sizeof *m);
        void *at = m ? map_memory(h, address, size, offset) : MAP_FAILED;
        if (at == MAP_FAILED) {
            free(m);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *m = (struct mapping){address, size, h, mappings};
            mappings = m;
            h->references++;
            r = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    TRY(sim_ready());
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (struct mapping **p = &mappings; *p;) {
        struct mapping *m = *p;
        if (m->address < address || m->address + m->size > address + size) {
            p = &m->next;
            continue;
        }
        mmap((void *)(uintptr_t)m->address, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
        *p = m->next;
        unref(m->handle);
        free(m);
        found = true;
    }
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct access_desc { /* CUmemAccessDesc */
    int location_type, location_id, flags;
};

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access_desc *desc, size_t n) {
    TRY(sim_ready());
    if (!desc || !n)
        return CUDA_ERROR_INVALID_VALUE;
    int access = desc[0].flags == 3 ? PROT_READ | PROT_WRITE : desc[0].flags == 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)address, size, access) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(unsigned long long *out, void *address) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct mapping *m = mappings;
    while (m && (uint64_t)(uintptr_t)address - m->address >= m->size)
        m = m->next;
    if (m) {
        m->handle->references++;
        *out = (unsigned long long)(uintptr_t)m->handle;
    }
    pthread_mutex_unlock(&mutex);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct handle *vmm_hold(unsigned long long value) {
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h)
        h->references++;
    pthread_mutex_unlock(&mutex);
    return h;
}

struct handle *vmm_hold_mapped(uint64_t address) {
    unsigned long long value;
    return cuMemRetainAllocationHandle(&value, (void *)(uintptr_t)address) ? NULL : (struct handle *)(uintptr_t)value;
}

void vmm_drop(struct handle *h) {
    pthread_mutex_lock(&mutex);
    unref(h);
    pthread_mutex_unlock(&mutex);
}

API CUresult cuMemGetAllocationPropertiesFromHandle(struct allocation_prop *out, unsigned long long value) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h)
        *out = h->prop;
    pthread_mutex_unlock(&mutex);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemExportToShareableHandle(void *out, unsigned long long value, int type, unsigned long long flags) {
    TRY(sim_ready());
    if (type != 1 || flags) /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    bool exportable = h && h->piece >= 0;
    /* an open file of its own, as with real drivers */
    int fd = exportable ? gpu_piece_open(&sim_gpu[h->device], h->piece, h->generation) : -1;
    pthread_mutex_unlock(&mutex);
    if (!exportable) /* only with CUmemAllocationProp::requestedHandleTypes */
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    sim_shares = true;
    return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(unsigned long long *out, void *os_handle, int type) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (type != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct allocation_prop prop = {.type = 1, .handle_types = 1, .location_type = 1, .location_id = ctx->device};
    struct gpu *gpu = NULL;
    int piece = -1;
    for (int i = 0; i < sim_gpus && piece < 0; i++) /* the memory may be another GPU's than the current context's */
        if ((piece = gpu_piece_of(gpu = &sim_gpu[i], (int)(intptr_t)os_handle)) >= 0)
            prop.location_id = i;
    int fd = piece >= 0 ? fcntl((int)(intptr_t)os_handle, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_shares = true;
    CUresult r = new_handle(out, fd, gpu_piece_bytes(gpu, piece), &prop);
    if (r)
        gpu_piece_close(gpu, fd);
    return r;
}
