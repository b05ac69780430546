/* Simulated libcuda: settings of contexts, devices and the driver that change nothing here, and are checked and kept. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <string.h>

/* --- contexts --- */

API CUresult cuCtxAttach(CUcontext *out, unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    ctx->attached++;
    *out = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxDetach(CUcontext ctx) {
    TRY(sim_ready());
    if (!sim_context_valid(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx->attached)
        return cuCtxDestroy_v2(ctx);
    ctx->attached--;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (flags & ~0xffu)
        return CUDA_ERROR_INVALID_VALUE;
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetSharedMemConfig(int *config) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = 1; /* CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE: GPUs since 5.0 have no other */
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetSharedMemConfig(int config) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuCtxGetCacheConfig(int *config) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = 0;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCacheConfig(int config) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuCtxResetPersistingL2Cache(void) {
    CUcontext ctx;
    return sim_context(&ctx);
}

/* A number of multiprocessors for a context is a matter of MPS (CU_EXEC_AFFINITY_TYPE_SM_COUNT = 0). */
API CUresult cuDeviceGetExecAffinitySupport(int *out, int type, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out || type)
        return CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetExecAffinity(void *out, int type) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return !out || type ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

/* --- peers: simulated GPUs do not reach each other's memory (cuDeviceCanAccessPeer) --- */

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (flags || !sim_context_valid(peer) || peer == ctx)
        return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return sim_context_valid(peer) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuDeviceGetP2PAttribute(int *out, int attribute, CUdevice from, CUdevice to) {
    TRY(sim_device(from));
    TRY(sim_device(to));
    if (!out || attribute < 1 || attribute > 5 || from == to)
        return from == to ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *out = 0; /* rank, and four things that are not supported */
    return CUDA_SUCCESS;
}

/* Writes of other PCI devices; no GPU here lets them reach it (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED). */
API CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return target || (scope != 100 && scope != 200) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

/* --- devices --- */

struct properties { /* CUdevprop */
    int threads, block[3], grid[3], shared, constant, warp, pitch, registers, clock, texture_align;
};

API CUresult cuDeviceGetProperties(struct properties *out, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct properties){
        1024, {1024, 1024, 64}, {2147483647, 65535, 65535}, 49152, 65536, 32, 2147483647, 65536, 1000000, 512};
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *out, int format, unsigned channels, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out || !format || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    *out = 1u << 28;
    return CUDA_SUCCESS;
}

/* --- the profiler's interface, and core dumps: kept for all of the process --- */

API CUresult cuProfilerInitialize(const char *configuration, const char *output, int mode) {
    (void)configuration, (void)output, (void)mode;
    TRY(sim_ready());
    return CUDA_ERROR_NOT_SUPPORTED; /* since CUDA 11 */
}

API CUresult cuProfilerStart(void) {
    CUcontext ctx;
    return sim_context(&ctx);
}

API CUresult cuProfilerStop(void) {
    CUcontext ctx;
    return sim_context(&ctx);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char dump_file[1024], dump_pipe[1024];
static int dump_flag
    [9]; /* CU_COREDUMP_ENABLE_ON_EXCEPTION = 1, _TRIGGER_HOST, _LIGHTWEIGHT, _ENABLE_USER_TRIGGER; _GENERATION_FLAGS = 7 */

/* The text of an attribute, or NULL; the flag's place, or NULL. */
static char *dump_text(int attribute) { return attribute == 5 ? dump_file : attribute == 6 ? dump_pipe : NULL; }
static int *dump_number(int attribute) {
    return (attribute >= 1 && attribute <= 4) || attribute == 7 ? &dump_flag[attribute] : NULL;
}

static CUresult dump(int attribute, void *value, size_t *bytes, bool set) {
    TRY(sim_ready());
    char *text = dump_text(attribute);
    int *flag = dump_number(attribute);
    size_t own = attribute == 7 ? sizeof(int) : sizeof(bool);
    if (!bytes || (!text && !flag) || (set && (!value || *bytes > sizeof dump_file)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    size_t needed = text ? strlen(text) + 1 : own;
    if (set && text)
        snprintf(text, sizeof dump_file, "%.*s", (int)*bytes, (const char *)value);
    else if (set && *bytes == own)
        memcpy(flag, value, own);
    else if (set)
        r = CUDA_ERROR_INVALID_VALUE;
    else if (value && *bytes < needed)
        r = CUDA_ERROR_INVALID_VALUE;
    else if (value)
        memcpy(value, text ? (void *)text : flag, needed);
    if (!set)
        *bytes = needed;
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuCoredumpGetAttributeGlobal(int attribute, void *value, size_t *bytes) {
    return dump(attribute, value, bytes, false);
}
API CUresult cuCoredumpSetAttributeGlobal(int attribute, void *value, size_t *bytes) {
    return dump(attribute, value, bytes, true);
}
API CUresult cuCoredumpGetAttribute(int attribute, void *value, size_t *bytes) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return dump(attribute, value, bytes, false);
}
API CUresult cuCoredumpSetAttribute(int attribute, void *value, size_t *bytes) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return dump(attribute, value, bytes, true);
}
