/* The simulated libnvidia-ml: answers the questions of management tools from the GPU files, which it only reads. Other
 * functions of NVML answer "not supported" (build.py). */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gpu gpus[GPU_MAX];
static int count;
static int users;

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    if (!count) /* GPUs stay open after the last nvmlShutdown: closing would drop classical locks (gpu.h) */
        count = gpus_open(gpus, GPU_MAX, false);
    if (count)
        users++;
    pthread_mutex_unlock(&mutex);
    return count ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    bool up = users > 0;
    users -= up;
    pthread_mutex_unlock(&mutex);
    return up ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

API const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    default: return "Unknown Error";
    }
}

#define READY()                              \
    do {                                     \
        if (!users)                          \
            return NVML_ERROR_UNINITIALIZED; \
    } while (0)

static bool known(nvmlDevice_t d) { return d >= gpus && d < gpus + count && d->file; }

nvmlReturn_t nvml_device(nvmlDevice_t d) {
    READY();
    if (!known(d))
        return NVML_ERROR_INVALID_ARGUMENT;
    return d->file->head.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

#define DEVICE(d)                                \
    do {                                         \
        nvmlReturn_t no_device = nvml_device(d); \
        if (no_device)                           \
            return no_device;                    \
    } while (0)

static nvmlReturn_t text(char *out, unsigned size, const char *value) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(value) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

#define NUMBER(name, type, value)                    \
    API nvmlReturn_t name(nvmlDevice_t d, type *v) { \
        DEVICE(d);                                   \
        if (!v)                                      \
            return NVML_ERROR_INVALID_ARGUMENT;      \
        *v = (type)(value);                          \
        return NVML_SUCCESS;                         \
    }
#define TEXT(name, value)                                           \
    API nvmlReturn_t name(nvmlDevice_t d, char *v, unsigned size) { \
        DEVICE(d);                                                  \
        return text(v, size, value);                                \
    }

/* --- system --- */

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    READY();
    return text(out, size, gpus[0].file->head.driver_version);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    READY();
    char version[48];
    snprintf(version, sizeof version, "%u.%.*s", gpus[0].file->head.cuda_version / 1000, 31,
             gpus[0].file->head.driver_version);
    return text(out, size, version);
}

/* Also without nvmlInit, as the real one. */
static nvmlReturn_t cuda_version(int *out) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = gpu_cuda_version(gpus, count);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(out); }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version(out); }

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    READY();
    char path[32], name[256];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(name, 1, sizeof name - 1, f) : 0;
    if (f)
        fclose(f);
    name[n] = 0; /* the program's name ends at the first NUL */
    return n ? text(out, size, name) : NVML_ERROR_NOT_FOUND;
}

/* --- which device --- */

/* MIG devices come after all GPUs (GPU_MIG) and are found through their GPU. In a container that has only them, they
 * are its GPUs. */
static int visible(void) {
    int n = 0;
    while (n < count && gpus[n].file->head.mig != GPU_PART)
        n++;
    return n ? n : count;
}

static nvmlReturn_t get_count(unsigned *out) {
    READY();
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (unsigned)visible();
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *out) { return get_count(out); }
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) { return get_count(out); }

static nvmlReturn_t by_index(unsigned index, nvmlDevice_t *out) {
    READY();
    if (!out || index >= (unsigned)visible())
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = &gpus[index];
    return gpus[index].file->head.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out) { return by_index(index, out); }
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) { return by_index(index, out); }

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    READY();
    if (!uuid || !out)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        if (!strcmp(gpus[i].file->head.uuid, uuid) || !strcmp(gpus[i].file->head.uuid + 4, uuid)) { /* without GPU- */
            *out = &gpus[i];
            return gpus[i].file->head.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

static bool pci_parse(const char *id, unsigned part[3]) {
    return sscanf(id, "%x:%x:%x", &part[0], &part[1], &part[2]) == 3;
}

static nvmlReturn_t by_pci(const char *id, nvmlDevice_t *out) {
    READY();
    unsigned want[3], have[3];
    if (!id || !out || !pci_parse(id, want))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        if (pci_parse(gpus[i].file->head.pci, have) && !memcmp(want, have, sizeof want)) {
            *out = &gpus[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out) { return by_pci(id, out); }
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) { return by_pci(id, out); }

/* --- MIG --- */

static bool part_of(const struct gpu_head *h, nvmlDevice_t d) {
    return h->mig == GPU_PART && !strcmp(h->parent, d->file->head.uuid);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    DEVICE(d);
    if (!current || !pending)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = *pending = d->file->head.mig == GPU_SPLIT;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *out) {
    DEVICE(d);
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        const struct gpu_head *h = &gpus[i].file->head;
        if (part_of(h, d) && h->mig_index == index) {
            *out = &gpus[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, d->file->head.mig == GPU_SPLIT ? 7 : 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned, d->file->head.mig == GPU_PART)
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned, d->file->head.gpu_instance)
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned, d->file->head.compute_instance)

TEXT(nvmlDeviceGetUUID, d->file->head.uuid)
TEXT(nvmlDeviceGetName, d->file->head.name)
NUMBER(nvmlDeviceGetIndex, unsigned, d - gpus)
NUMBER(nvmlDeviceGetMinorNumber, unsigned, d->file->head.minor)
NUMBER(nvmlDeviceGetBrand, unsigned, 0)       /* NVML_BRAND_UNKNOWN */
NUMBER(nvmlDeviceGetComputeMode, unsigned, 0) /* the default mode: several processes at once */
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, 1)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, d->file->head.sm_count * 128)

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    DEVICE(d);
    if (!major || !minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)d->file->head.capability / 10;
    *minor = (int)d->file->head.capability % 10;
    return NVML_SUCCESS;
}

