/* The driver functions that the load generator uses, from whatever libcuda.so.1 the loader finds. */
#ifndef LOAD_CUDA_H
#define LOAD_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

#define FUNCTIONS                                                                                                    \
    F(cuInit, (unsigned flags))                                                                                      \
    F(cuDeviceGet, (int *device, int ordinal))                                                                       \
    F(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                 \
    F(cuDevicePrimaryCtxRetain, (void **ctx, int device))                                                            \
    F(cuCtxSetCurrent, (void *ctx))                                                                                  \
    F(cuCtxSynchronize, (void))                                                                                      \
    F(cuMemAlloc_v2, (CUdeviceptr *address, size_t bytes))                                                           \
    F(cuMemFree_v2, (CUdeviceptr address))                                                                           \
    F(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                                             \
    F(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                                                   \
    F(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, void *stream))                          \
    F(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                                \
    F(cuMemHostRegister_v2, (void *pointer, size_t bytes, unsigned flags))                                           \
    F(cuMemHostUnregister, (void *pointer))                                                                          \
    F(cuMemHostGetDevicePointer_v2, (CUdeviceptr *out, void *pointer, unsigned flags))                               \
    F(cuModuleLoadData, (void **module, const void *image))                                                          \
    F(cuModuleGetFunction, (void **function, void *module, const char *name))                                        \
    F(cuLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                       unsigned shared, void *stream, void **params, void **extra))                                  \
    F(cuStreamCreate, (void **stream, unsigned flags))                                                               \
    F(cuStreamSynchronize, (void *stream))                                                                           \
    F(cuStreamBeginCapture_v2, (void *stream, int mode))                                                             \
    F(cuStreamEndCapture, (void *stream, void **graph))                                                              \
    F(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))                             \
    F(cuGraphLaunch, (void *exec, void *stream))                                                                     \
    F(cuGraphExecDestroy, (void *exec))                                                                              \
    F(cuGraphDestroy, (void *graph))                                                                                 \
    F(cuEventCreate, (void **event, unsigned flags))                                                                 \
    F(cuEventDestroy_v2, (void *event))                                                                              \
    F(cuEventRecord, (void *event, void *stream))                                                                    \
    F(cuEventQuery, (void *event))                                                                                   \
    F(cuEventSynchronize, (void *event))                                                                             \
    F(cuEventElapsedTime, (float *ms, void *from, void *to))                                                         \
    F(cuGetErrorName, (CUresult error, const char **name))

/* Functions that a driver may lack; NULL then. */
#define OPTIONAL                                                                                    \
    F(cuCtxGetCurrent, (void **ctx))                                                                \
    F(cuStreamGetCtx, (void *stream, void **ctx))                                                   \
    F(cuStreamIsCapturing, (void *stream, int *status))                                             \
    F(cuThreadExchangeStreamCaptureMode, (int *mode))                                               \
    F(cuStreamWriteValue32_v2, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags)) \
    F(cuStreamWaitValue32_v2, (void *stream, CUdeviceptr address, uint32_t value, unsigned flags))

#define F(name, parameters) extern CUresult(*name) parameters;
FUNCTIONS
OPTIONAL
#undef F

#define NOT_READY 600

/* Ends the program with a message unless the call succeeded. */
void check(CUresult result, const char *what);
#define CHECK(call) check(call, #call)

uint64_t clock_ns(void); /* CLOCK_MONOTONIC: one clock for all tenants of a machine */
void sleep_until(uint64_t ns);
/* The kernel that works for the given number of steps; in the simulated driver a step is a nanosecond. */
void *spin_kernel(const char *name);
/* Queue one: steps, and the state that it folds `number` into (0: none). blocks: how many of 128 threads. */
CUresult spin_shaped(void *function, uint64_t steps, CUdeviceptr state, uint64_t number, unsigned blocks,
                     unsigned shared, void *stream);
static inline CUresult spin(void *function, uint64_t steps, CUdeviceptr state, uint64_t number, unsigned blocks,
                            void *stream) {
    return spin_shaped(function, steps, state, number, blocks, 0, stream);
}

/* physics.c: members of a JSON object to `out`. Times are real. */
void physics_api(FILE *out, unsigned n, void *function, CUdeviceptr state);
void physics_events(FILE *out, unsigned n, void *function, CUdeviceptr state, double steps_per_us);
void physics_gaps(FILE *out, uint64_t ns, unsigned blocks);
void physics_copies(FILE *out, uint64_t ns, size_t bytes);
void physics_blocked(FILE *out, uint64_t ns, void *function, CUdeviceptr state);

#endif
