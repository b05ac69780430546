/* The part of NVML's binary interface that the shim touches, written from its public documentation. */
#ifndef GPU_HOOK_NVML_H
#define GPU_HOOK_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlBAR1Memory_t;
#define NVML_TEMPERATURE_V1 0x100000cu
typedef struct {
    unsigned version, sensor;
    int celsius;
} nvmlTemperature_v1_t;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
} nvmlProcessInfo_v1_t;
typedef struct { /* _v2 and _v3 */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_bytes;
} nvmlProcessDetail_v1_t;
#define NVML_PROCESS_DETAIL_LIST_V1 0x1000018u
typedef struct {
    unsigned version, mode, count;
    nvmlProcessDetail_v1_t *array;
} nvmlProcessDetailList_v1_t;
typedef struct {
    unsigned gpu, memory; /* per cent */
} nvmlUtilization_t;
typedef struct {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;
typedef struct {
    unsigned long long time;
    unsigned pid, sm, memory, encoder, decoder, jpeg, flow;
} nvmlProcessUtilizationInfo_v1_t;
typedef struct {
    unsigned version, count;
    unsigned long long since;
    nvmlProcessUtilizationInfo_v1_t *array;
} nvmlProcessesUtilizationInfo_v1_t;
typedef struct {
    unsigned gpu, memory;
    unsigned long long most_bytes, time, start_time;
    unsigned running, reserved[5];
} nvmlAccountingStats_t;
enum { NVML_GPU_UTILIZATION_SAMPLES = 1, NVML_MEMORY_UTILIZATION_SAMPLES = 2 };

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius);
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature);

#define LIST_OF(name, type) nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *array);
LIST_OF(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST_OF(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST_OF(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
LIST_OF(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST_OF(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST_OF(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
LIST_OF(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST_OF(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST_OF(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
#undef LIST_OF
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned *count, unsigned long long since);
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates);
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since, int *value_type,
                                  unsigned *count, void *samples);
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids);
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats);
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, void *stats);
nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, void *sessions);
nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned *count, void *sessions);

#endif
