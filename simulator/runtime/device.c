/* The simulator's CUDA runtime: devices. */
#define _GNU_SOURCE
#include "runtime.h"

#include <string.h>

API cudaError_t cudaGetDeviceCount(int *count) {
    if (!count)
        return end(cudaErrorInvalidValue);
    *count = 0;
    TRY(started());
    *count = device_count();
    return cudaSuccess;
}

API cudaError_t cudaGetDevice(int *device) {
    TRY(started());
    return end(device ? current_device(device) : cudaErrorInvalidValue);
}

static int known(int device) {
    int r = started();
    return r ? r : device < 0 || device >= device_count() ? cudaErrorInvalidDevice : cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, int what, int device) {
    TRY(known(device));
    return end(driver.cuDeviceGetAttribute(value, what, device)); /* cudaDeviceAttr has the driver's numbers */
}

API cudaError_t cudaDeviceGetPCIBusId(char *out, int room, int device) {
    TRY(known(device));
    return end(driver.cuDeviceGetPCIBusId(out, room, device));
}

API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
    TRY(started());
    return end(driver.cuDeviceGetByPCIBusId(device, id));
}

API cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *out, int device) {
    TRY(known(device));
    return end(driver.cuDeviceGetDefaultMemPool(out, device));
}

API cudaError_t cudaDeviceGetMemPool(CUmemoryPool *out, int device) {
    TRY(known(device));
    return end(driver.cuDeviceGetMemPool(out, device));
}

API cudaError_t cudaDeviceSetMemPool(int device, CUmemoryPool pool) {
    TRY(known(device));
    return end(driver.cuDeviceSetMemPool(device, pool));
}

API cudaError_t cudaSetDeviceFlags(unsigned flags) {
    int device;
    TRY(started());
    TRY(current_device(&device));
    return end(driver.cuDevicePrimaryCtxSetFlags(device, flags));
}

API cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    int device, active;
    TRY(started());
    TRY(current_device(&device));
    return end(driver.cuDevicePrimaryCtxGetState(device, flags, &active));
}

API cudaError_t cudaDeviceReset(void) {
    int device;
    TRY(started());
    TRY(current_device(&device));
    int r = driver.cuDevicePrimaryCtxReset(device);
    forget_primary_context(device);
    driver.cuCtxSetCurrent(NULL);
    return end(r);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    TRY(known(device));
    TRY(known(peer));
    return end(driver.cuDeviceCanAccessPeer(can, device, peer));
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    CUcontext c;
    TRY(ready());
    TRY(primary_context(peer, &c));
    return end(driver.cuCtxEnablePeerAccess(c, flags));
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    CUcontext c;
    TRY(ready());
    TRY(primary_context(peer, &c));
    return end(driver.cuCtxDisablePeerAccess(c));
}

/* --- cudaDeviceProp, whose fields CUDA 13 moved; those that are not in the table stay 0 --- */

enum { NAME_AT = 0, NAME_SIZE = 256, UUID_AT = 256, TOTAL_AT = 288, PROPERTIES_SIZE = CUDA_13 ? 1008 : 1032 };

static const struct {
    int attribute, at, bytes;
} property[] = {
#define PROPERTY(name, attribute, at12, at13) {attribute, CUDA_13 ? at13 : at12, 4},
#define SIZE(name, attribute, at12, at13) {attribute, CUDA_13 ? at13 : at12, 8},
#include "props.def"
};

static int properties(char *out, int device) {
    size_t total;
    TRY(known(device));
    if (!out)
        return end(cudaErrorInvalidValue);
    memset(out, 0, PROPERTIES_SIZE);
    TRY(driver.cuDeviceGetName(out + NAME_AT, NAME_SIZE, device));
    TRY(driver.cuDeviceGetUuid(out + UUID_AT, device));
    TRY(driver.cuDeviceTotalMem(&total, device));
    memcpy(out + TOTAL_AT, &total, sizeof total);
    for (size_t i = 0; i < sizeof property / sizeof *property; i++) {
        int value;
        if (property[i].at < 0 || driver.cuDeviceGetAttribute(&value, property[i].attribute, device))
            continue; /* a property that this driver does not know */
        int64_t wide = value;
        memcpy(out + property[i].at, property[i].bytes == 8 ? (void *)&wide : (void *)&value,
               (size_t)property[i].bytes);
    }
    return cudaSuccess;
}

#if CUDA_13
API cudaError_t cudaGetDeviceProperties(void *out, int device) { return properties(out, device); }
#else
API cudaError_t cudaGetDeviceProperties_v2(void *out, int device) { return properties(out, device); }
#endif
