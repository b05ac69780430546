/* Simulated libcuda: the memory of graphs. The device's graph pool grows when a launch needs more than it has and keeps
 * freed memory; only cuDeviceGraphMemTrim releases it. */
#define _GNU_SOURCE
#include "graph.h"

#include <sys/mman.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t used, used_high, reserved, reserved_high;
} memory[GPU_MAX];

CUresult graph_memory_grow(int device, uint64_t peak, uint64_t lasting) {
    struct gpu *gpu = &sim_gpu[device];
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    uint64_t need = round_up(memory[device].used + peak, BLOCK);
    if (need > memory[device].reserved) {
        if (heap_book(gpu, need - memory[device].reserved))
            memory[device].reserved = need;
        else
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!r) {
        if (memory[device].reserved > memory[device].reserved_high)
            memory[device].reserved_high = memory[device].reserved;
        if (memory[device].used + peak > memory[device].used_high)
            memory[device].used_high = memory[device].used + peak;
        memory[device].used += lasting;
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

void graph_memory_free(struct piece piece) {
    pthread_mutex_lock(&mutex);
    memory[piece.ctx->device].used -= piece.size;
    pthread_mutex_unlock(&mutex);
    madvise((void *)(uintptr_t)piece.address, piece.size, MADV_DONTNEED);
}

API CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    TRY(sim_device(dev));
    pthread_mutex_lock(&mutex);
    uint64_t keep = round_up(memory[dev].used, BLOCK);
    if (memory[dev].reserved > keep) {
        gpu_release(&sim_gpu[dev], memory[dev].reserved - keep);
        memory[dev].reserved = keep;
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, uint64_t *value) {
    TRY(sim_device(dev));
    if (!value || attribute < 0 || attribute > 3)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    const uint64_t figures[] = {memory[dev].used, memory[dev].used_high, memory[dev].reserved,
                                memory[dev].reserved_high};
    *value = figures[attribute];
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, int attribute, const uint64_t *value) {
    TRY(sim_device(dev));
    if (!value || *value || (attribute != 1 && attribute != 3)) /* only the high marks can be set, and only to 0 */
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    if (attribute == 1)
        memory[dev].used_high = memory[dev].used;
    else
        memory[dev].reserved_high = memory[dev].reserved;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
