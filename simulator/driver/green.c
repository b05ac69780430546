/* Simulated libcuda: green contexts (CUDA 12.4). A green context retains its device's primary context, and what is
 * allocated in it belongs to that one. That it has only a part of the multiprocessors is not simulated. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

enum { SM = 1 };             /* CU_DEV_RESOURCE_TYPE_SM */
enum { DEFAULT_STREAM = 1 }; /* CU_GREEN_CTX_DEFAULT_STREAM */
#define GREEN_MAGIC 0x677265656e212121ull

struct resource { /* CUdevResource */
    int type;
    unsigned char padding[92];
    union {
        struct {
            unsigned count;
        } sm;
        unsigned char room[48];
    };
};

_Static_assert(sizeof(struct resource) == 144, "CUdevResource");

struct green {
    uint64_t magic;
    CUdevice device;
    CUcontext ctx;
    struct resource resource;
};

static CUresult all(CUdevice dev, struct resource *out, int type) {
    TRY(sim_device(dev));
    if (!out || type != SM)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct resource){.type = SM, .sm = {sim_gpu[dev].file->head.sm_count}};
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDevResource(CUdevice dev, struct resource *out, int type) { return all(dev, out, type); }

API CUresult cuCtxGetDevResource(CUcontext ctx, struct resource *out, int type) {
    TRY(sim_ready());
    return sim_context_valid(ctx) ? all(ctx->device, out, type) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuDevSmResourceSplitByCount(struct resource *out, unsigned *groups, const struct resource *in,
                                         struct resource *rest, unsigned flags, unsigned least) {
    TRY(sim_ready());
    if (!groups || !in || in->type != SM || flags)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least > 8 ? (least + 7) / 8 * 8 : 8, most = in->sm.count / each;
    if (!out)
        *groups = most;
    if (*groups > most)
        *groups = most;
    for (unsigned i = 0; out && i < *groups; i++)
        out[i] = (struct resource){.type = SM, .sm = {each}};
    if (rest)
        *rest = (struct resource){.type = SM, .sm = {in->sm.count - *groups * each}};
    return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(struct resource **out, const struct resource *list, unsigned n) {
    TRY(sim_ready());
    if (!out || !list || !n || list->type != SM)
        return CUDA_ERROR_INVALID_VALUE;
    *out = malloc(sizeof **out); /* descriptions are never destroyed */
    if (!*out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **out = *list;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxCreate(struct green **out, const struct resource *desc, CUdevice dev, unsigned flags) {
    TRY(sim_device(dev));
    if (!out || !desc || flags != DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    struct green *g = calloc(1, sizeof *g);
    CUresult r = g ? context_green(&g->ctx, dev) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
        free(g);
        return r;
    }
    g->magic = GREEN_MAGIC;
    g->device = dev;
    g->resource = *desc;
    *out = g;
    return CUDA_SUCCESS;
}

static CUresult valid(const struct green *g) {
    TRY(sim_ready());
    return g && g->magic == GREEN_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuGreenCtxDestroy(struct green *g) {
    TRY(valid(g));
    g->magic = 0;
    context_green_destroy(g->ctx);
    free(g);
    return CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(CUcontext *out, struct green *g) {
    TRY(valid(g));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = g->ctx;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxGetDevResource(struct green *g, struct resource *out, int type) {
    TRY(valid(g));
    if (!out || type != SM)
        return CUDA_ERROR_INVALID_VALUE;
    *out = g->resource;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxStreamCreate(CUstream *out, struct green *g, unsigned flags, int priority) {
    TRY(valid(g));
    return stream_new(out, g->ctx, flags, priority);
}
