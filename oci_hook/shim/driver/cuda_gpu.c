#include "driver/cuda_gpu.h"

#include "driver/real.h"

static int find_gpu(struct gh_state *st, CUdevice device) {
    static const char digits[] = "0123456789abcdef";
    CUuuid uuid;
    /* _v2 returns the UUID of a MIG instance if there is one, the plain call the GPU's. Before 11.4 there is no _v2. */
    if (REAL(cuDeviceGetUuid_v2)(&uuid, device) && REAL(cuDeviceGetUuid)(&uuid, device))
        return NO_GPU;
    char text[37], *t = text;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *t++ = '-';
        *t++ = digits[uuid.bytes[i] >> 4];
        *t++ = digits[uuid.bytes[i] & 15];
    }
    *t = 0;
    return gh_policy_find(st, text);
}

int gpu_of_device(struct gh_state *st, CUdevice device) {
    if (device < 0 || device >= GH_DEVICES)
        return find_gpu(st, device);
    uint32_t known = atomic_load_explicit(&st->device_gpu[device], memory_order_relaxed);
    if (known)
        return (int)known - 1;
    int gpu = find_gpu(st, device);
    if (gpu >= 0)
        atomic_store_explicit(&st->device_gpu[device], (uint32_t)gpu + 1, memory_order_relaxed);
    return gpu;
}

struct place current_place(struct gh_state *st) {
    CUcontext context = NULL;
    CUdevice device;
    if (REAL(cuCtxGetCurrent)(&context) || !context)
        return (struct place){NO_CONTEXT, 0};
    uint32_t at = (uint32_t)(((uintptr_t)context >> 4) * 2654435761u >> 7) % GH_CONTEXTS;
    for (int i = 0; i < 8; i++, at = (at + 1) % GH_CONTEXTS) {
        void *there = atomic_load_explicit(&st->contexts.place[at].context, memory_order_acquire);
        uint32_t gpu = atomic_load_explicit(&st->contexts.place[at].gpu, memory_order_acquire);
        if (there == context && gpu)
            return (struct place){(int)gpu - 1, at + 1};
        if (there && there != context)
            continue;
        if (REAL(cuCtxGetDevice)(&device))
            return (struct place){NO_CONTEXT, 0};
        int found = gpu_of_device(st, device);
        if (!there && !atomic_compare_exchange_strong(&st->contexts.place[at].context, &there, context) &&
            there != context)
            continue;
        if (found >= 0)
            atomic_store_explicit(&st->contexts.place[at].gpu, (uint32_t)found + 1, memory_order_release);
        return (struct place){found, at + 1};
    }
    /* More contexts than the table holds: ask the driver each time, and do not release memory with its context. */
    if (REAL(cuCtxGetDevice)(&device))
        return (struct place){NO_CONTEXT, 0};
    return (struct place){gpu_of_device(st, device), 0};
}