struct pci_info { /* nvmlPciInfo_t */
    char legacy_id[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

static nvmlReturn_t pci_info(nvmlDevice_t d, struct pci_info *out) {
    DEVICE(d);
    unsigned part[3] = {0, 0, 0};
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    pci_parse(d->file->head.pci, part);
    out->domain = part[0];
    out->bus = part[1];
    out->device = part[2];
    snprintf(out->legacy_id, sizeof out->legacy_id, "%04x:%02x:%02x.0", part[0] & 0xffff, part[1] & 0xff,
             part[2] & 0xff);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", d->file->head.pci);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, struct pci_info *out) { return pci_info(d, out); }

/* Versions 1 and 2 have the short bus id only, and version 2 four reserved words behind it. */
static nvmlReturn_t pci_info_short(nvmlDevice_t d, void *out, size_t bytes) {
    struct pci_info whole;
    nvmlReturn_t r = pci_info(d, &whole);
    if (r || !out)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    memset(whole.bus_id, 0, sizeof whole.bus_id);
    memcpy(out, &whole, bytes);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t d, void *out) { return pci_info_short(d, out, 32); }
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, void *out) { return pci_info_short(d, out, 52); }

struct pci_info_ext { /* nvmlPciInfoExt_v1_t */
    unsigned version, domain, bus, device, id, subsystem, base_class, sub_class;
    char bus_id[32];
};

API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t d, struct pci_info_ext *out) {
    struct pci_info p;
    nvmlReturn_t r = pci_info(d, &p);
    if (r || !out)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != (sizeof *out | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *out =
        (struct pci_info_ext){out->version, p.domain, p.bus, p.device, p.id, p.subsystem, 3, 2, ""}; /* 3D controller */
    memcpy(out->bus_id, p.bus_id, sizeof out->bus_id);
    return NVML_SUCCESS;
}

/* The other GPUs that are as near as that level says. */
API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t d, unsigned level, unsigned *n, nvmlDevice_t *list) {
    DEVICE(d);
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *n;
    *n = 0;
    for (int i = 0; i < visible(); i++) {
        unsigned its = gpus[i].file->head.numa == d->file->head.numa ? 40 : 50;
        if (&gpus[i] == d || its != level)
            continue;
        if (list && *n < room)
            list[*n] = &gpus[i];
        ++*n;
    }
    return list && *n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Each simulated GPU has a host bridge of its own; GPUs of one NUMA node are joined at the node. */
API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *out) {
    DEVICE(a);
    DEVICE(b);
    if (!out || a == b)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = a->file->head.numa == b->file->head.numa ? 40 : 50; /* NVML_TOPOLOGY_NODE, _SYSTEM */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned what, unsigned *out) {
    enum { CAPS_NVLINK = 2, STATUS_OK = 0, STATUS_NOT_SUPPORTED = 5 };
    DEVICE(a);
    DEVICE(b);
    if (!out || a == b)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint32_t minor = b->file->head.minor;
    bool joined = minor < 32 && a->file->head.nvlink >> minor & 1;
    *out = what == CAPS_NVLINK && joined ? STATUS_OK : STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* --- memory and time --- */

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, struct memory *out) {
    DEVICE(d);
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (d->file->head.nvml_without >> 2 & 1) /* as on GB10, which uses the machine's memory */
        return NVML_ERROR_NOT_SUPPORTED;
    out->total = d->file->head.memory_total;
    out->used = gpu_used(d, false);
    if (out->used > out->total)
        out->used = out->total;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, struct memory_v2 *out) {
    DEVICE(d);
    if (!out || out->version != (sizeof *out | 2u << 24))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct memory m;
    nvmlReturn_t r = nvmlDeviceGetMemoryInfo(d, &m);
    struct gpu_home home;
    struct gpu_bound bound;
    if (!r && atomic_load(&d->file->head.limits) && cgroup_mine(&home) && gpu_limit_lowest(d, &home, &bound) &&
        bound.hard <
            m.total) { /* inside a cgroup with a limit; for driver 615 this is documented for this function alone */
        m.total = bound.hard;
        m.used = bound.used < bound.hard ? bound.used : bound.hard;
        m.free = m.total - m.used;
    }
    if (!r)
        *out = (struct memory_v2){out->version, m.total, 0, m.free, m.used};
    return r;
}

/* A private copy of the GPU's state, computed up to now without what belongs to closed files; free() it. */
static nvmlReturn_t picture(nvmlDevice_t d, uint64_t now, struct gpu_state **out) {
    uint64_t live;
    struct gpu_state *s = calloc(1, sizeof *s);
    if (!s)
        return NVML_ERROR_MEMORY;
    gpu_picture(d->file, s, &live);
    memset(s->exited, 0, sizeof s->exited);
    for (unsigned i = 0, n = (unsigned)gpu_slots(d->file); i < n; i++)
        if (gpu_owner(d, (int)i) < 0)
            s->exited[i / 64] |= 1ull << i % 64;
    do
        s->logged = 0;
    while (!engine_run(d->file, s, now) && s->now_ns < now);
    *out = s;
    return NVML_SUCCESS;
}

/* Faults for questions about load that the GPU's head asks for: slow answers, and "not supported". With MIG, NVML answers
 * none of these questions (its manual, nvmlDeviceGetUtilizationRates and nvmlDeviceGetProcessUtilization). */
static nvmlReturn_t load_question(nvmlDevice_t d, unsigned which) {
    if (d->file->head.mig != GPU_PLAIN)
        return NVML_ERROR_NOT_SUPPORTED;
    uint32_t us = d->file->head.nvml_call_us;
    if (us)
        nanosleep(&(struct timespec){us / 1000000 % 10, (long)(us % 1000000) * 1000}, NULL);
    return d->file->head.nvml_without >> which & 1 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, struct utilisation *out) {
    DEVICE(d);
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t now = gpu_now(d->file);
    struct gpu_state *s;
    nvmlReturn_t r = load_question(d, 0);
    if (r || (r = picture(d, now, &s)))
        return r;
    *out = (struct utilisation){gpu_utilisation(&s->busy, now), 0};
    free(s);
    return NVML_SUCCESS;
}

/* --- processes: those that run and that the caller's pid namespace can see, by the number they have there --- */

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct list {
    void *out; /* NULL: they are counted */
    unsigned room, found;
    bool v1;
};

static void list_processes(nvmlDevice_t d, struct list *list) {
    const struct gpu_head *h = &d->file->head;
    unsigned gi = h->mig == GPU_PART ? h->gpu_instance : ~0u, ci = h->mig == GPU_PART ? h->compute_instance : ~0u;
    for (int i = 0, n_slots = gpu_slots(d->file); i < n_slots; i++) {
        const struct gpu_slot *s = &d->file->slot[i];
        int pid = s->pid && s->contexts ? gpu_owner(d, i) : -1;
        if (pid <= 0)
            continue;
        unsigned long long used = s->used + gpu_pieces_used(d, gpu_descriptor(d), i);
        if (list->out && list->found < list->room && list->v1)
            ((struct process_v1 *)list->out)[list->found] = (struct process_v1){(unsigned)pid, used};
        else if (list->out && list->found < list->room)
            ((struct process_v2 *)list->out)[list->found] = (struct process_v2){(unsigned)pid, used, gi, ci};
        list->found++;
    }
}

/* A GPU that MIG has split lists the processes of all its MIG devices (NVML's manual, nvmlDeviceGetComputeRunningProcesses). */
static nvmlReturn_t processes(nvmlDevice_t d, unsigned *n, void *out, bool v1) {
    DEVICE(d);
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct list list = {out, *n, 0, v1};
    list_processes(d, &list);
    for (int i = 0; i < count; i++)
        if (part_of(&gpus[i].file->head, d))
            list_processes(&gpus[i], &list);
    *n = list.found;
    return list.found > list.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(name, v1) \
    API nvmlReturn_t name(nvmlDevice_t d, unsigned *n, void *out) { return processes(d, n, out, v1); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, false)

static nvmlReturn_t no_processes(nvmlDevice_t d, unsigned *n) {
    DEVICE(d);
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    *n = 0;
    return NVML_SUCCESS;
}

#define NO_PROCESSES(name) \
    API nvmlReturn_t name(nvmlDevice_t d, unsigned *n, void *out) { return (void)out, no_processes(d, n); }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* No sessions of video encoders or frame capture. */
API nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t d, unsigned *n, void *out) {
    return (void)out, no_processes(d, n);
}
API nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t d, unsigned *n, void *out) {
    return (void)out, no_processes(d, n);
}

struct process_sample { /* nvmlProcessUtilizationSample_t; time in CPU microseconds */
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, struct process_sample *out, unsigned *n,
                                                 unsigned long long since) {
    DEVICE(d);
    (void)since;
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t now = gpu_now(d->file);
    struct gpu_state *s;
    nvmlReturn_t r = load_question(d, 1);
    if (r || (r = picture(d, now, &s)))
        return r;
    unsigned room = *n, found = 0;
    for (int i = 0, n_slots = gpu_slots(d->file); i < n_slots; i++) {
        int pid = s->slot[i].total_ns ? gpu_owner(d, i) : -1;
        unsigned busy = pid > 0 ? gpu_utilisation(&s->slot[i], now) : 0;
        if (!busy)
            continue;
        if (out && found < room)
            out[found] = (struct process_sample){(unsigned)pid, now * gpu_scale(d->file) / 1000, busy, 0, 0, 0};
        found++;
    }
    free(s);
    *n = found;
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    return found > room || !out ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
