/* Simulated libcuda: what holds memory of cuMemCreate besides handles and mappings: sparse arrays and multicast objects.
 * Memory that they hold is in use, although its handle was released. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct place { /* what a piece of memory is bound to */
    const void *owner;
    uint32_t region[8]; /* of a sparse array */
    uint64_t offset, size;
};

static struct bound {
    struct place at;
    struct handle *memory;
    struct bound *next;
} *bounds;

/* Takes the bindings of an owner in a place (NULL: in all) out of the list. Mutex held. */
static struct bound *take(const void *owner, const struct place *at) {
    struct bound *taken = NULL;
    for (struct bound **p = &bounds; *p;) {
        struct bound *b = *p;
        bool same = at && !memcmp(b->at.region, at->region, sizeof at->region) && b->at.offset == at->offset;
        if (b->at.owner == owner && (!at || same)) {
            *p = b->next;
            b->next = taken;
            taken = b;
        } else
            p = &b->next;
    }
    return taken;
}

static bool unbind(const void *owner, const struct place *at) {
    pthread_mutex_lock(&mutex);
    struct bound *taken = take(owner, at);
    pthread_mutex_unlock(&mutex);
    bool any = taken != NULL;
    for (struct bound *next; taken; taken = next) {
        next = taken->next;
        vmm_drop(taken->memory);
        free(taken);
    }
    return any;
}

void holder_gone(const void *owner) { unbind(owner, NULL); }

static CUresult bind(const struct place *at, struct handle *memory) {
    struct bound *b = memory ? calloc(1, sizeof *b) : NULL;
    if (!b) {
        if (memory)
            vmm_drop(memory);
        return memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    unbind(at->owner, at);
    *b = (struct bound){*at, memory, NULL};
    pthread_mutex_lock(&mutex);
    b->next = bounds;
    bounds = b;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* --- sparse arrays --- */

struct map_info { /* CUarrayMapInfo */
    int resource_type;
    const void *resource;
    int subresource_type;
    union {
        struct {
            uint32_t level, layer, offset[3], extent[3];
        } sparse;
        struct {
            uint32_t layer;
            unsigned long long offset, size;
        } tail;
    } subresource;
    int operation; /* CU_MEM_OPERATION_TYPE_MAP = 1, _UNMAP = 2 */
    int handle_type;
    unsigned long long handle, offset;
    unsigned device_mask, flags, reserved[2];
};

_Static_assert(sizeof(struct map_info) == 96, "CUarrayMapInfo");

static CUresult map_array(const struct map_info *list, unsigned n, CUstream handle) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    for (unsigned i = 0; list && i < n; i++) {
        struct place at = {.owner = list[i].resource};
        if (!array_is_sparse(list[i].resource) || list[i].operation < 1 || list[i].operation > 2)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(at.region, &list[i].subresource, sizeof at.region);
        if (list[i].operation == 2)
            unbind(at.owner, &at);
        else
            TRY(bind(&at, vmm_hold(list[i].handle)));
    }
    return list || !n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemMapArrayAsync(const struct map_info *list, unsigned n, CUstream s) { return map_array(list, n, s); }
API CUresult cuMemMapArrayAsync_ptsz(const struct map_info *list, unsigned n, CUstream s) {
    return map_array(list, n, PER_THREAD(s));
}

/* --- multicast objects: they take no memory of their own --- */

struct multicast_prop { /* CUmulticastObjectProp */
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
};

API CUresult cuMulticastGetGranularity(size_t *out, const struct multicast_prop *prop, int option) {
    TRY(sim_ready());
    (void)option;
    if (!out || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *out = BLOCK;
    return CUDA_SUCCESS;
}

API CUresult cuMulticastCreate(unsigned long long *out, const struct multicast_prop *prop) {
    TRY(sim_ready());
    if (!out || !prop || !prop->devices || !prop->size || prop->size % BLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    *out = vmm_multicast(prop->size);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool is_multicast(unsigned long long object, uint64_t end) {
    uint64_t size = vmm_multicast_size(object);
    return size && end <= size;
}

API CUresult cuMulticastAddDevice(unsigned long long object, CUdevice dev) {
    TRY(sim_device(dev));
    return is_multicast(object, 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult bind_multicast(unsigned long long object, size_t offset, struct handle *memory, size_t size) {
    if (!is_multicast(object, offset + size) || !size) {
        if (memory)
            vmm_drop(memory);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return bind(&(struct place){(const void *)(uintptr_t)object, {0}, offset, size}, memory);
}

API CUresult cuMulticastBindMem(unsigned long long object, size_t offset, unsigned long long memory, size_t from,
                                size_t size, unsigned long long flags) {
    TRY(sim_ready());
    (void)from, (void)flags;
    return bind_multicast(object, offset, vmm_hold(memory), size);
}

API CUresult cuMulticastBindAddr(unsigned long long object, size_t offset, CUdeviceptr at, size_t size,
                                 unsigned long long flags) {
    TRY(sim_ready());
    (void)flags;
    return bind_multicast(object, offset, vmm_hold_mapped(at), size);
}

API CUresult cuMulticastUnbind(unsigned long long object, CUdevice dev, size_t offset, size_t size) {
    TRY(sim_device(dev));
    (void)size;
    struct place at = {.offset = offset};
    return is_multicast(object, 0) && unbind((const void *)(uintptr_t)object, &at) ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_VALUE;
}
