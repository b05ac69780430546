/* Shared by the parts of the simulator's CUDA runtime. Names and numbers are those of CUDA's public runtime API.
 *
 * RUNTIME_VERSION (from build.py) is the API's version: 12090 in libcudart.so.12, 13000 in libcudart.so.13. Structures
 * and functions that CUDA 13.0 changed depend on it. */
#ifndef GPU_HOOK_SIM_RUNTIME_H
#define GPU_HOOK_SIM_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define CUDA_13 (RUNTIME_VERSION >= 13000)

typedef int cudaError_t; /* the driver's results and the runtime's errors are the same numbers */
typedef void *CUstream, *CUevent, *CUcontext, *CUmodule, *CUfunction, *CUmemoryPool, *CUgraph, *CUgraphExec,
    *CUgraphNode;
typedef unsigned long long CUdeviceptr;
typedef void (*host_function)(void *);
typedef void (*stream_callback)(CUstream, int, void *);

typedef struct {
    unsigned x, y, z;
} dim3;

typedef struct {
    char bytes[64];
} ipc_handle; /* cudaIpcMemHandle_t, cudaIpcEventHandle_t */

typedef struct {
    int type, id;
} memory_location; /* cudaMemLocation */

struct launch_config { /* CUlaunchConfig */
    dim3 grid, block;
    unsigned shared;
    CUstream stream;
    const void *attributes;
    unsigned n;
};

struct copy_2d { /* CUDA_MEMCPY2D */
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    CUdeviceptr from;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr to;
    void *to_array;
    size_t to_pitch, width, height;
};

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorMissingConfiguration = 52,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotSupported = 801,
    MAX_DEVICES = 32,
};

/* The driver's functions that the runtime calls, each found by cuGetProcAddress as of one CUDA version. One that the
 * driver does not have answers cudaErrorNotSupported. */
struct driver {
#define DRIVER(name, version, types) int(*name) types;
#define PASS(runtime, name, version, types, arguments) int(*name) types;
#include "calls.def"
#undef DRIVER
#undef PASS
};
extern struct driver driver;

int started(void);      /* the driver is loaded, initialized and a simulated one; else what is wrong */
int ready(void);        /* started, and the calling thread has a context */
int end(int error);     /* what a function returns: remembers the thread's last error */
int device_count(void); /* after started() */
int primary_context(int device, CUcontext *out);
void forget_primary_context(int device); /* after its reset */
int current_device(int *out);
unsigned context_age(int device); /* changes with each reset of the device */

#define TRY(call)                  \
    do {                           \
        int try_error = (call);    \
        if (try_error)             \
            return end(try_error); \
    } while (0)

#endif
