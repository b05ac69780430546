/* Contexts: the memory that they take themselves, and the memory that is freed with them. */
#include "driver/real.h"
#include "gate/gate.h"
#include "memory/charge.h"
#include "memory/cuda_pool.h"

/* A context is charged by the figure in the policy page, if there is one. The agent corrects it (surcharge). */
static CUresult charge_context(struct charge *c, CUdevice device) {
    struct gh_state *st = gh_here();
    struct gh_limit limit = {0};
    *c = (struct charge){0};
    c->at.gpu = NO_CONTEXT;
    if (!st)
        return CUDA_SUCCESS;
    int gpu = gpu_of_device(st, device);
    if (gpu >= 0)
        gh_policy_limit(st, (unsigned)gpu, &limit);
    if (gpu < 0 || !limit.context_bytes) { /* without a granted GPU, later allocations in it are refused */
        *c = (struct charge){st, {gpu, 0}, 0};
        return CUDA_SUCCESS;
    }
    return charge_at(c, st, (struct place){gpu, 0}, limit.context_bytes);
}

static CUresult made(struct charge *c, CUresult r, const CUcontext *context) {
    if (r != CUDA_SUCCESS || c->at.gpu < 0) {
        uncharge(c);
        return r;
    }
    if (gh_pointers_put_new(&c->st->pointers, key_of(CONTEXT, (uintptr_t)*context),
                            pack(c->units, c->at.gpu, 0, CONTEXT)))
        gh_count_contexts(c->st, (unsigned)c->at.gpu, 1);
    else
        uncharge(c); /* we know it already: a primary context that is retained again */
    return r;
}

struct leaving {
    struct gh_state *st;
    unsigned context;
};

static bool lives_in(uint64_t key, uint64_t value, void *with) {
    const struct leaving *l = with;
    enum kind kind = kind_of(value);
    (void)key;
    if (kind == GRAPHED) /* the driver may have freed it with the context: forget that it exists */
        return true;
    if (context_of(value) != l->context || (kind != LINEAR && kind != ARRAY && kind != MIPMAP && kind != LIMIT))
        return false;
    gh_release(l->st, gpu_of(value), units_of(value));
    return true;
}

static void gone(struct gh_state *st, CUcontext context, bool with_itself) {
    for (unsigned i = 0; i < GH_CONTEXTS; i++)
        if (atomic_load(&st->contexts.place[i].context) == context) {
            struct leaving l = {st, i + 1};
            atomic_store(&st->contexts.place[i].gpu, 0);
            gh_pointers_filter(&st->pointers, lives_in, &l);
        }
    uint64_t value = with_itself ? gh_pointers_take(&st->pointers, key_of(CONTEXT, (uintptr_t)context)) : 0;
    if (value) {
        gh_release(st, gpu_of(value), units_of(value));
        gh_count_contexts(st, gpu_of(value), -1);
    }
    pools_lost(st);
    atomic_store(&st->pools.dirty, 1);
    pools_look(st);
}

#define CREATE(name, parameters, arguments)                     \
    GH_EXPORT CUresult name parameters {                        \
        struct charge c;                                        \
        CUresult r = charge_context(&c, device);                \
        return r ? r : made(&c, REAL(name) arguments, context); \
    }
CREATE(cuCtxCreate, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuCtxCreate_v3, (CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device),
       (context, affinity, count, flags, device))
CREATE(cuCtxCreate_v4, (CUcontext *context, void *parameters, unsigned flags, CUdevice device),
       (context, parameters, flags, device))

