/* NVML for the tests: four GPUs of 8 GiB, most of it in use by others, with processes that are not ours. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu, compute;
} process;

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, 0; }
int nvmlDeviceGetAccountingBufferSize(void *d, unsigned *n) { return (void)d, *n = 10, 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { return snprintf(out, n, "550.163.01"), 0; }
int nvmlDeviceGetIndex(void *d, unsigned *i) { return *i = (unsigned)(unsigned long)d & 0xf, 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 4, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) { return *out = (void *)(0x100ul + i), i < 4 ? 0 : 2; }
int nvmlDeviceGetUUID(void *device, char *out, unsigned length) {
    unsigned b = 0xa0 + ((unsigned long)device & 0xf);
    snprintf(out, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b, b, b, b, b, b,
             b, b, b, b, b, b, b, b, b, b);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) {
    (void)d;
    m[0] = 8ull << 30, m[1] = 1ull << 30, m[2] = 7ull << 30;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *d, unsigned long long *m) {
    (void)d;
    m[1] = 8ull << 30, m[2] = 1ull << 29, m[3] = 1ull << 30, m[4] = 13ull << 29;
    return 0;
}
int nvmlDeviceGetBAR1MemoryInfo(void *d, unsigned long long *m) {
    (void)d;
    m[0] = 16ull << 30, m[1] = 1ull << 30, m[2] = 15ull << 30;
    return 0;
}
/* and no nvmlDeviceGetTemperatureV, which driver 560 brought */
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *celsius) {
    (void)d;
    return sensor ? 2 : (*celsius = 41, 0);
}
/* Beyond PID_MAX_LIMIT (2^22): no process of this machine has them by chance. */
enum { OTHER = 5004242, ANOTHER = 5004343 };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process *list) {
    (void)d;
    if (*n < 2)
        return *n = 2, 7;
    *n = 2;
    list[0] = (process){getenv("FAKE_LISTED_PID") ? (unsigned)getpid() : OTHER, 1ull << 30, ~0u, ~0u};
    list[1] = (process){ANOTHER, 2ull << 30, ~0u, ~0u};
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *d, unsigned *n, process *list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(d, n, list);
}
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, void *list) { return (void)d, (void)list, *n = 0, 0; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, unsigned *n, process *list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(d, n, list);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *d, unsigned *n, process *list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(d, n, list);
}
typedef struct {
    unsigned gpu, memory;
} rates;
int nvmlDeviceGetUtilizationRates(void *d, rates *r) { return (void)d, *r = (rates){77, 33}, 0; }
typedef struct {
    unsigned pid;
    unsigned long long stamp;
    unsigned sm, memory, encoder, decoder;
} sample;
int nvmlDeviceGetProcessUtilization(void *d, sample *s, unsigned *n, unsigned long long since) {
    (void)d, (void)since;
    if (!s || *n < 2)
        return *n = 2, 7;
    *n = 2;
    s[0] = (sample){getenv("FAKE_OWN_PID") ? (unsigned)getpid() : OTHER, 1, 40, 10, 0, 0};
    s[1] = (sample){ANOTHER, 1, 37, 10, 0, 0};
    return 0;
}
int nvmlDeviceSetPersistenceMode(void *d, int mode) { return (void)d, (void)mode, 0; }
int nvmlDeviceSetComputeMode(void *d, int mode) { return (void)d, (void)mode, 0; }
int nvmlDeviceSetClockOffsets(void *d, void *info) { return (void)d, (void)info, 0; }
int nvmlDeviceReadWritePRM_v1(void *d, void *buffer) { return (void)d, (void)buffer, 0; }
int nvmlDeviceSetMemoryLimits_v1(void *d, void *limits) { return (void)d, (void)limits, 0; }
int nvmlDeviceGetAccountingStats_v2(void *d, void *stats) { return (void)d, *(unsigned *)stats = 1, 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned n) { return (void)d, snprintf(name, n, "Fake"), 0; }
const char *nvmlErrorString(int r) { return r ? "error" : "fine"; }
int nvmlDeviceGetAccountingPids(void *d, unsigned *n, unsigned *pids) {
    (void)d;
    if (*n < 1)
        return *n = 1, 7;
    return *n = 1, pids[0] = OTHER, 0;
}
