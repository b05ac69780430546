/* Simulated libcuda: faults that tests ask for in the GPU's head, and controls of channel groups. */
#define _GNU_SOURCE
#include "driver.h"

#include <time.h>

/* At every entry of the driver that asks for its state. Which of two threads' calls is the N-th is left to chance. */
CUresult fault(void)
{
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

/* What the kernel driver's channel-group controls do on some machines: act, be accepted without effect, or be refused.
 * Of the simulated driver alone; no real libcuda has it. A slice in microseconds of GPU time, 0 the GPU's own; off:
 * the context's kernels are not scheduled; preempt: its present turn ends now. */
enum { SIMULATED_TSG_SLICE_US = 1, SIMULATED_TSG_OFF = 2, SIMULATED_TSG_PREEMPT = 3 };

API CUresult gpuHookSimulatedTsgControl(CUcontext ctx, int control, uint64_t value)
{
    TRY(sim_ready());
    if (!ctx)
        TRY(sim_context(&ctx));
    if (!sim_context_valid(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    struct gpu *gpu = sim_gpu_of(ctx);
    struct gpu_group *g = &gpu->file->group[ctx->group];
    if (control < SIMULATED_TSG_SLICE_US || control > SIMULATED_TSG_PREEMPT || value > 100000000)
        return CUDA_ERROR_INVALID_VALUE;
    if (gpu->file->head.tsg_mode != TSG_WORK)
        return gpu->file->head.tsg_mode == TSG_INERT ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&gpu->mutex);
    gpu_advance(gpu, false); /* what was before it is as it was */
    switch (control) {
    case SIMULATED_TSG_SLICE_US: atomic_store(&g->slice_ns, value * 1000); break;
    case SIMULATED_TSG_OFF: atomic_store(&g->off, value != 0); break;
    default: atomic_store(&g->preempt_ns, gpu_now(gpu->file));
    }
    gpu_advance(gpu, false);
    pthread_mutex_unlock(&gpu->mutex);
    return CUDA_SUCCESS;
}

/* How many real nanoseconds one of GPU time takes; programs that sleep between launches must know it. */
API CUresult gpuHookSimulatedTimeScale(CUdevice dev, unsigned *scale)
{
    TRY(sim_device(dev));
    if (!scale)
        return CUDA_ERROR_INVALID_VALUE;
    *scale = (unsigned)gpu_scale(sim_gpu[dev].file);
    return CUDA_SUCCESS;
}
