/* Green contexts (CUDA 12.4).
 *
 * A green context retains its device's primary context and uses that one's memory. So the primary context is retained by
 * our own function first, which charges it, and what is allocated in a green context goes with the primary one. */
#include "driver/real.h"
#include "gate/gate_forget.h"
#include "memory/charge.h"
#include "memory/cuda_context.h"

GH_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned flags) {
    CUcontext primary;
    CUgreenCtx made = NULL;
    if (!context || !resources)
        return REAL(cuGreenCtxCreate)(context, resources, device, flags);
    CUresult r = cuDevicePrimaryCtxRetain(&primary, device);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return r;
    bool retained = r == CUDA_SUCCESS;
    r = REAL(cuGreenCtxCreate)(&made, resources, device, flags); /* refuses, if the primary one could not be retained */
    if (retained)
        cuDevicePrimaryCtxRelease_v2(device);
    if (r == CUDA_SUCCESS)
        *context = made;
    return r;
}

static bool device_of(CUcontext context, CUdevice *device) {
    CUcontext popped;
    if (REAL(cuCtxPushCurrent_v2)(context))
        return false;
    bool known = !REAL(cuCtxGetDevice)(device) && *device >= 0 && *device < GH_DEVICES;
    REAL(cuCtxPopCurrent_v2)(&popped);
    return known;
}

GH_EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    struct gh_state *st = gh_here();
    CUcontext made = NULL, primary;
    CUdevice device;
    CUresult r = REAL(cuCtxFromGreenCtx)(context ? &made : NULL, green);
    if (r)
        return r;
    *context = made;
    if (st && device_of(made, &device) && (primary = atomic_load(&st->contexts.primary[device])))
        context_shares(st, made, primary, device);
    return r;
}

/* The primary context goes with its last green one, if nobody else retains it. */
GH_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    struct gh_state *st = gh_here();
    CUcontext context = NULL;
    CUdevice device;
    bool known = !REAL(cuCtxFromGreenCtx)(&context, green) && device_of(context, &device);
    struct parting p = known ? primary_parts(st, device, 0) : (struct parting){0};
    if (context)
        gate_context_leaves(context);
    CUresult r = REAL(cuGreenCtxDestroy)(green);
    if (context)
        gate_context_left(context, r == CUDA_SUCCESS);
    primary_parted(&p, false);
    if (r || !st)
        return r;
    if (context)
        context_leaves(st, context);
    for (CUdevice device = 0; device < GH_DEVICES; device++)
        primary_left(st, device);
    return r;
}
