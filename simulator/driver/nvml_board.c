/* The simulated libnvidia-ml: what management tools ask of a board: clocks, power, temperature, PCI Express, ECC. A
 * simulated GPU has none of it. The answers are constants like those of a data-centre GPU, but power, which follows the
 * load, so that tools have something to print. */
#define _GNU_SOURCE
#include "nvml.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { MHZ = 1000, MEMORY_MHZ = 1000, TEMPERATURE = 35, IDLE_MW = 70000, MOST_MW = 350000 };

#define NUMBER(name, type, value)                       \
    API nvmlReturn_t name(nvmlDevice_t d, type *v) {    \
        nvmlReturn_t r = nvml_device(d);                \
        if (r || !v)                                    \
            return r ? r : NVML_ERROR_INVALID_ARGUMENT; \
        *v = (type)(value);                             \
        return NVML_SUCCESS;                            \
    }
/* A figure of one of several kinds: those from 0 to `last`. */
#define NUMBER_OF(name, type, last, value)                          \
    API nvmlReturn_t name(nvmlDevice_t d, unsigned kind, type *v) { \
        nvmlReturn_t r = nvml_device(d);                            \
        if (r || !v || kind > (last))                               \
            return r ? r : NVML_ERROR_INVALID_ARGUMENT;             \
        *v = (type)(value);                                         \
        return NVML_SUCCESS;                                        \
    }
#define PAIR(name, type, first, second)                       \
    API nvmlReturn_t name(nvmlDevice_t d, type *a, type *b) { \
        nvmlReturn_t r = nvml_device(d);                      \
        if (r || !a || !b)                                    \
            return r ? r : NVML_ERROR_INVALID_ARGUMENT;       \
        *a = (type)(first);                                   \
        *b = (type)(second);                                  \
        return NVML_SUCCESS;                                  \
    }
#define TEXT(name, ...)                                                                    \
    API nvmlReturn_t name(nvmlDevice_t d, char *v, unsigned size) {                        \
        nvmlReturn_t r = nvml_device(d);                                                   \
        if (r || !v)                                                                       \
            return r ? r : NVML_ERROR_INVALID_ARGUMENT;                                    \
        int n = snprintf(v, size, __VA_ARGS__);                                            \
        return n >= 0 && (unsigned)n < size ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE; \
    }

/* --- temperature, power --- */

NUMBER_OF(nvmlDeviceGetTemperature, unsigned, 0, TEMPERATURE)             /* NVML_TEMPERATURE_GPU */
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, unsigned, 3, kind ? 90 : 95) /* shutdown, slowdown, memory, GPU */

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !milliwatts)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    struct utilisation load = {0, 0};
    nvmlDeviceGetUtilizationRates(d, &load); /* without it: as idle */
    *milliwatts = IDLE_MW + load.gpu * ((MOST_MW - IDLE_MW) / 100);
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, MOST_MW)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, MOST_MW)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, MOST_MW)
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned, MOST_MW / 2, MOST_MW)
NUMBER(nvmlDeviceGetPowerManagementMode, unsigned, 1)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, 0)
NUMBER(nvmlDeviceGetPowerState, unsigned, 0)

/* Figures by field number, those of the functions above included. An unknown field has a result of its own; the call succeeds. */
struct field { /* nvmlFieldValue_t */
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    unsigned long long value;
};

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, struct field *list) {
    enum { AVERAGE = 185, INSTANT, LEAST, MOST, DEFAULT, CURRENT, REQUESTED = 192 }; /* NVML_FI_DEV_POWER_... */
    enum { UNSIGNED_INT = 1 };                                                       /* NVML_VALUE_TYPE_... */
    unsigned power;
    nvmlReturn_t r = nvmlDeviceGetPowerUsage(d, &power);
    if (r || n <= 0 || !list)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    for (struct field *f = list; f < list + n; f++) {
        f->timestamp = f->latency = 0;
        f->type = UNSIGNED_INT;
        f->result =
            f->scope ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS; /* 0: of the GPU; else of its memory or module */
        f->value = 0;
        switch (f->id) {
        case AVERAGE:
        case INSTANT: f->value = power; break;
        case LEAST: f->value = MOST_MW / 2; break;
        case MOST:
        case DEFAULT:
        case CURRENT:
        case REQUESTED: f->value = MOST_MW; break;
        default: f->result = NVML_ERROR_NOT_SUPPORTED;
        }
    }
    return NVML_SUCCESS;
}

/* --- clocks: graphics, SM, memory, video. They never change. --- */

NUMBER_OF(nvmlDeviceGetClockInfo, unsigned, 3, kind == 2 ? MEMORY_MHZ : MHZ)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, unsigned, 3, kind == 2 ? MEMORY_MHZ : MHZ)
NUMBER_OF(nvmlDeviceGetApplicationsClock, unsigned, 3, kind == 2 ? MEMORY_MHZ : MHZ)
NUMBER_OF(nvmlDeviceGetDefaultApplicationsClock, unsigned, 3, kind == 2 ? MEMORY_MHZ : MHZ)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t d, unsigned kind, unsigned id, unsigned *mhz) {
    return id > 3 ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetClockInfo(d, kind, mhz);
}

