/* NVML's memory figures: what the container may have, and uses. */
#include "driver/nvml.h"
#include "driver/real.h"
#include "nvml/nvml_gpu.h"

/* The figures to show. If no limit is known: the driver's total, all of it in use. */
static bool view(nvmlDevice_t device, uint64_t total, struct gh_memory_view *v) {
    if (!memory_view(device, v))
        return false;
    if (!v->known)
        *v = (struct gh_memory_view){.total = total, .used = total};
    return true;
}

GH_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t r = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    struct gh_memory_view v;
    if (r == NVML_SUCCESS && view(device, memory->total, &v))
        *memory = (nvmlMemory_t){.total = v.total, .free = v.free, .used = v.used};
    return r;
}

GH_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t r = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    struct gh_memory_view v;
    if (r == NVML_SUCCESS && view(device, memory->total, &v)) {
        memory->total = v.total;
        memory->reserved = 0; /* what the driver reserves is not part of our limit */
        memory->free = v.free;
        memory->used = v.used;
    }
    return r;
}

/* The window through which the host reaches device memory: shown no larger than the limit. */
GH_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t r = REAL(nvmlDeviceGetBAR1MemoryInfo)(device, memory);
    struct gh_memory_view v;
    if (r == NVML_SUCCESS && view(device, memory->total, &v)) {
        memory->total = v.total < memory->total ? v.total : memory->total;
        memory->used = v.used < memory->total ? v.used : memory->total;
        memory->free = memory->total - memory->used;
    }
    return r;
}
