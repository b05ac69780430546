/* NVML's processes and load: only the container's own. The processes are those with an account slot, with their pids in
 * this container. Their load is what the driver says of these pids. If the driver uses the host's pids, it cannot be
 * asked, and nothing is shown rather than the load of other containers. */
#include <stdlib.h>

#include "account/account.h"
#include "account/slot_lock.h"
#include "driver/nvml.h"
#include "driver/real.h"
#include "nvml/nvml_gpu.h"
#include "process/identity.h"

#define COMPUTE 0 /* nvmlProcessMode; a container with a share has no graphics and MPS processes */
#define MANY 512
#define NONE 0xffffffffu /* no MIG instance */

struct process {
    unsigned pid;
    uint64_t bytes;
};

static void list_process(struct process *out, unsigned *n, struct process one) {
    for (unsigned i = 0; i < *n; i++)
        if (out[i].pid == one.pid) { /* memory that it shares has a slot of its own */
            out[i].bytes += one.bytes;
            return;
        }
    out[(*n)++] = one;
}

/* The container's processes on a GPU: those that run, in this pid namespace. Memory of an exited process, which a forked
 * child keeps, is in use and listed for nobody, as by the driver. */
static unsigned own_processes(struct gh_state *st, int gpu, struct process *out, unsigned room) {
    struct gh_account_page *page = gpu < 0 ? NULL : gh_account_page(st);
    unsigned n = 0;
    if (page)
        gh_sweep_before_shown(st);
    int locks = page ? gh_slot_locks_open(st) : -1;
    for (unsigned slot = 1; page && slot < GH_ACCOUNT_SLOTS && n < room; slot++) {
        uint64_t owner = atomic_load(&page->owner[slot]);
        if (!owner)
            continue;
        uint64_t bytes = gh_bytes(gh_account_slot_used(page, slot, (unsigned)gpu));
        bool has_context = !atomic_load(&page->shared[slot]) && atomic_load(&page->entry[slot][gpu].contexts);
        if ((bytes || has_context) && gh_slot_locked(locks, slot) && gh_runs_here(owner))
            list_process(out, &n, (struct process){gh_owner_pid(owner), bytes});
    }
    gh_slot_locks_close(locks);
    return n;
}

/* False: the driver's own lists are shown (a whole GPU). */
static bool listed(nvmlDevice_t device, struct process *list, unsigned *n) {
    struct gh_state *st = gh_here();
    struct gh_memory_view v;
    if (!memory_view(device, &v))
        return false;
    *n = st ? own_processes(st, gpu_of_handle(st, device), list, MANY) : 0;
    return true;
}

/* The driver's answer where it was asked how much there is, with no room for it: an error of its own is the program's. A
 * driver that has no such function still says what the handle is. */
static nvmlReturn_t driver_error(nvmlDevice_t device, nvmlReturn_t asked) {
    char uuid[96];
    if (asked == NVML_ERROR_FUNCTION_NOT_FOUND)
        return REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
    return asked == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : asked;
}

static bool mine(const struct process *list, unsigned n, unsigned pid) {
    for (unsigned i = 0; i < n; i++)
        if (list[i].pid == pid)
            return true;
    return false;
}

/* The answer of every list call, given the size of the caller's array. */
static nvmlReturn_t hand_out(unsigned n, unsigned *count, const void *array) {
    bool room = *count >= n && (array || !n);
    *count = n;
    return room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define LIST(name, type, shown, ...)                                                 \
    GH_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *array) { \
        struct process list[MANY];                                                   \
        unsigned n, theirs = 0;                                                      \
        if (!count || !listed(device, list, &n))                                     \
            return REAL(name)(device, count, array);                                 \
        nvmlReturn_t r = driver_error(device, REAL(name)(device, &theirs, NULL));    \
        if (r != NVML_SUCCESS)                                                       \
            return r;                                                                \
        n = shown ? n : 0;                                                           \
        r = hand_out(n, count, array);                                               \
        for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++)                        \
            array[i] = (type){list[i].pid, list[i].bytes __VA_ARGS__};               \
        return r;                                                                    \
    }
#define INSTANCES , NONE, NONE
LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true, INSTANCES)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, true, INSTANCES)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false, INSTANCES)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, false, INSTANCES)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false, INSTANCES)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, false, INSTANCES)

GH_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *out) {
    struct process list[MANY];
    unsigned n;
    if (!out || out->version != NVML_PROCESS_DETAIL_LIST_V1 || !listed(device, list, &n))
        return REAL(nvmlDeviceGetRunningProcessDetailList)(device, out);
    nvmlProcessDetailList_v1_t theirs = {.version = out->version, .mode = out->mode};
    nvmlReturn_t r = driver_error(device, REAL(nvmlDeviceGetRunningProcessDetailList)(device, &theirs));
    if (r != NVML_SUCCESS)
        return r;
    n = out->mode == COMPUTE ? n : 0;
    r = hand_out(n, &out->count, out->array);
    for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++)
        out->array[i] = (nvmlProcessDetail_v1_t){list[i].pid, list[i].bytes, NONE, NONE, 0};
    return r;
}

/* ---- load ---- */

/* The driver's samples of our processes; the caller frees them. */
static nvmlReturn_t own_samples(nvmlDevice_t device, const struct process *list, unsigned own, uint64_t since,
                                nvmlProcessUtilizationSample_t **out, unsigned *n) {
    unsigned room = 0;
    *out = NULL;
    *n = 0;
    nvmlReturn_t r = REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &room, since);
    if (r != NVML_ERROR_INSUFFICIENT_SIZE || !room)
        return r == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : r;
    room += 64; /* processes may start between the two calls */
    if (!(*out = calloc(room, sizeof **out)))
        return NVML_ERROR_NOT_FOUND;
    if ((r = REAL(nvmlDeviceGetProcessUtilization)(device, *out, &room, since)))
        return r;
    for (unsigned i = 0; i < room; i++)
        if (mine(list, own, (*out)[i].pid))
            (*out)[(*n)++] = (*out)[i];
    return *n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

