/* Simulated libcuda: virtual memory management. Memory that was exported counts once, until its last handle, mapping,
 * exported descriptor and import are gone, in whatever process. */
#define _GNU_SOURCE
#include "backing.h"

#include <stdlib.h>
#include <sys/mman.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct allocation_prop { /* head of CUmemAllocationProp */
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char flags[8];
};

struct handle {
    int device;
    int handles;    /* returned to the program, and not released yet: without any, its value means nothing */
    int references; /* these, and all else that holds the memory */
    bool multicast; /* an object to which memory is bound: it has none itself */
    struct backing memory;
    struct allocation_prop prop;
    struct handle *next;
};

struct mapping {
    uint64_t address, size, offset;
    struct handle *handle;
    int access; /* as cuMemSetAccess set it last, for all of the mapping: CU_MEM_ACCESS_FLAGS_PROT_... */
    struct mapping *next;
};

struct reservation { /* of addresses */
    uint64_t address, size;
    struct reservation *next;
};

static struct handle *handles, *gone; /* gone: multicast objects whose bindings end once the mutex is free */
static struct mapping *mappings;
static struct reservation *reservations;

/* Mutex held. */
static bool maps_within(uint64_t address, uint64_t size) {
    const struct mapping *m = mappings;
    while (m && (address + size <= m->address || m->address + m->size <= address))
        m = m->next;
    return m;
}

/* Mutex held. Addresses of one reservation where nothing is mapped. */
static bool reserved(uint64_t address, uint64_t size) {
    const struct reservation *r = reservations;
    while (r && (address < r->address || address - r->address > r->size || size > r->size - (address - r->address)))
        r = r->next;
    return r && !maps_within(address, size);
}

/* Mutex held. */
static struct handle *handle_of(unsigned long long value) {
    struct handle *h = handles;
    while (h && ((uint64_t)(uintptr_t)h != value || !h->handles))
        h = h->next;
    return h;
}

/* Mutex held. Of memory, not of a multicast object. */
static struct handle *memory_of(unsigned long long value) {
    struct handle *h = handle_of(value);
    return h && !h->multicast ? h : NULL;
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
    if (h->multicast) {
        h->next = gone;
        gone = h;
        return;
    }
    backing_drop(&sim_gpu[h->device], &h->memory);
    free(h);
}

