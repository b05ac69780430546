/* Everything that puts kernels on the GPU passes the gate. What the gate sees of a call is what the driver gets: another
 * thread of the program may change the structures of a call while it runs. */
#include <string.h>

#include "driver/cuda.h"
#include "driver/real.h"
#include "gate/cost.h"
#include "gate/gate.h"
#include "gate/gate_forget.h"
#include "gate/inflight.h"
#include "process/captures.h"

static uint64_t key_of_grid(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared) {
    return cost_key(f, (uint64_t)gx << 32 ^ (uint64_t)gy << 16 ^ gz, (uint64_t)bx << 20 ^ (uint64_t)by << 10 ^ bz,
                    shared);
}

/* The key is made only when the gate is not open for all. */
static inline void begin_grid(struct gate_pass *pass, CUstream stream, CUfunction f, unsigned gx, unsigned gy,
                              unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared) {
    enum gate_way way = gate_way();
    pass->gate = NULL;
    if (__builtin_expect(way != GATE_OPEN, 0))
        gate_begin_on(way, pass, stream, key_of_grid(f, gx, gy, gz, bx, by, bz, shared), f, (uint64_t)gx * gy * gz);
}

/* Where the gate is open the call jumps to the driver, its arguments where they are; they are many. */
#define LAUNCH(name, of)                                                                                          \
    __attribute__((noinline)) static CUresult name##_asks(CUfunction f, unsigned gx, unsigned gy, unsigned gz,    \
                                                          unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                                                          CUstream stream, void **parameters, void **extra) {     \
        struct gate_pass pass;                                                                                    \
        begin_grid(&pass, of(stream), f, gx, gy, gz, bx, by, bz, shared);                                         \
        return gate_end(&pass, REAL(name)(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra));         \
    }                                                                                                             \
    GH_EXPORT CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,        \
                            unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra) {     \
        __typeof__(&name) call = gate_is_open() ? REAL_FOUND(name) : NULL;                                        \
        return (call ? call : name##_asks)(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);         \
    }
LAUNCH(cuLaunchKernel, PLAIN)
LAUNCH(cuLaunchKernel_ptsz, PER_THREAD)

#define LAUNCH_COOPERATIVE(name, of)                                                                       \
    GH_EXPORT CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                            unsigned bz, unsigned shared, CUstream stream, void **parameters) {            \
        struct gate_pass pass;                                                                             \
        begin_grid(&pass, of(stream), f, gx, gy, gz, bx, by, bz, shared);                                  \
        return gate_end(&pass, REAL(name)(f, gx, gy, gz, bx, by, bz, shared, stream, parameters));         \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, PLAIN)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, PER_THREAD)

/* ---- with attributes ---- */

#define ATTRIBUTES_MOST 64u /* a driver knows fewer kinds, and takes each once */

struct config {
    CUlaunchConfig of;
    CUlaunchAttribute attribute[ATTRIBUTES_MOST];
};

/* False: more attributes than there are, which no driver accepts. */
static bool copy_config(struct config *copy, const CUlaunchConfig *asked) {
    copy->of = *asked;
    if (copy->of.count > ATTRIBUTES_MOST)
        return false;
    if (copy->of.attributes && copy->of.count) {
        memcpy(copy->attribute, copy->of.attributes, copy->of.count * sizeof *copy->attribute);
        copy->of.attributes = copy->attribute;
    }
    return true;
}

typedef CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra);

static CUresult through(launch_ex *real, bool per_thread, const CUlaunchConfig *asked, CUfunction f, void **parameters,
                        void **extra) {
    struct gate_pass pass;
    struct config copy;
    const CUlaunchConfig *c = &copy.of;
    if (!asked || gate_is_open())
        return real(asked, f, parameters, extra);
    if (!copy_config(&copy, asked))
        return CUDA_ERROR_INVALID_VALUE;
    begin_grid(&pass, per_thread ? PER_THREAD(c->stream) : c->stream, f, c->gx, c->gy, c->gz, c->bx, c->by, c->bz,
               c->shared);
    return gate_end(&pass, real(c, f, parameters, extra));
}

GH_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
    return through(REAL(cuLaunchKernelEx), false, c, f, parameters, extra);
}
GH_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
    return through(REAL(cuLaunchKernelEx_ptsz), true, c, f, parameters, extra);
}

/* ---- on several devices ---- */

GH_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *asked, unsigned n, unsigned flags) {
    CUDA_LAUNCH_PARAMS list[GH_POLICY_GPUS];
    struct gate_pass pass[GH_POLICY_GPUS];
    if (!asked || !n)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(asked, n, flags);
    if (n > GH_POLICY_GPUS) /* each device once, and a container has no more */
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(list, asked, n * sizeof *list);
    for (unsigned i = 0; i < n; i++) {
        const CUDA_LAUNCH_PARAMS *p = &list[i];
        begin_grid(&pass[i], p->stream, p->f, p->gx, p->gy, p->gz, p->bx, p->by, p->bz, p->shared);
    }
    CUresult r = REAL(cuLaunchCooperativeKernelMultiDevice)(list, n, flags);
    for (unsigned i = 0; i < n; i++)
        gate_end(&pass[i], r);
    return r;
}

/* ---- before CUDA 4: block and shared memory were set by other calls ---- */

GH_EXPORT CUresult cuLaunch(CUfunction f) {
    struct gate_pass pass;
    gate_begin(&pass, NULL, cost_key(f, 1, 0, 0), f);
    return gate_end(&pass, REAL(cuLaunch)(f));
}

static uint64_t key_of_flat(CUfunction f, int width, int height) {
    return cost_key(f, (uint64_t)width << 32 ^ (uint64_t)height, 0, 0);
}

GH_EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    struct gate_pass pass;
    gate_begin(&pass, NULL, key_of_flat(f, width, height), f);
    return gate_end(&pass, REAL(cuLaunchGrid)(f, width, height));
}
GH_EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    struct gate_pass pass;
    gate_begin(&pass, stream, key_of_flat(f, width, height), f);
    return gate_end(&pass, REAL(cuLaunchGridAsync)(f, width, height, stream));
}

/* ---- streams that go ---- */

typedef CUresult destroy_call(CUstream);

static CUresult destroy(CUstream stream, destroy_call *call) {
    struct gh_state *st = gh_here();
    gate_stream_leaves(stream);
    captures_may_end(st, stream_capturing(stream));
    CUresult r = call(stream);
    captures_have_ended(st);
    return r;
}

GH_EXPORT CUresult cuStreamDestroy(CUstream stream) { return destroy(stream, REAL(cuStreamDestroy)); }
GH_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) { return destroy(stream, REAL(cuStreamDestroy_v2)); }