#define DESTROY(name)                            \
    GH_EXPORT CUresult name(CUcontext context) { \
        gate_context_leaves(context);            \
        CUresult r = REAL(name)(context);        \
        struct gh_state *st = gh_here();         \
        if (r == CUDA_SUCCESS && st)             \
            gone(st, context, true);             \
        return r;                                \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* A primary context that was reset has kept its charge, which the new one takes over. */
static bool take_over(struct charge *c, CUdevice device) {
    struct gh_state *st = gh_here();
    CUcontext last = st && device >= 0 && device < GH_DEVICES ? atomic_load(&st->contexts.primary[device]) : NULL;
    uint64_t kept = last ? gh_pointers_take(&st->pointers, key_of(CONTEXT, (uintptr_t)last)) : 0;
    if (!kept)
        return false;
    gh_count_contexts(st, gpu_of(kept), -1);
    *c = (struct charge){st, {(int)gpu_of(kept), 0}, units_of(kept)};
    return true;
}

GH_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct charge c = {.at = {NO_CONTEXT, 0}};
    unsigned flags;
    int active = 0;
    CUresult r = CUDA_SUCCESS;
    if ((REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || !active) && !take_over(&c, device))
        r = charge_context(&c, device);
    if (r)
        return r;
    r = made(&c, REAL(cuDevicePrimaryCtxRetain)(context, device), context);
    struct gh_state *st = gh_here();
    if (r == CUDA_SUCCESS && st && device >= 0 && device < GH_DEVICES) {
        CUcontext last = atomic_exchange(&st->contexts.primary[device], *context);
        if (last && last != *context)
            gone(st, last, true); /* the context was reset, and came back with another handle */
    }
    return r;
}

/* The last release, or a reset, frees its memory. After a reset it keeps its own charge until it is used again. */
static CUresult released(CUresult r, CUdevice device, bool reset) {
    struct gh_state *st = gh_here();
    unsigned flags;
    int active = 1;
    if (r != CUDA_SUCCESS || !st || device < 0 || device >= GH_DEVICES ||
        (!reset && (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active)))
        return r;
    CUcontext context = atomic_load(&st->contexts.primary[device]);
    if (context)
        gone(st, context, !reset);
    return r;
}

/* Called before every release. If others still hold the context, its work in flight only counts as done too early. */
static void primary_leaves(CUdevice device) {
    struct gh_state *st = gh_here();
    CUcontext context = st && device >= 0 && device < GH_DEVICES ? atomic_load(&st->contexts.primary[device]) : NULL;
    if (context)
        gate_context_leaves(context);
}

#define RELEASE(name, reset)                                \
    GH_EXPORT CUresult name(CUdevice device) {              \
        primary_leaves(device);                             \
        return released(REAL(name)(device), device, reset); \
    }
RELEASE(cuDevicePrimaryCtxRelease, false)
RELEASE(cuDevicePrimaryCtxRelease_v2, false)
RELEASE(cuDevicePrimaryCtxReset, true)
RELEASE(cuDevicePrimaryCtxReset_v2, true)

/* ---- limits that make a context take memory ---- */

/* Bytes that a limit takes beyond its default, which is part of every context. */
static uint64_t limit_bytes(int limit, size_t value) {
    uint64_t usual = limit == CU_LIMIT_STACK_SIZE ? 1 << 10 : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 1 << 20 : 8 << 20;
    uint64_t more = value > usual ? value - usual : 0;
    CUdevice device;
    int processors = 0, threads = 0;
    if (limit != CU_LIMIT_STACK_SIZE)
        return more;
    /* a stack for every thread that can run on the GPU at once */
    if (REAL(cuCtxGetDevice)(&device) ||
        REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) ||
        REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device))
        return 0;
    return more > 1 << 20 ? UINT64_MAX / 4 : more * (uint64_t)processors * (uint64_t)threads;
}

GH_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context = NULL;
    struct gh_state *st = gh_here();
    if (limit < CU_LIMIT_STACK_SIZE || limit > CU_LIMIT_MALLOC_HEAP_SIZE || !st || REAL(cuCtxGetCurrent)(&context) ||
        !context)
        return REAL(cuCtxSetLimit)(limit, value);
    uint64_t name = (uintptr_t)context + (uint64_t)limit; /* unique, since contexts are more than three bytes apart */
    struct owed before = begin_free(LIMIT, name);
    struct charge c;
    CUresult r = charge(&c, limit_bytes(limit, value));
    if (r == CUDA_SUCCESS)
        r = finish_alloc(&c, REAL(cuCtxSetLimit)(limit, value), LIMIT, name);
    end_free(&before, CUDA_SUCCESS == r ? r : CUDA_ERROR_INVALID_VALUE);
    return r;
}
