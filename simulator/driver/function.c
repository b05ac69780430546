/* Simulated libcuda: attributes of functions and kernels, their parameters, occupancy, and launches older than CUDA 4. */
#define _GNU_SOURCE
#include "module.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DYNAMIC_SHARED = 8, CARVEOUT = 9, LAST_ATTRIBUTE = 15 }; /* CU_FUNC_ATTRIBUTE_... */
enum { SHARED_MEMORY = 101376, RESERVED = 1024, BLOCK_THREADS = 1024, SM_THREADS = 2048, SM_BLOCKS = 32 };

static CUresult valid(const struct function *f) {
    TRY(sim_ready());
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

unsigned function_shared(const struct function *f) {
    return f->set[MAX_DYNAMIC_SHARED] ? (unsigned)f->set[MAX_DYNAMIC_SHARED] : 49152;
}

static CUresult get_attribute(int *value, int attribute, const struct function *f) {
    if (!value || attribute < 0 || attribute > LAST_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(valid(f));
    switch (attribute) {
    case 0: *value = BLOCK_THREADS; break; /* MAX_THREADS_PER_BLOCK */
    case 4: *value = 32; break;            /* NUM_REGS */
    case 5:
    case 6: *value = (int)sim_gpu_of(f->module->ctx)->file->head.capability; break; /* PTX_VERSION, BINARY_VERSION */
    case MAX_DYNAMIC_SHARED: *value = (int)function_shared(f); break;
    case CARVEOUT: *value = f->set[attribute] ? f->set[attribute] : -1; break;
    default: *value = f->set[attribute];
    }
    return CUDA_SUCCESS;
}

/* 10 to 15 are those of thread block clusters. */
static CUresult set_attribute(struct function *f, int attribute, int value) {
    TRY(valid(f));
    if (attribute < MAX_DYNAMIC_SHARED || attribute > LAST_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == MAX_DYNAMIC_SHARED && (value < 0 || value > SHARED_MEMORY - RESERVED))
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CARVEOUT && (value < -1 || value > 100))
        return CUDA_ERROR_INVALID_VALUE;
    f->set[attribute] = value;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f) { return get_attribute(value, attribute, f); }
API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value) { return set_attribute(f, attribute, value); }

/* An attribute of a kernel is set for one device; here it holds for all. */
API CUresult cuKernelGetAttribute(int *value, int attribute, CUfunction kernel, CUdevice dev) {
    TRY(sim_device(dev));
    return get_attribute(value, attribute, kernel);
}

API CUresult cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice dev) {
    TRY(sim_device(dev));
    return set_attribute(kernel, attribute, value);
}