GH_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                       unsigned *count, unsigned long long since) {
    struct process list[MANY];
    unsigned own, n;
    nvmlProcessUtilizationSample_t *samples;
    if (!count || !listed(device, list, &own))
        return REAL(nvmlDeviceGetProcessUtilization)(device, out, count, since);
    nvmlReturn_t r = own_samples(device, list, own, since, &samples, &n);
    if (r == NVML_SUCCESS)
        r = hand_out(n, count, out);
    for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++)
        out[i] = samples[i];
    free(samples);
    return r;
}

GH_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                             nvmlProcessesUtilizationInfo_v1_t *info) {
    struct process list[MANY];
    unsigned own, n = 0;
    nvmlReturn_t r = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    if (r != NVML_SUCCESS || !info->array || !listed(device, list, &own))
        return r;
    for (unsigned i = 0; i < info->count; i++)
        if (mine(list, own, info->array[i].pid))
            info->array[n++] = info->array[i];
    info->count = n;
    return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* True if the driver uses this container's pids: then it lists some process of ours. */
static bool same_numbers(nvmlDevice_t device, const struct process *list, unsigned own) {
    unsigned n = 0;
    bool same = false;
    if (REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &n, NULL) != NVML_ERROR_INSUFFICIENT_SIZE || !n)
        return false;
    n += 64;
    nvmlProcessInfo_v2_t *theirs = calloc(n, sizeof *theirs);
    if (theirs && !REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &n, theirs))
        for (unsigned i = 0; i < n; i++)
            same |= mine(list, own, theirs[i].pid);
    free(theirs);
    return same;
}

/* The load of the container: the sum of its processes' newest samples. */
GH_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct process list[MANY];
    unsigned own, n;
    nvmlProcessUtilizationSample_t *samples;
    nvmlReturn_t r = REAL(nvmlDeviceGetUtilizationRates)(device, rates);
    if (r != NVML_SUCCESS || !listed(device, list, &own))
        return r;
    *rates = (nvmlUtilization_t){0, 0};
    if (!own)
        return NVML_SUCCESS;
    r = own_samples(device, list, own, 0, &samples, &n);
    for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++) {
        bool newest = true;
        for (unsigned k = 0; k < n; k++)
            newest &= samples[k].pid != samples[i].pid || samples[k].time <= samples[i].time;
        rates->gpu += newest ? samples[i].sm : 0;
        rates->memory += newest ? samples[i].memory : 0;
    }
    rates->gpu = rates->gpu < 100 ? rates->gpu : 100;
    rates->memory = rates->memory < 100 ? rates->memory : 100;
    free(samples);
    /* No sample of ours: we are idle, or the driver uses other pids. */
    return r == NVML_SUCCESS || same_numbers(device, list, own) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The load history of the whole GPU would show what other containers do. */
GH_EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long since, int *value_type,
                                            unsigned *count, void *samples) {
    struct gh_memory_view v;
    bool load = type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;
    if (!load || !memory_view(device, &v))
        return REAL(nvmlDeviceGetSamples)(device, type, since, value_type, count, samples);
    int kind;
    unsigned n = 0;
    nvmlReturn_t r = driver_error(
        device, REAL(nvmlDeviceGetSamples)(device, type, since, value_type ? &kind : NULL, count ? &n : NULL, NULL));
    return r == NVML_SUCCESS || r == NVML_ERROR_NOT_FOUND ? NVML_ERROR_NOT_SUPPORTED : r;
}

/* NVML's accounting contains pids and use of other containers. */
GH_EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids) {
    struct gh_memory_view v;
    nvmlReturn_t r = REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    if ((r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE) || !memory_view(device, &v))
        return r;
    for (unsigned i = 0; r == NVML_SUCCESS && pids && i < *count; i++)
        pids[i] = 0;
    *count = 0;
    return NVML_ERROR_NOT_SUPPORTED;
}

GH_EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats) {
    struct gh_memory_view v;
    nvmlReturn_t r = REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
    if (r != NVML_SUCCESS || !memory_view(device, &v))
        return r;
    *stats = (nvmlAccountingStats_t){0};
    return NVML_ERROR_NOT_SUPPORTED;
}

/* The structure of later drivers (since 615): not asked for, since its size may grow. */
GH_EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, void *stats) {
    struct gh_memory_view v;
    if (!stats || !memory_view(device, &v))
        return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    nvmlReturn_t r = driver_error(device, NVML_ERROR_FUNCTION_NOT_FOUND);
    return r == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : r;
}

/* Video sessions contain pids of other containers. */
#define SESSIONS(name)                                                                  \
    GH_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *sessions) { \
        struct gh_memory_view v;                                                        \
        unsigned theirs = 0;                                                            \
        if (!count || !memory_view(device, &v))                                         \
            return REAL(name)(device, count, sessions);                                 \
        nvmlReturn_t r = driver_error(device, REAL(name)(device, &theirs, NULL));       \
        *count = r == NVML_SUCCESS ? 0 : *count;                                        \
        return r;                                                                       \
    }
SESSIONS(nvmlDeviceGetEncoderSessions)
SESSIONS(nvmlDeviceGetFBCSessions)
