/* Everything that puts kernels on the GPU passes the gate. */
#include "driver/cuda.h"
#include "driver/real.h"
#include "gate/cost.h"
#include "gate/gate.h"
#include "process/captures.h"

static uint64_t key_of_grid(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared) {
    return cost_key(f, (uint64_t)gx << 32 ^ (uint64_t)gy << 16 ^ gz, (uint64_t)bx << 20 ^ (uint64_t)by << 10 ^ bz,
                    shared);
}

#define LAUNCH(name, of)                                                                                      \
    GH_EXPORT CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,    \
                            unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra) { \
        return THROUGH_GATE(of(stream), key_of_grid(f, gx, gy, gz, bx, by, bz, shared), f,                    \
                            REAL(name)(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra));        \
    }
LAUNCH(cuLaunchKernel, PLAIN)
LAUNCH(cuLaunchKernel_ptsz, PER_THREAD)

#define LAUNCH_EX(name, of)                                                                                        \
    GH_EXPORT CUresult name(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {              \
        if (!c)                                                                                                    \
            return REAL(name)(c, f, parameters, extra);                                                            \
        return THROUGH_GATE(of(c->stream), key_of_grid(f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared), f, \
                            REAL(name)(c, f, parameters, extra));                                                  \
    }
LAUNCH_EX(cuLaunchKernelEx, PLAIN)
LAUNCH_EX(cuLaunchKernelEx_ptsz, PER_THREAD)

#define LAUNCH_COOPERATIVE(name, of)                                                                       \
    GH_EXPORT CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                            unsigned bz, unsigned shared, CUstream stream, void **parameters) {            \
        return THROUGH_GATE(of(stream), key_of_grid(f, gx, gy, gz, bx, by, bz, shared), f,                 \
                            REAL(name)(f, gx, gy, gz, bx, by, bz, shared, stream, parameters));            \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, PLAIN)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, PER_THREAD)

/* Launches a kernel on each of several devices: passes the gate of each. */
GH_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags) {
    struct gate_ticket ticket[GH_POLICY_GPUS];
    if (gate_open() || !list || n > GH_POLICY_GPUS)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    for (unsigned i = 0; i < n; i++) {
        const CUDA_LAUNCH_PARAMS *p = &list[i];
        CUcontext context = NULL, popped;
        ticket[i] = (struct gate_ticket){0};
        if (REAL(cuStreamGetCtx)(p->stream, &context) || REAL(cuCtxPushCurrent_v2)(context))
            continue;
        gate_enter(&ticket[i], p->stream, key_of_grid(p->f, p->gx, p->gy, p->gz, p->bx, p->by, p->bz, p->shared), p->f);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    CUresult r = REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    for (unsigned i = 0; i < n; i++)
        gate_leave(&ticket[i], r);
    return r;
}

/* Before CUDA 4, block and shared memory were set by other calls. */
GH_EXPORT CUresult cuLaunch(CUfunction f) { return THROUGH_GATE(NULL, cost_key(f, 1, 0, 0), f, REAL(cuLaunch)(f)); }
GH_EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    return THROUGH_GATE(NULL, cost_key(f, (uint64_t)width << 32 ^ (uint64_t)height, 0, 0), f,
                        REAL(cuLaunchGrid)(f, width, height));
}
GH_EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    return THROUGH_GATE(stream, cost_key(f, (uint64_t)width << 32 ^ (uint64_t)height, 0, 0), f,
                        REAL(cuLaunchGridAsync)(f, width, height, stream));
}

#define DESTROY(name)                          \
    GH_EXPORT CUresult name(CUstream stream) { \
        gate_stream_leaves(stream);            \
        captures_may_end(gh_here());           \
        CUresult r = REAL(name)(stream);       \
        captures_have_ended(gh_here());        \
        return r;                              \
    }
DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)
