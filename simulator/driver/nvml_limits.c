/* The simulated libnvidia-ml of driver 615 and later: memory limits of cgroups. Libraries before do not have these functions.
 * Where cgroup v2 is not at /sys/fs/cgroup, and for MIG, they are not supported. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct set_limits { /* nvmlSetMemoryLimits_v1_t */
    const char *name_space;
    unsigned long long soft, hard;
};
struct get_limits { /* nvmlGetMemoryLimits_v1_t */
    const char *name_space;
    unsigned long long soft, hard, used;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The GPU, opened to write; NULL: this process may not. It stays open, as those of nvmlInit do. */
static struct gpu *writable(nvmlDevice_t d) {
    static struct gpu *opened[GPU_MAX];
    struct gpu *found = NULL;
    pthread_mutex_lock(&mutex);
    for (int i = 0; !found && i < GPU_MAX; i++) {
        if (opened[i] && opened[i]->inode == d->inode && opened[i]->device == d->device)
            found = opened[i];
        if (opened[i])
            continue;
        struct gpu *fresh = calloc(1, sizeof *fresh);
        if (fresh && gpu_open_writable(d, fresh))
            found = opened[i] = fresh;
        else
            free(fresh);
        break;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

/* Root with CAP_SYS_ADMIN in the first user namespace: what NVIDIA's kernel driver asks for other settings. So a container's
 * root has no permission. */
static bool permitted(void) {
    struct {
        uint32_t version;
        int pid;
    } head = {0x20080522, 0}; /* _LINUX_CAPABILITY_VERSION_3 */
    struct {
        uint32_t effective, allowed, inheritable;
    } sets[2] = {{0, 0, 0}, {0, 0, 0}};
    struct stat st;
    const uint32_t sys_admin = 1u << 21;
    return !geteuid() && !syscall(SYS_capget, &head, sets) && sets[0].effective & sys_admin &&
           !stat("/proc/self/ns/user", &st) && st.st_ino == 4026531837 /* the first one, since Linux 3.8 */;
}

/* What both functions check first. */
static nvmlReturn_t target(nvmlDevice_t d, const char *name_space, struct gpu_home *home, char *path, size_t size) {
    if (!name_space)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (d->file->head.mig != GPU_PLAIN || d->file->head.limits_by == LIMITS_NONE || !cgroup_mounted())
        return NVML_ERROR_NOT_SUPPORTED;
    enum cgroup_found found = cgroup_of(name_space, home, path, size);
    struct gpu *there = permitted() ? writable(d) : NULL;
    if (there)
        gpu_limits_look(there);
    /* Limits held by the misc controller may outlive their cgroup. */
    bool left = found == CGROUP_GONE && d->file->head.limits_by == LIMITS_MISC && home->name;
    struct gpu_bound bound;
    return found == CGROUP_THERE || (left && gpu_limit_of(d, home, &bound)) ? NVML_SUCCESS
                                                                            : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t d, const struct set_limits *limits) {
    struct gpu_home home;
    char path[4096];
    nvmlReturn_t r = nvml_device(d);
    if (r)
        return r;
    if (!limits || limits->soft > limits->hard)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((r = target(d, limits->name_space, &home, path, sizeof path)))
        return r;
    struct gpu *there = permitted() ? writable(d) : NULL;
    if (!there)
        return NVML_ERROR_NO_PERMISSION;
    bool clears = !limits->soft && limits->hard == GPU_UNLIMITED;
    if (!home.id[0] && !clears)
        return NVML_ERROR_INVALID_ARGUMENT;
    return gpu_limit_set(there, &home, path, limits->soft, limits->hard) ? NVML_SUCCESS
                                                                         : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t d, struct get_limits *limits) {
    struct gpu_home home;
    struct gpu_bound bound;
    char path[4096];
    nvmlReturn_t r = nvml_device(d);
    if (r)
        return r;
    if (!limits)
        return NVML_ERROR_INVALID_ARGUMENT;
    if ((r = target(d, limits->name_space, &home, path, sizeof path)))
        return r;
    gpu_limit_of(d, &home, &bound);
    limits->soft = bound.soft;
    limits->hard = bound.hard;
    limits->used = bound.used;
    return NVML_SUCCESS;
}