/* A list of one clock. */
static nvmlReturn_t one_clock(nvmlDevice_t d, unsigned *n, unsigned *list, unsigned mhz) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !n)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    bool room = list && *n;
    if (room)
        *list = mhz;
    *n = 1;
    return room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t d, unsigned *n, unsigned *list) {
    return one_clock(d, n, list, MEMORY_MHZ);
}
API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t d, unsigned memory, unsigned *n, unsigned *list) {
    return memory == MEMORY_MHZ ? one_clock(d, n, list, MHZ) : NVML_ERROR_NOT_FOUND;
}

/* --- PCI Express --- */

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, 5) /* NVML_PCIE_LINK_MAX_SPEED_32000MBPS */
NUMBER(nvmlDeviceGetPcieSpeed, unsigned, 32000)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
NUMBER_OF(nvmlDeviceGetPcieThroughput, unsigned, 1, 0)

struct memory {
    unsigned long long total, free, used;
};

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, struct memory *out) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !out)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    unsigned long long total = 1ull << 28;
    while (total < d->file->head.memory_total)
        total *= 2;
    *out = (struct memory){total, total - (2ull << 20), 2ull << 20};
    return NVML_SUCCESS;
}

/* --- ECC: on, and without errors --- */

PAIR(nvmlDeviceGetEccMode, unsigned, 1, 1)
NUMBER(nvmlDeviceGetDefaultEccMode, unsigned, 1)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, 0)

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned kind, unsigned since, unsigned long long *n) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !n || kind > 1 || since > 1)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    *n = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, unsigned kind, unsigned since, unsigned where,
                                                 unsigned long long *n) {
    return where > 6 ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetTotalEccErrors(d, kind, since, n);
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, unsigned cause, unsigned *n, void *list) {
    (void)list;
    nvmlReturn_t r = nvml_device(d);
    if (r || !n || cause > 1)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    *n = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *right, unsigned *wrong, unsigned *pending,
                                           unsigned *failed) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !right || !wrong || !pending || !failed)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    *right = *wrong = *pending = *failed = 0;
    return NVML_SUCCESS;
}

/* --- the board; its engines for video are idle --- */

NUMBER(nvmlDeviceGetArchitecture, unsigned, 9) /* NVML_DEVICE_ARCH_HOPPER, of compute capability 9.0 */
NUMBER(nvmlDeviceGetBoardId, unsigned, d->file->head.minor + 1)
NUMBER(nvmlDeviceGetModuleId, unsigned, d->file->head.minor + 1)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, 1024)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, 0)
NUMBER(nvmlDeviceGetAccountingMode, unsigned, 0)
NUMBER(nvmlDeviceGetAccountingBufferSize, unsigned, 4000)
NUMBER(nvmlDeviceGetNumFans, unsigned, 0)
NUMBER(nvmlDeviceGetIrqNum, unsigned, 0)
PAIR(nvmlDeviceGetEncoderUtilization, unsigned, 0, 167000) /* per cent, sampling period in us */
PAIR(nvmlDeviceGetDecoderUtilization, unsigned, 0, 167000)
PAIR(nvmlDeviceGetJpgUtilization, unsigned, 0, 167000)
PAIR(nvmlDeviceGetOfaUtilization, unsigned, 0, 167000)
TEXT(nvmlDeviceGetVbiosVersion, "00.00.00.00.%02u", d->file->head.minor)
TEXT(nvmlDeviceGetSerial, "%013u", d->file->head.minor + 1)
TEXT(nvmlDeviceGetBoardPartNumber, "simulated")
TEXT(nvmlDeviceGetInforomImageVersion, "simulated")
TEXT(nvmlDeviceGetGspFirmwareVersion, "%s", d->file->head.driver_version)
PAIR(nvmlDeviceGetGspFirmwareMode, unsigned, 1, 1)

API nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t d) { return nvml_device(d); }

API nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t d, unsigned kind, char *v, unsigned size) {
    return kind > 3 ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetInforomImageVersion(d, v, size);
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *out) {
    nvmlReturn_t r = nvml_device(a);
    if (r || (r = nvml_device(b)))
        return r;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = a == b;
    return NVML_SUCCESS;
}

/* The CPUs of the machine, which are all as near. In words of 64 bits. */
static nvmlReturn_t near_cpus(nvmlDevice_t d, unsigned words, unsigned long *set) {
    cpu_set_t all;
    nvmlReturn_t r = nvml_device(d);
    if (r || !set || !words)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, words * sizeof *set);
    if (sched_getaffinity(0, sizeof all, &all))
        return NVML_ERROR_UNKNOWN;
    for (unsigned i = 0; i < words * 64 && i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all))
            set[i / 64] |= 1ul << i % 64;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, unsigned words, unsigned long *set) {
    return near_cpus(d, words, set);
}
API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t d, unsigned words, unsigned long *set,
                                                     unsigned scope) {
    return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : near_cpus(d, words, set);
}
API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, unsigned words, unsigned long *set, unsigned scope) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !set || !words || scope > 1)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    memset(set, 0, words * sizeof *set);
    set[0] = d->file->head.numa < 0 || d->file->head.numa > 63 ? 1 : 1ul << d->file->head.numa;
    return NVML_SUCCESS;
}

/* --- NVLinks: to GPU N, it is link N --- */

enum { LINKS = 18 };

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active) {
    nvmlReturn_t r = nvml_device(d);
    if (r || !active || link >= LINKS)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    if (!d->file->head.nvlink)
        return NVML_ERROR_NOT_SUPPORTED;
    *active = d->file->head.nvlink >> link & 1;
    return NVML_SUCCESS;
}
