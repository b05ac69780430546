/* The simulator's CUDA runtime: finds the driver, refuses one that is not simulated, and gives threads their context. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct driver driver;

/* For people who look what a process has loaded: `strings libcudart.so.12 | grep simulator`. */
API const char gpuHookSimulatedRuntime[] =
    "CUDA runtime of gpu-hook's simulator: not NVIDIA's; its kernels compute nothing";

static struct {
    int result, count;
    CUcontext primary[MAX_DEVICES];
    unsigned age[MAX_DEVICES];
    pthread_mutex_t mutex;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int last_error, chosen_device;

typedef int (*lookup)(const char *, void *, int, unsigned long long, int *);

static int missing(void) { return cudaErrorNotSupported; }

static bool find(lookup get, const char *name, int version, void *to) {
    int status;
    if (!get(name, to, version, 0, &status) && !status && *(void **)to)
        return true;
    int (*none)(void) = missing;
    memcpy(to, &none, sizeof none);
    return false;
}

/* The driver's own check of versions: any 12 runs on a driver of CUDA 12.0 or later, not on one of 11. */
static bool new_enough(void) {
    int version;
    return !driver.cuDriverGetVersion(&version) && version / 1000 >= RUNTIME_VERSION / 1000;
}

static int refuse(const char *why) {
    fprintf(stderr, "libcudart of gpu-hook's simulator: %s\n", why);
    return cudaErrorInsufficientDriver;
}

/* Every device of a simulated driver says so in its name, also through the shim. */
static int only_simulated(int count) {
    char name[64];
    for (int i = 0; i < count; i++)
        if (driver.cuDeviceGetName(name, sizeof name, i) || strncmp(name, "Simulated GPU", 13))
            return refuse("this driver is not a simulated one. Use NVIDIA's libcudart with it.");
    return cudaSuccess;
}

static int load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    lookup get;
    void *at = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!at)
        return cudaErrorInsufficientDriver; /* no driver, or one before CUDA 12 */
    memcpy(&get, &at, sizeof get);
#define DRIVER(name, version, types) find(get, #name, version, &driver.name);
#define PASS(runtime, name, version, types, arguments) find(get, #name, version, &driver.name);
#include "calls.def"
#undef DRIVER
#undef PASS
    int r = driver.cuInit(0);
    if (r)
        return r;
    if (!new_enough())
        return refuse("the driver's CUDA version is before this runtime's; `gpu-hook sim up --driver` chooses it.");
    r = driver.cuDeviceGetCount(&state.count);
    if (!r && state.count > MAX_DEVICES)
        state.count = MAX_DEVICES;
    return r ? r : state.count ? only_simulated(state.count) : cudaErrorNoDevice;
}

static void load_once(void) { state.result = load(); }

int started(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
    return state.result;
}

int device_count(void) { return state.count; }

int primary_context(int device, CUcontext *out) {
    if (device < 0 || device >= state.count)
        return cudaErrorInvalidDevice;
    pthread_mutex_lock(&state.mutex);
    int r = state.primary[device] ? 0 : driver.cuDevicePrimaryCtxRetain(&state.primary[device], device);
    *out = state.primary[device];
    pthread_mutex_unlock(&state.mutex);
    return r;
}

void forget_primary_context(int device) {
    pthread_mutex_lock(&state.mutex);
    state.primary[device] = NULL;
    state.age[device]++;
    pthread_mutex_unlock(&state.mutex);
}

unsigned context_age(int device) { return state.age[device]; }

int current_device(int *out) {
    CUcontext c = NULL;
    if (!driver.cuCtxGetCurrent(&c) && c)
        return driver.cuCtxGetDevice(out);
    *out = chosen_device;
    return cudaSuccess;
}

int ready(void) {
    CUcontext c = NULL;
    int r = started();
    if (r || (!driver.cuCtxGetCurrent(&c) && c)) /* a context of the program's own counts, too */
        return r;
    r = primary_context(chosen_device, &c);
    return r ? r : driver.cuCtxSetCurrent(c);
}

int end(int error) {
    if (error)
        last_error = error;
    return error;
}

API cudaError_t cudaGetLastError(void) {
    int error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void) { return last_error; }

API cudaError_t cudaSetDevice(int device) {
    CUcontext c;
    TRY(started());
    TRY(primary_context(device, &c)); /* since CUDA 12 this makes the context */
    chosen_device = device;
    return end(driver.cuCtxSetCurrent(c));
}

API cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    CUcontext c;
    TRY(started());
    if (flags & 1 && device >= 0 && device < state.count) /* cudaInitDeviceFlagsAreValid */
        TRY(driver.cuDevicePrimaryCtxSetFlags(device, device_flags));
    return end(primary_context(device, &c));
}

API cudaError_t cudaDriverGetVersion(int *version) {
    if (!version)
        return end(cudaErrorInvalidValue);
    started();
    if (!driver.cuDriverGetVersion || driver.cuDriverGetVersion(version))
        *version = 0; /* no driver */
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    if (!version)
        return end(cudaErrorInvalidValue);
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

#define DRIVER(name, version, types)
#define PASS(runtime, name, version, types, arguments) \
    API cudaError_t runtime types {                    \
        TRY(ready());                                  \
        return end(driver.name arguments);             \
    }
#include "calls.def"
