/* The simulator's CUDA runtime: launches, what functions are like, and variables of programs. */
#define _GNU_SOURCE
#include "kernels.h"

#include <string.h>

/* --- the configuration between <<<...>>> and the stub that nvcc makes; one within another's arguments is possible --- */

enum { DEEPEST = 16 };

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    CUstream stream;
} pushed[DEEPEST];
static _Thread_local unsigned depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream stream) {
    if (depth == DEEPEST)
        return (unsigned)end(cudaErrorInvalidValue);
    pushed[depth].grid = grid;
    pushed[depth].block = block;
    pushed[depth].shared = shared;
    pushed[depth++].stream = stream;
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, CUstream *stream) {
    if (!depth)
        return end(cudaErrorMissingConfiguration);
    depth--;
    *grid = pushed[depth].grid;
    *block = pushed[depth].block;
    *shared = pushed[depth].shared;
    *stream = pushed[depth].stream;
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *kernel, dim3 g, dim3 b, void **arguments, size_t shared, CUstream stream) {
    CUfunction f;
    TRY(function_of(kernel, &f));
    return end(driver.cuLaunchKernel(f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, stream, arguments, NULL));
}

API cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 g, dim3 b, void **arguments, size_t shared,
                                            CUstream stream) {
    CUfunction f;
    TRY(function_of(kernel, &f));
    return end(driver.cuLaunchCooperativeKernel(f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned)shared, stream, arguments));
}

struct runtime_config { /* cudaLaunchConfig_t; its attributes are those of the driver */
    dim3 grid, block;
    size_t shared;
    CUstream stream;
    const void *attributes;
    unsigned n;
};

API cudaError_t cudaLaunchKernelExC(const struct runtime_config *c, const void *kernel, void **arguments) {
    CUfunction f;
    if (!c)
        return end(cudaErrorInvalidValue);
    TRY(function_of(kernel, &f));
    struct launch_config config = {c->grid, c->block, (unsigned)c->shared, c->stream, c->attributes, c->n};
    return end(driver.cuLaunchKernelEx(&config, f, arguments, NULL));
}

/* A cudaKernel_t of this runtime is the address of the kernel's stub. */
API cudaError_t cudaGetKernel(const void **out, const void *kernel) {
    if (!out)
        return end(cudaErrorInvalidValue);
    *out = kernel;
    return symbol_of(kernel) ? cudaSuccess : end(cudaErrorInvalidDeviceFunction);
}

API cudaError_t __cudaGetKernel(const void **out, const void *kernel) { return cudaGetKernel(out, kernel); }

API cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                   CUstream stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

API cudaError_t cudaGetFuncBySymbol(CUfunction *out, const void *kernel) {
    return end(out ? function_of(kernel, out) : cudaErrorInvalidValue);
}

/* --- what functions are like --- */

struct function_attributes { /* cudaFuncAttributes */
    size_t shared, constant, local;
    int threads, registers, ptx, binary, cache_ca, dynamic_shared, carveout;
    int must_cluster, cluster_width, cluster_height, cluster_depth, cluster_policy, cluster_non_portable;
    int reserved[16];
};

API cudaError_t cudaFuncGetAttributes(struct function_attributes *out, const void *kernel) {
    CUfunction f;
    int value[16] = {0}; /* by CUfunction_attribute */
    TRY(function_of(kernel, &f));
    if (!out)
        return end(cudaErrorInvalidValue);
    for (int i = 0; i < 16; i++)
        if (driver.cuFuncGetAttribute(&value[i], i, f))
            value[i] = 0; /* one that this driver does not know */
    *out = (struct function_attributes){
        .shared = (size_t)value[1],
        .constant = (size_t)value[2],
        .local = (size_t)value[3],
        .threads = value[0],
        .registers = value[4],
        .ptx = value[5],
        .binary = value[6],
        .cache_ca = value[7],
        .dynamic_shared = value[8],
        .carveout = value[9],
        .must_cluster = value[10],
        .cluster_width = value[11],
        .cluster_height = value[12],
        .cluster_depth = value[13],
        .cluster_non_portable = value[14],
        .cluster_policy = value[15],
    };
    return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *kernel, int what, int value) {
    CUfunction f;
    TRY(function_of(kernel, &f));
    return end(driver.cuFuncSetAttribute(f, what, value));
}

API cudaError_t cudaFuncSetCacheConfig(const void *kernel, int config) {
    CUfunction f;
    TRY(function_of(kernel, &f));
    return end(driver.cuFuncSetCacheConfig(f, config));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads,
                                                                       size_t shared, unsigned flags) {
    CUfunction f;
    TRY(function_of(kernel, &f));
    return end(driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, flags));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                              size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

/* --- variables --- */

API cudaError_t cudaGetSymbolAddress(void **out, const void *symbol) {
    CUdeviceptr at;
    size_t bytes;
    if (!out)
        return end(cudaErrorInvalidValue);
    TRY(variable_of(symbol, &at, &bytes));
    *out = (void *)(uintptr_t)at;
    return cudaSuccess;
}

API cudaError_t cudaGetSymbolSize(size_t *out, const void *symbol) {
    CUdeviceptr at;
    return end(out ? variable_of(symbol, &at, out) : cudaErrorInvalidValue);
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, CUstream stream);

/* The place of `bytes` at `offset` in a variable. */
static int place(const void *symbol, size_t bytes, size_t offset, void **out) {
    CUdeviceptr at;
    size_t size;
    int r = variable_of(symbol, &at, &size);
    if (!r && (offset > size || bytes > size - offset))
        r = cudaErrorInvalidValue;
    *out = (void *)(uintptr_t)(r ? 0 : at + offset);
    return r;
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind) {
    void *at;
    TRY(place(symbol, bytes, offset, &at));
    return cudaMemcpy(at, from, bytes, kind);
}

API cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int kind,
                                        CUstream s) {
    void *at;
    TRY(place(symbol, bytes, offset, &at));
    return cudaMemcpyAsync(at, from, bytes, kind, s);
}

API cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind) {
    void *at;
    TRY(place(symbol, bytes, offset, &at));
    return cudaMemcpy(to, at, bytes, kind);
}
