/* Shared by the parts of the simulated libnvidia-ml. Names and numbers are NVML's. */
#ifndef GPU_HOOK_SIM_NVML_H
#define GPU_HOOK_SIM_NVML_H

#include "gpu.h"

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef struct gpu *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

/* NVML_SUCCESS: the library is initialised, and this is one of its devices. */
nvmlReturn_t nvml_device(nvmlDevice_t device);

struct utilisation { /* nvmlUtilization_t, per cent */
    unsigned gpu, memory;
};
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilisation *out);

#endif
