/* Simulated libcuda: virtual memory management, and memory from other processes and other APIs. Memory that can be shared
 * is a sparse memory file; it counts once, for the process that made it. */
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
    bool imported;
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

/* Mutex held. */
static void unref(struct handle *h) {
    if (--h->references)
        return;
    for (struct handle **p = &handles; *p; p = &(*p)->next)
        if (*p == h) {
            *p = h->next;
            break;
        }
    if (!h->imported)
        gpu_release(&sim_gpu[h->device], h->size);
    close(h->fd);
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

static CUresult new_handle(unsigned long long *out, int fd, uint64_t size, const struct allocation_prop *prop,
                           bool imported) {
    struct handle *h = calloc(1, sizeof *h);
    if (!h)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct handle){HANDLE_MAGIC, fd, prop->location_id, 1, imported, size, *prop, NULL};
    pthread_mutex_lock(&mutex);
    h->next = handles;
    handles = h;
    pthread_mutex_unlock(&mutex);
    *out = (unsigned long long)(uintptr_t)h;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(unsigned long long *out, size_t size, const struct allocation_prop *prop,
                         unsigned long long flags) {
    TRY(sim_ready());
    if (!out || !prop || flags || !size || size % BLOCK || prop->location_type != 1 || sim_device(prop->location_id))
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = &sim_gpu[prop->location_id];
    if ((gpu->slot < 0 && !gpu_claim(gpu)) || !heap_book(gpu, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = memory_file(size);
    CUresult r = fd >= 0 ? new_handle(out, fd, size, prop, false) : CUDA_ERROR_OPERATING_SYSTEM;
    if (r) {
        if (fd >= 0)
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
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, unsigned long long value,
                      unsigned long long flags) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct handle *h = handle_of(value);
    if (h && !flags && size && size % BLOCK == 0 && offset <= h->size && size <= h->size - offset) {
        struct mapping *m = calloc(1, sizeof *m);
        void *at = m ? mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, h->fd,
                            (off_t)offset)
                     : MAP_FAILED;
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
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", h ? h->fd : -1);
    int fd = h ? open(path, O_RDWR | O_CLOEXEC) : -1; /* an open file of its own, as with real drivers */
    pthread_mutex_unlock(&mutex);
    if (!h)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

/* An import does not count: the memory counts once, for the exporter. */
API CUresult cuMemImportFromShareableHandle(unsigned long long *out, void *os_handle, int type) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (type != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = dup((int)(intptr_t)os_handle);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size <= 0) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct allocation_prop prop = {.type = 1, .handle_types = 1, .location_type = 1, .location_id = ctx->device};
    CUresult r = new_handle(out, fd, (uint64_t)size, &prop, true);
    if (r)
        close(fd);
    return r;
}

/* --- IPC handles: the path of the exporter's memory file, which another process of the same user can open --- */

struct ipc_handle { /* within CUipcMemHandle, 64 bytes */
    uint64_t magic;
    int32_t pid, fd;
    uint64_t offset, size;
    char uuid[32];
};

#define IPC_MAGIC 0x6970632d73696d21ull

static struct shared { /* an allocation with a file, or an importer's mapping of one */
    uint64_t address, size;
    int fd;
    bool imported;
    unsigned opened;
    struct ipc_handle handle;
    struct shared *next;
} *shared;

/* Mutex held. Replaces an allocation's private memory by a memory file. */
static struct shared *share(const struct piece *p) {
    for (struct shared *s = shared; s; s = s->next)
        if (s->address == p->address && s->size == p->size && !s->imported)
            return s;
    struct shared *s = calloc(1, sizeof *s);
    int fd = s ? memory_file(p->mapped) : -1;
    uint8_t *old = (uint8_t *)(uintptr_t)p->address;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, p->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        free(s);
        return NULL;
    }
    unsigned char resident;
    for (uint64_t i = 0; i < p->mapped; i += 4096) /* copies only pages that were ever touched */
        if (!mincore(old + i, 4096, &resident) && resident & 1)
            memcpy((uint8_t *)at + i, old + i, 4096);
    mremap(at, p->mapped, p->mapped, MREMAP_MAYMOVE | MREMAP_FIXED, old);
    *s = (struct shared){p->address, p->size, fd, false, 0, {0}, shared};
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
    if (s) {
        *out = (struct ipc_handle){IPC_MAGIC, getpid(), s->fd, 0, p.size, ""};
        memcpy(out->uuid, sim_gpu_of(p.ctx)->file->head.uuid + 4, sizeof out->uuid);
    }
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
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle.pid, (int)handle.fd);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        uint64_t mapped = round_up(handle.size, 4096);
        struct stat st;
        void *at = MAP_FAILED;
        if (fd >= 0 && !fstat(fd, &st) && (uint64_t)st.st_size >= mapped)
            at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (fd >= 0)
            close(fd);
        if (at != MAP_FAILED) {
            *out = (uint64_t)(uintptr_t)at;
            *s = (struct shared){*out, handle.size, -1, true, 1, handle, shared};
            shared = s;
            r = heap_note((struct piece){*out, handle.size, mapped, ctx, IMPORTED, NULL});
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

/* Closes the file of an allocation that is freed. */
void ipc_forget(uint64_t address) {
    pthread_mutex_lock(&mutex);
    for (struct shared **p = &shared; *p; p = &(*p)->next)
        if ((*p)->address == address && !(*p)->imported) {
            struct shared *s = *p;
            *p = s->next;
            close(s->fd);
            free(s);
            break;
        }
    pthread_mutex_unlock(&mutex);
}

/* --- external memory: another API's file, such as a Vulkan allocation; it does not count --- */

struct external {
    int fd;
    uint64_t size;
};

struct external_desc { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
};

struct external_buffer { /* CUDA_EXTERNAL_MEMORY_BUFFER_DESC */
    unsigned long long offset, size;
    unsigned flags, reserved[16];
};

API CUresult cuImportExternalMemory(struct external **out, const struct external_desc *desc) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !desc || desc->type != 1 || !desc->size) /* an opaque file descriptor */
        return CUDA_ERROR_INVALID_VALUE;
    struct external *e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *e = (struct external){desc->handle.fd, desc->size}; /* the driver owns the descriptor now */
    *out = e;
    return CUDA_SUCCESS;
}

API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, struct external *e, const struct external_buffer *desc) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !e || !desc || desc->offset % 4096 || desc->offset > e->size || desc->size > e->size - desc->offset)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t mapped = round_up(desc->size, 4096);
    void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, (off_t)desc->offset);
    if (at == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (uint64_t)(uintptr_t)at;
    return heap_note((struct piece){*out, desc->size, mapped, ctx, IMPORTED, NULL});
}

API CUresult cuDestroyExternalMemory(struct external *e) {
    TRY(sim_ready());
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    close(e->fd);
    free(e);
    return CUDA_SUCCESS;
}