static CUresult set_config(const struct function *f, int config, int most) {
    TRY(valid(f));
    return config < 0 || config > most ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuFuncSetCacheConfig(CUfunction f, int config) { return set_config(f, config, 3); }
API CUresult cuFuncSetSharedMemConfig(CUfunction f, int config) { return set_config(f, config, 2); }

API CUresult cuKernelSetCacheConfig(CUfunction kernel, int config, CUdevice dev) {
    TRY(sim_device(dev));
    return set_config(kernel, config, 3);
}

API CUresult cuFuncGetModule(CUmodule *out, CUfunction f) {
    TRY(valid(f));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = f->module;
    return CUDA_SUCCESS;
}

static CUresult name_of(const char **out, const struct function *f) {
    TRY(valid(f));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = f->name;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetName(const char **out, CUfunction f) { return name_of(out, f); }
API CUresult cuKernelGetName(const char **out, CUfunction kernel) { return name_of(out, kernel); }

API CUresult cuKernelGetLibrary(CUmodule *out, CUfunction kernel) { return cuFuncGetModule(out, kernel); }

API CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel) {
    TRY(valid(kernel));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = kernel;
    return CUDA_SUCCESS;
}

API CUresult cuFuncIsLoaded(int *state, CUfunction f) {
    TRY(valid(f));
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = 1; /* CU_FUNCTION_LOADING_STATE_LOADED */
    return CUDA_SUCCESS;
}

API CUresult cuFuncLoad(CUfunction f) { return valid(f); }

/* --- parameters, as the text of the module declares them: ".entry NAME(.param .u64 A, .param .align 8 .b8 B[24])" --- */

static size_t type_bytes(const char *from, const char *to) {
    for (const char *p = from; p + 2 < to; p++)
        if (*p == '.' && strchr("bsuf", p[1])) {
            long bits = strtol(p + 2, NULL, 10);
            if (bits == 8 || bits == 16 || bits == 32 || bits == 64)
                return (size_t)bits / 8;
        }
    return 0;
}

/* The text between the parentheses of the function's declaration; NULL: it has none. */
static const char *declared(const struct function *f, const char **end) {
    size_t n = strlen(f->name);
    for (const char *at = f->module->text; at && (at = strstr(at, ".entry")); at += 6) {
        const char *name = at + 6 + strspn(at + 6, " \t\n\r");
        if (strncmp(name, f->name, n) || strcspn(name + n, "( \t\n\r"))
            continue;
        const char *open = name + n + strspn(name + n, " \t\n\r");
        *end = *open == '(' ? strchr(open, ')') : NULL;
        return *end ? open + 1 : NULL;
    }
    return NULL;
}

static CUresult parameter(const struct function *f, size_t wanted, size_t *offset, size_t *bytes) {
    TRY(valid(f));
    if (!offset)
        return CUDA_ERROR_INVALID_VALUE;
    const char *end, *at = declared(f, &end);
    for (size_t before = 0, i = 0; at && at < end; i++) {
        const char *stop = memchr(at, ',', (size_t)(end - at));
        stop = stop ? stop : end;
        size_t one = type_bytes(at, stop);
        const char *many = memchr(at, '[', (size_t)(stop - at)), *align = memmem(at, (size_t)(stop - at), ".align ", 7);
        size_t size = many ? one * strtoul(many + 1, NULL, 10) : one, to = align ? strtoul(align + 7, NULL, 10) : one;
        if (!one || !to)
            break;
        before = round_up(before, to);
        if (i == wanted) {
            *offset = before;
            if (bytes)
                *bytes = size;
            return CUDA_SUCCESS;
        }
        before += size;
        at = stop + 1;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *bytes) {
    return parameter(f, index, offset, bytes);
}

API CUresult cuKernelGetParamInfo(CUfunction kernel, size_t index, size_t *offset, size_t *bytes) {
    return parameter(kernel, index, offset, bytes);
}

/* --- occupancy: by threads, blocks and shared memory --- */

static int blocks_of(int threads, size_t shared) {
    int by_threads = threads > BLOCK_THREADS ? 0 : SM_THREADS / threads;
    size_t by_shared = shared > SHARED_MEMORY - RESERVED ? 0 : SHARED_MEMORY / (shared + RESERVED);
    int blocks = by_threads < SM_BLOCKS ? by_threads : SM_BLOCKS;
    return by_shared < (size_t)blocks ? (int)by_shared : blocks;
}

static CUresult active_blocks(int *blocks, const struct function *f, int threads, size_t shared) {
    if (!blocks || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(valid(f));
    *blocks = blocks_of(threads, shared);
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared) {
    return active_blocks(blocks, f, threads, shared);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int threads, size_t shared,
                                                                  unsigned flags) {
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : active_blocks(blocks, f, threads, shared);
}

/* The largest block of whole warps with which most threads run at once. shared_of: for a size of block; may be NULL. */
static CUresult potential(int *grid, int *block, const struct function *f, size_t (*shared_of)(int), size_t shared,
                          int limit) {
    CUcontext ctx;
    if (!grid || !block || limit < 0)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(valid(f));
    TRY(sim_context(&ctx));
    int most = limit && limit < BLOCK_THREADS ? limit : BLOCK_THREADS, best = 0, blocks = 0;
    for (int size = most; size > 0; size = (size - 1) / 32 * 32) {
        int n = blocks_of(size, shared_of ? shared_of(size) : shared);
        if (n * size > best) {
            best = n * size;
            *block = size;
            blocks = n;
        }
    }
    if (!best)
        return CUDA_ERROR_INVALID_VALUE;
    *grid = blocks * (int)sim_gpu_of(ctx)->file->head.sm_count;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                              size_t shared, int limit) {
    return potential(grid, block, f, shared_of, shared, limit);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f, size_t (*shared_of)(int),
                                                       size_t shared, int limit, unsigned flags) {
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : potential(grid, block, f, shared_of, shared, limit);
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, CUfunction f, int blocks, int threads) {
    TRY(valid(f));
    if (!out || blocks <= 0 || threads <= 0 || blocks > blocks_of(threads, 0))
        return CUDA_ERROR_INVALID_VALUE;
    size_t each = SHARED_MEMORY / (size_t)blocks;
    *out = each > RESERVED ? each - RESERVED : 0;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction f, const void *config) {
    TRY(valid(f));
    if (!out || !config)
        return CUDA_ERROR_INVALID_VALUE;
    *out = 8; /* the portable size */
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction f, const void *config) {
    TRY(valid(f));
    if (!out || !config)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (int)sim_gpu_of(f->module->ctx)->file->head.sm_count / 8;
    return CUDA_SUCCESS;
}

/* --- launches older than cuLaunchKernel take these from the function --- */

API CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
    if (!f || x <= 0 || y <= 0 || z <= 0)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    f->threads = (unsigned)x * (unsigned)y * (unsigned)z;
    return CUDA_SUCCESS;
}

unsigned function_threads(CUfunction f) { return f->threads; }

API CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes) {
    return (void)bytes, f ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
API CUresult cuParamSetSize(CUfunction f, unsigned bytes) { return (void)bytes, f ? 0 : CUDA_ERROR_INVALID_HANDLE; }

API CUresult cuParamSetv(CUfunction f, int offset, const void *data, unsigned bytes) {
    if (!f || (bytes && !data) || offset < 0)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (offset < (int)sizeof f->parameter) {
        unsigned room = (unsigned)sizeof f->parameter - (unsigned)offset;
        memcpy((char *)&f->parameter + offset, data, bytes < room ? bytes : room);
    }
    return CUDA_SUCCESS;
}

API CUresult cuParamSeti(CUfunction f, int offset, unsigned value) { return cuParamSetv(f, offset, &value, 4); }
API CUresult cuParamSetf(CUfunction f, int offset, float value) { return cuParamSetv(f, offset, &value, 4); }
