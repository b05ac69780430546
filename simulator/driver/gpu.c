#define _GNU_SOURCE
#include "gpu.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t gpu_now(const struct gpu_file *file) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec) / gpu_scale(file);
}

/* --- finding the GPUs --- */

static bool node_refuses(unsigned minor) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%u", minor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd < 0 && (errno == EPERM || errno == EACCES);
}

static bool ends(const char *text, size_t size) { return memchr(text, 0, size) != NULL; }

static bool map_gpu(struct gpu *gpu, const char *path, bool writable) {
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct stat st;
    struct gpu_file *file = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof *file)
        file = mmap(NULL, sizeof *file, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        return false; /* fd stays open: closing it would drop every classical lock that this process has on the file */
    const struct gpu_head *h = &file->head;
    if (h->magic != (GPU_MAGIC) || h->version != GPU_VERSION || h->file_size != sizeof *file ||
        !ends(h->uuid, sizeof h->uuid) || !ends(h->name, sizeof h->name) || !ends(h->pci, sizeof h->pci) ||
        !ends(h->driver_version, sizeof h->driver_version)) {
        munmap(file, sizeof *file);
        return false;
    }
    *gpu = (struct gpu){.writable = writable, .path = strdup(path), .device = st.st_dev, .inode = st.st_ino};
    gpu->fd = fd;
    gpu->file = file;
    gpu->slot = -1;
    pthread_mutex_init(&gpu->mutex, NULL);
    return true;
}

bool gpu_open_writable(const struct gpu *gpu, struct gpu *out) {
    bool ok = map_gpu(out, gpu->path, true);
    return ok && out->device == gpu->device && out->inode == gpu->inode;
}

int gpus_open(struct gpu *gpus, int max, bool writable) {
    const char *dir = getenv("GPU_HOOK_SIM_GPUS");
    if (!dir || !*dir)
        dir = "/dev/nvidia-sim";
    unsigned minors[GPU_MAX];
    int found = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (struct dirent *e; found < GPU_MAX && (e = readdir(d));) {
        char *end;
        unsigned long minor = strtoul(e->d_name, &end, 10);
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || *end || minor > 254)
            continue;
        int at = found++;
        for (; at > 0 && minors[at - 1] > minor; at--)
            minors[at] = minors[at - 1];
        minors[at] = (unsigned)minor;
    }
    closedir(d);
    int count = 0;
    for (int i = 0; i < found && count < max; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%u", dir, minors[i]) >= (int)sizeof path || node_refuses(minors[i]))
            continue;
        if (map_gpu(&gpus[count], path, writable))
            count++;
    }
    return count;
}

/* --- slots and memory --- */

#define OFD_SETLK 37 /* F_OFD_SETLK, Linux 3.15 */

static int lock(int fd, int command, short type, off_t byte) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int r;
    while ((r = fcntl(fd, command, &l)) < 0 && errno == EINTR)
        ;
    return r;
}

/* A classical lock: it goes with the process, also when the process is killed while a forked child has its files. */
static int record_lock(int fd, short type, off_t byte) { return lock(fd, F_SETLK, type, byte); }

bool gpu_is_file(const struct gpu *gpu, int fd) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == gpu->device && st.st_ino == gpu->inode;
}

