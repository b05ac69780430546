/* Simulated libcuda: the faults that `gpu-hook sim fault` writes into the GPU's head, for tests. */
#define _GNU_SOURCE
#include "driver.h"

#include <time.h>

/* Called by every driver function that checks whether the driver is initialised. Between threads, chance decides whose
 * call is the N-th. */
CUresult fault(void) {
    static _Atomic uint32_t calls, draws;
    if (!sim_gpus)
        return CUDA_SUCCESS;
    for (int i = 0; i < sim_gpus; i++)
        if (sim_gpu[i].file->head.lost)
            return CUDA_ERROR_UNKNOWN;
    const struct gpu_head *h = &sim_gpu[0].file->head;
    uint32_t fail = h->fail_every, block = h->block_every;
    if (!fail && !block)
        return CUDA_SUCCESS;
    uint32_t n = atomic_fetch_add(&calls, 1) + 1;
    if (block && n % block == 0) {
        uint32_t most = h->block_us < 50000 ? h->block_us : 50000;
        uint64_t us = atomic_fetch_add(&draws, 0x9e3779b9u) * (uint64_t)(most + 1) >> 32;
        nanosleep(&(struct timespec){0, (long)us * 1000}, NULL);
    }
    return fail && n % fail == 0 ? (CUresult)h->fail_code : CUDA_SUCCESS;
}

/* How many real nanoseconds one nanosecond of GPU time takes, for programs that sleep between launches. */
API CUresult gpuHookSimulatedTimeScale(CUdevice dev, unsigned *scale) {
    TRY(sim_device(dev));
    if (!scale)
        return CUDA_ERROR_INVALID_VALUE;
    *scale = (unsigned)gpu_scale(sim_gpu[dev].file);
    return CUDA_SUCCESS;
}
