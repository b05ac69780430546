/* Simulated libcuda: every way to launch a kernel. */
#define _GNU_SOURCE
#include "driver.h"

CUresult kernel_submit(struct stream *s, const struct kernel *k) {
    struct gpu_work work = {.kind = k->spin ? WORK_SPIN : WORK_KERNEL, .width = k->width};
    if (!k->spin)
        work.duration_ns = kernel_ns(k);
    struct memop op = {.kind = WORK_SPIN, .address = k->spin, .compare = 2, .value = 0xffffffff};
    return channel_submit(s, work, NULL, k->spin ? &op : NULL);
}

struct shape {
    unsigned grid[3], block[3], shared;
    bool cooperative; /* all blocks must run at the same time */
};

static uint64_t product(const unsigned n[3]) { return (uint64_t)n[0] * n[1] * n[2]; }

static CUresult submit(CUfunction f, CUstream handle, struct shape shape, void **params) {
    struct stream *s;
    struct kernel k;
    TRY(sim_stream(handle, &s));
    if (!f || !function_fits(f, s->ctx))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t blocks = product(shape.grid), threads = product(shape.block);
    if (!blocks || !threads || threads > 1024 || shape.grid[0] > INT32_MAX || shape.shared > function_shared(f))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t most = 2048 / threads;
    if (shape.cooperative && blocks > sim_gpu_of(s->ctx)->file->head.sm_count * (most < 32 ? most : 32))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    TRY(kernel_of(f, s->ctx->device, blocks, params, &k));
    struct kernel_params said = {.function = f,
                                 .grid = {shape.grid[0], shape.grid[1], shape.grid[2]},
                                 .block = {shape.block[0], shape.block[1], shape.block[2]},
                                 .shared = shape.shared};
    CUresult r;
    return capture_kernel(s, &k, &said, &r) ? r : kernel_submit(s, &k);
}

#define SHAPE(gx, gy, gz, bx, by, bz, shared, together) \
    (struct shape) { {gx, gy, gz}, {bx, by, bz}, shared, together }

#define LAUNCH(name, stream)                                                                                      \
    API CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                      unsigned shared, CUstream s, void **params, void **extra) {                                 \
        (void)extra;                                                                                              \
        return submit(f, stream, SHAPE(gx, gy, gz, bx, by, bz, shared, false), params);                           \
    }
LAUNCH(cuLaunchKernel, s)
LAUNCH(cuLaunchKernel_ptsz, PER_THREAD(s))

#define LAUNCH_COOPERATIVE(name, stream)                                                                          \
    API CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                      unsigned shared, CUstream s, void **params) {                                               \
        return submit(f, stream, SHAPE(gx, gy, gz, bx, by, bz, shared, true), params);                            \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, s)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, PER_THREAD(s))

struct launch_attribute { /* CUlaunchAttribute */
    int id, pad;
    union {
        uint8_t room[64];
        int cooperative;
    };
};

struct launch_config { /* CUlaunchConfig */
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    const struct launch_attribute *attributes;
    unsigned n;
};

static CUresult launch_ex(const struct launch_config *c, CUfunction f, CUstream stream, void **params) {
    bool together = false;
    for (unsigned i = 0; c->attributes && i < c->n; i++)
        together |= c->attributes[i].id == 2 && c->attributes[i].cooperative; /* CU_LAUNCH_ATTRIBUTE_COOPERATIVE */
    return submit(f, stream, SHAPE(c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, together), params);
}

API CUresult cuLaunchKernelEx(const struct launch_config *c, CUfunction f, void **params, void **extra) {
    (void)extra;
    return c ? launch_ex(c, f, c->stream, params) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuLaunchKernelEx_ptsz(const struct launch_config *c, CUfunction f, void **params, void **extra) {
    (void)extra;
    return c ? launch_ex(c, f, PER_THREAD(c->stream), params) : CUDA_ERROR_INVALID_VALUE;
}

struct launch_params { /* CUDA_LAUNCH_PARAMS */
    CUfunction function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    void **params;
};

API CUresult cuLaunchCooperativeKernelMultiDevice(const struct launch_params *list, unsigned n, unsigned flags) {
    struct stream *s, *other;
    TRY(sim_ready());
    if (!list || !n || n > (unsigned)sim_gpus || flags & ~3u)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n;
         i++) { /* one launch per device, each in a stream that the program made for this device */
        if ((uintptr_t)list[i].stream <= 2)
            return CUDA_ERROR_INVALID_HANDLE;
        TRY(sim_stream(list[i].stream, &s));
        for (unsigned k = 0; k < i; k++) {
            TRY(sim_stream(list[k].stream, &other));
            if (other->ctx->device == s->ctx->device)
                return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        const struct launch_params *p = &list[i];
        TRY(submit(p->function, p->stream, SHAPE(p->gx, p->gy, p->gz, p->bx, p->by, p->bz, p->shared, true),
                   p->params));
    }
    return CUDA_SUCCESS;
}

/* The launches before CUDA 4, whose block shape and parameters are set on the function. */
static CUresult launch_grid(CUfunction f, int width, int height, CUstream stream) {
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (width <= 0 || height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(f, stream, SHAPE((unsigned)width, (unsigned)height, 1, function_threads(f), 1, 1, 0, false), NULL);
}

API CUresult cuLaunch(CUfunction f) { return launch_grid(f, 1, 1, NULL); }
API CUresult cuLaunchGrid(CUfunction f, int width, int height) { return launch_grid(f, width, height, NULL); }
API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream s) {
    return launch_grid(f, width, height, s);
}