int gpu_reopen(struct gpu *gpu) {
    int fd = gpu->path ? open(gpu->path, (gpu->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC) : -1;
    if (fd >= 0 && !gpu_is_file(gpu, fd)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void gpu_lock_pid(struct gpu *gpu) {
    int fd = gpu->slot >= 0 ? gpu_descriptor(gpu) : -1;
    if (fd >= 0)
        record_lock(fd, F_WRLCK, LOCK_PID + gpu->slot);
}

/* Maps a page of the file that was opened anew, so that it lives as long as the mapping: as for the file of map_gpu. */
static int replace(struct gpu *gpu) {
    int fd = gpu_reopen(gpu);
    if (fd < 0)
        return -1;
    if (gpu->writable)
        mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
    if (gpu->slot >= 0)
        record_lock(fd, F_WRLCK, LOCK_PID + gpu->slot);
    gpu->fd = fd;
    return fd;
}

int gpu_descriptor(struct gpu *gpu) {
    int fd = gpu->fd;
    return gpu_is_file(gpu, fd) ? fd : replace(gpu);
}

/* Lets one process at a time decide, but waits 20 ms at most, since the holder may have been stopped. What follows is
 * correct without the lock as well. */
static void engine_lock(int fd) {
    for (int i = 0; i < 200 && record_lock(fd, F_WRLCK, LOCK_ENGINE) < 0 && (errno == EAGAIN || errno == EACCES); i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void engine_unlock(int fd) { record_lock(fd, F_UNLCK, LOCK_ENGINE); }

static uint64_t my_start_ticks(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *p = strrchr(text, ')'); /* the command may contain blanks and brackets; field 3 follows the last bracket */
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

static bool owned_by_me(const struct gpu_slot *slot) {
    return slot->pid == getpid() && slot->start_ticks == my_start_ticks();
}

/* The holder of this lock by another open file: its pid; 0: none; -1: the kernel tells no pid. */
static int locked_by(int fd, off_t byte) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(fd, F_GETLK, &l) < 0)
        return -1;
    return l.l_type == F_UNLCK ? 0 : l.l_pid > 0 ? l.l_pid : -1;
}

int gpu_owner(struct gpu *gpu, int slot) {
    const struct gpu_slot *s = &gpu->file->slot[slot];
    int fd, pid;
    if (gpu->slot == slot)
        return getpid();
    if ((fd = gpu_descriptor(gpu)) < 0)
        return 0;
    if (!locked_by(fd, LOCK_SLOT + slot))
        return -1;
    if ((pid = locked_by(fd, LOCK_PID + slot)))
        return pid > 0 ? pid : 0;
    /* The kernel does not report our own classical locks. This process's other library may hold this one. */
    return s->pid && owned_by_me(s) ? getpid() : 0;
}

/* Releases all that belonged to the slot's file and makes its queued work void. */
static void clear_slot(struct gpu_file *file, int slot) {
    struct gpu_slot *s = &file->slot[slot];
    gpu_pieces_leave(file, slot);
    for (unsigned i = 0; i < gpu_queues(file); i++) {
        struct gpu_queue *q = &file->queue[i];
        if (atomic_load(&q->owner) != (uint32_t)slot + 1)
            continue;
        atomic_store(&q->cut, atomic_load(&q->tail));
        atomic_store(&q->owner, 0);
    }
    for (unsigned i = 0; i < gpu_groups(file); i++)
        if (atomic_load(&file->group[i].owner) == (uint32_t)slot + 1)
            atomic_store(&file->group[i].owner, 0);
    atomic_store(&s->used, 0);
    atomic_store(&s->managed, 0);
    s->contexts = 0;
    s->pid = 0;
    s->start_ticks = 0;
    memset(s->command, 0, sizeof s->command);
    atomic_store(&s->saved, 0);
    atomic_store(&s->checkpoint, 0);
}

/* Clears the slot if its file is closed. Mutex held. */
static void reap(struct gpu *gpu, int fd, int slot) {
    const struct gpu_slot *s = &gpu->file->slot[slot];
    if (slot == gpu->slot || (!s->pid && !atomic_load(&s->used)) || record_lock(fd, F_WRLCK, LOCK_SLOT + slot) < 0)
        return;
    clear_slot(gpu->file, slot);
    record_lock(fd, F_UNLCK, LOCK_SLOT + slot);
}

void gpu_reap(struct gpu *gpu) {
    int fd = gpu_descriptor(gpu);
    for (int i = 0; fd >= 0 && i < gpu_slots(gpu->file); i++)
        reap(gpu, fd, i);
    if (fd >= 0)
        gpu_pieces_reap(gpu, fd);
}

/* Takes the first free element of an array whose elements begin with their owner; returns its index, -1: none is free. */
static int take(struct gpu *gpu, void *array, size_t size, unsigned most, _Atomic uint32_t *count) {
    for (unsigned i = 0; i < most; i++) {
        _Atomic uint32_t *owner = (void *)((char *)array + i * size);
        uint32_t free_one = 0;
        if (!atomic_compare_exchange_strong(owner, &free_one, (uint32_t)gpu->slot + 1))
            continue;
        uint32_t n = atomic_load(count);
        while (n <= i && !atomic_compare_exchange_weak(count, &n, i + 1))
            ;
        return (int)i;
    }
    return -1;
}

int gpu_take_group(struct gpu *gpu) {
    struct gpu_file *f = gpu->file;
    return take(gpu, f->group, sizeof *f->group, GPU_GROUPS, &f->head.groups);
}

void gpu_release_group(struct gpu *gpu, int group) {
    struct gpu_file *f = gpu->file;
    for (unsigned i = 0; i < gpu_queues(f); i++)
        if (atomic_load(&f->queue[i].owner) == (uint32_t)gpu->slot + 1 && f->queue[i].group == (uint32_t)group) {
            atomic_store(&f->queue[i].cut, atomic_load(&f->queue[i].tail));
            atomic_store(&f->queue[i].owner, 0);
        }
    atomic_store(&f->group[group].owner, 0);
}

int gpu_take_queue(struct gpu *gpu, int group, int priority) {
    struct gpu_file *f = gpu->file;
    int i = take(gpu, f->queue, sizeof *f->queue, GPU_QUEUES, &f->head.queues);
    if (i >= 0) {
        f->queue[i].group = (uint32_t)group;
        f->queue[i].priority = priority;
        atomic_store(&f->queue[i].cut, atomic_load(&f->queue[i].tail));
    }
    return i;
}

bool gpu_claim(struct gpu *gpu) {
    struct gpu_home home = {0};
    if (gpu->file->head.limits_by && !cgroup_mine(&home))
        return false;
    pthread_mutex_lock(&gpu->mutex);
    int fd = gpu_descriptor(gpu);
    engine_lock(fd);
    for (int i = 0; fd >= 0 && gpu->slot < 0 && i < GPU_SLOTS; i++) {
        if (lock(fd, OFD_SETLK, F_WRLCK, LOCK_SLOT + i) < 0)
            continue;
        record_lock(fd, F_WRLCK, LOCK_PID + i);
        struct gpu_slot *s = &gpu->file->slot[i];
        clear_slot(gpu->file, i);
        gpu->file->slot_home[i] = home;
        s->start_ticks = my_start_ticks();
        FILE *f = fopen("/proc/self/comm", "re");
        if (f) {
            if (!fgets(s->command, sizeof s->command, f))
                s->command[0] = 0;
            s->command[strcspn(s->command, "\n")] = 0;
            fclose(f);
        }
        s->pid = getpid();
        gpu->slot = i;
        _Atomic uint32_t *slots = &gpu->file->head.slots;
        if (atomic_load(slots) <= (uint32_t)i)
            atomic_store(slots, (uint32_t)i + 1);
    }
    engine_unlock(fd);
    pthread_mutex_unlock(&gpu->mutex);
    return gpu->slot >= 0;
}

static uint64_t sum_used(struct gpu *gpu) {
    uint64_t sum = 0;
    for (int i = 0, n = gpu_slots(gpu->file); i < n; i++)
        sum += atomic_load(&gpu->file->slot[i].used);
    return sum + gpu_pieces_used(gpu, -1, -1);
}

static bool room(struct gpu *gpu, const struct gpu_home *home, uint64_t more) {
    return sum_used(gpu) + more <= gpu->file->head.memory_total && (!home || gpu_limits_hold(gpu, home, more));
}

/* Adds nothing where there is no room beforehand: a process that asks for too much, and is preempted before it takes its bytes
 * back, would have others refused that long. */
static bool try_reserve(struct gpu *gpu, _Atomic uint64_t *used, uint64_t bytes, const struct gpu_home *home) {
    if (!room(gpu, home, bytes))
        return false;
    atomic_fetch_add(used, bytes);
    if (room(gpu, home, 0))
        return true;
    atomic_fetch_sub(used, bytes);
    return false;
}

bool gpu_reserve(struct gpu *gpu, uint64_t bytes) {
    struct gpu_file *f = gpu->file;
    return gpu_reserve_in(gpu, &f->slot[gpu->slot].used, bytes, &f->slot_home[gpu->slot]);
}

/* Here and below, `used` is never the smaller one: what a limit counts may seem too much for a moment, but not too little. */
bool gpu_reserve_managed(struct gpu *gpu, uint64_t bytes) {
    struct gpu_slot *s = &gpu->file->slot[gpu->slot];
    if (!gpu_reserve_in(gpu, &s->used, bytes, NULL))
        return false;
    atomic_fetch_add(&s->managed, bytes);
    return true;
}

void gpu_release_managed(struct gpu *gpu, uint64_t bytes) {
    atomic_fetch_sub(&gpu->file->slot[gpu->slot].managed, bytes);
    gpu_release(gpu, bytes);
}

bool gpu_reserve_in(struct gpu *gpu, _Atomic uint64_t *used, uint64_t bytes, const struct gpu_home *home) {
    if (bytes > gpu->file->head.memory_total)
        return false;
    if (try_reserve(gpu, used, bytes, home))
        return true;
    /* Two processes that tried at the same time may both have been refused, and closed files still count. Try again, one
     * process at a time. */
    pthread_mutex_lock(&gpu->mutex);
    int fd = gpu_descriptor(gpu);
    engine_lock(fd);
    gpu_reap(gpu);
    bool ok = try_reserve(gpu, used, bytes, home);
    engine_unlock(fd);
    pthread_mutex_unlock(&gpu->mutex);
    return ok;
}

void gpu_release(struct gpu *gpu, uint64_t bytes) { atomic_fetch_sub(&gpu->file->slot[gpu->slot].used, bytes); }

uint64_t gpu_used(struct gpu *gpu, bool do_reap) {
    if (do_reap) {
        pthread_mutex_lock(&gpu->mutex);
        int fd = gpu_descriptor(gpu);
        engine_lock(fd);
        gpu_reap(gpu);
        engine_unlock(fd);
        pthread_mutex_unlock(&gpu->mutex);
        return sum_used(gpu);
    }
    uint64_t sum = 0;
    for (int i = 0, n = gpu_slots(gpu->file); i < n; i++) {
        uint64_t used = atomic_load(&gpu->file->slot[i].used);
        if (used && gpu_owner(gpu, i) >= 0)
            sum += used;
    }
    int fd = gpu_descriptor(gpu);
    return sum + (fd >= 0 ? gpu_pieces_used(gpu, fd, -1) : 0);
}