static void unlock(void) {
    struct handle *list = gone;
    gone = NULL;
    pthread_mutex_unlock(&mutex);
    for (struct handle *next; list; list = next) {
        next = list->next;
        holder_gone(list);
        free(list);
    }
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const struct allocation_prop *prop, int option) {
    TRY(sim_ready());
    (void)option;
    if (!out || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *out = BLOCK;
    return CUDA_SUCCESS;
}

static unsigned long long add(struct handle *h) {
    pthread_mutex_lock(&mutex);
    h->next = handles;
    handles = h;
    pthread_mutex_unlock(&mutex);
    return (unsigned long long)(uintptr_t)h;
}

static CUresult new_handle(unsigned long long *out, struct backing memory, const struct allocation_prop *prop) {
    struct handle *h = calloc(1, sizeof *h);
    if (!h) {
        backing_drop(&sim_gpu[prop->location_id], &memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *h = (struct handle){.device = prop->location_id, .handles = 1, .references = 1, .memory = memory, .prop = *prop};
    *out = add(h);
    return CUDA_SUCCESS;
}

unsigned long long vmm_multicast(uint64_t size) {
    struct handle *h = calloc(1, sizeof *h);
    if (h)
        *h = (struct handle){.handles = 1, .references = 1, .multicast = true, .memory = {.size = size, .piece = -1}};
    return h ? add(h) : 0;
}

uint64_t vmm_multicast_size(unsigned long long value) {
    pthread_mutex_lock(&mutex);
    const struct handle *h = handle_of(value);
    uint64_t size = h && h->multicast ? h->memory.size : 0;
    pthread_mutex_unlock(&mutex);
    return size;
}

API CUresult cuMemCreate(unsigned long long *out, size_t size, const struct allocation_prop *prop,
                         unsigned long long flags) {
    struct backing memory;
    TRY(sim_ready());
    if (!out || !prop || flags || !size || size % BLOCK || prop->location_type != 1 || sim_device(prop->location_id))
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->handle_types & ~1) /* fabric handles need NVSwitches and their service; torch then takes descriptors */
        return CUDA_ERROR_NOT_SUPPORTED;
    struct gpu *gpu = &sim_gpu[prop->location_id];
    if ((gpu->slot < 0 && !gpu_claim(gpu)) || !backing_make(gpu, size, &memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return new_handle(out, memory, prop);
}

API CUresult cuMemRelease(unsigned long long value) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h) {
        h->handles--;
        unref(h);
    }
    unlock();
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags) {
    TRY(sim_ready());
    (void)hint;
    if (!out || !size || size % BLOCK || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    struct reservation *r = calloc(1, sizeof *r);
    uint64_t address = r ? address_range(size, alignment < BLOCK ? BLOCK : alignment) : 0;
    if (!address) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&mutex);
    *r = (struct reservation){address, size, reservations};
    reservations = r;
    pthread_mutex_unlock(&mutex);
    *out = address;
    return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    struct reservation **p = &reservations, *r = NULL;
    while (*p && ((*p)->address != address || (*p)->size != size))
        p = &(*p)->next;
    if (*p && !maps_within(address, size)) {
        r = *p;
        *p = r->next;
        munmap((void *)(uintptr_t)address, size);
    }
    pthread_mutex_unlock(&mutex);
    free(r);
    return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, unsigned long long value,
                      unsigned long long flags) {
    TRY(sim_ready());
    pthread_mutex_lock(&mutex);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct handle *h = handle_of(value);
    if (h && !flags && size && size % BLOCK == 0 && offset <= h->memory.size && size <= h->memory.size - offset &&
        reserved(address, size)) {
        struct mapping *m = calloc(1, sizeof *m);
        void *there = (void *)(uintptr_t)address;
        void *at = !m             ? MAP_FAILED
                   : h->multicast ? there
                                  : backing_map(&sim_gpu[h->device], &h->memory, there, size, offset, PROT_NONE);
        if (at == MAP_FAILED) {
            free(m);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *m = (struct mapping){address, size, offset, h, 0, mappings};
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
    unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct access_desc { /* CUmemAccessDesc */
    int location_type, location_id, flags;
};

static int protection(int access) { return access == 3 ? PROT_READ | PROT_WRITE : access == 1 ? PROT_READ : PROT_NONE; }

/* Mutex held. */
static struct mapping *mapping_at(uint64_t address) {
    struct mapping *m = mappings;
    while (m && address - m->address >= m->size)
        m = m->next;
    return m;
}

/* Mutex held. */
static bool all_mapped(uint64_t address, uint64_t size) {
    const struct mapping *m = NULL;
    for (uint64_t at = address; at - address < size; at = m->address + m->size)
        if (!(m = mapping_at(at)))
            return false;
    return size;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access_desc *desc, size_t n) {
    TRY(sim_ready());
    if (!desc || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        if (desc[i].location_type != 1) /* CU_MEM_LOCATION_TYPE_DEVICE, as all memory here */
            return CUDA_ERROR_INVALID_VALUE;
        TRY(sim_device(desc[i].location_id));
    }
    pthread_mutex_lock(&mutex);
    bool ok = all_mapped(address, size) && !mprotect((void *)(uintptr_t)address, size, protection(desc[0].flags));
    for (struct mapping *m = mappings; ok && m; m = m->next)
        if (m->address < address + size && address < m->address + m->size)
            m->access = desc[0].flags;
    pthread_mutex_unlock(&mutex);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const struct access_desc *where, CUdeviceptr address) {
    TRY(sim_ready());
    if (!flags || !where) /* `where` is a CUmemLocation: the first two fields of a CUmemAccessDesc */
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    const struct mapping *m = mapping_at(address);
    bool here = m && where->location_type == 1 && where->location_id == m->handle->device;
    if (m)
        *flags = here ? (unsigned long long)m->access : 0;
    pthread_mutex_unlock(&mutex);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool vmm_holding(uint64_t address, struct piece *out) {
    pthread_mutex_lock(&mutex);
    const struct mapping *m = mapping_at(address);
    if (m)
        *out = (struct piece){.address = m->address,
                              .size = m->size,
                              .kind = MAPPED,
                              .device = m->handle->device,
                              .exportable = m->handle->prop.handle_types & 1,
                              .access = m->access};
    pthread_mutex_unlock(&mutex);
    return m;
}

API CUresult cuMemRetainAllocationHandle(unsigned long long *out, void *address) {
    TRY(sim_ready());
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct mapping *m = mapping_at((uint64_t)(uintptr_t)address);
    if (m) {
        m->handle->handles++;
        m->handle->references++;
        *out = (unsigned long long)(uintptr_t)m->handle;
    }
    pthread_mutex_unlock(&mutex);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct handle *vmm_hold(unsigned long long value) {
    pthread_mutex_lock(&mutex);
    struct handle *h = memory_of(value);
    if (h)
        h->references++;
    pthread_mutex_unlock(&mutex);
    return h;
}

struct handle *vmm_hold_mapped(uint64_t address) {
    pthread_mutex_lock(&mutex);
    const struct mapping *m = mapping_at(address);
    struct handle *h = m && !m->handle->multicast ? m->handle : NULL;
    if (h)
        h->references++;
    pthread_mutex_unlock(&mutex);
    return h;
}

void vmm_drop(struct handle *h) {
    pthread_mutex_lock(&mutex);
    unref(h);
    unlock();
}

API CUresult cuMemGetAllocationPropertiesFromHandle(struct allocation_prop *out, unsigned long long value) {
    TRY(sim_ready());
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct handle *h = handle_of(value);
    if (h)
        *out = h->prop;
    pthread_mutex_unlock(&mutex);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Mutex held. The memory becomes a piece, also where it is mapped. */
static bool share(struct handle *h) {
    struct gpu *gpu = &sim_gpu[h->device];
    if (h->memory.piece >= 0)
        return true;
    if (!backing_share(gpu, &h->memory))
        return false;
    for (const struct mapping *m = mappings; m; m = m->next)
        if (m->handle == h)
            backing_map(gpu, &h->memory, (void *)(uintptr_t)m->address, m->size, m->offset, protection(m->access));
    return true;
}

API CUresult cuMemExportToShareableHandle(void *out, unsigned long long value, int type, unsigned long long flags) {
    TRY(sim_ready());
    if (type != 1 || flags) /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&mutex);
    struct handle *h = memory_of(value);
    bool exportable = h && out && h->prop.handle_types & 1;
    /* an open file of its own, as with real drivers */
    int fd = exportable && share(h) ? backing_open(&sim_gpu[h->device], &h->memory) : -1;
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
    struct backing memory;
    int i = 0, fd = (int)(intptr_t)os_handle;
    while (i < sim_gpus && gpu_piece_of(&sim_gpu[i], fd) < 0) /* it may be another GPU's than the current context's */
        i++;
    if (!out || i == sim_gpus || !backing_adopt(&sim_gpu[i], fd, &memory))
        return CUDA_ERROR_INVALID_VALUE;
    prop.location_id = i;
    sim_shares = true;
    return new_handle(out, memory, &prop);
}
