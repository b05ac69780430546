/* Simulated libcuda: checkpoints of a process (CUDA 12.8). A locked process's calls wait; a checkpoint moves its memory to
 * the host, which frees it on the GPU; the restore takes it again, from CUDA 13.0 on another GPU if the caller says so.
 * Memory that was exported is not moved, and before CUDA 13.0 the checkpoint refuses a process with managed memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2 }; /* CU_PROCESS_STATE_... */
#define LOST 0x100u /* with CHECKPOINTED: a restore has failed, and none succeeds any more (driver 580) */

struct gpu_pair { /* CUcheckpointGpuPair */
    CUuuid from, to;
};

struct restore_args { /* CUcheckpointRestoreArgs */
    const struct gpu_pair *pairs;
    unsigned n;
    char reserved[64 - 8 - 4];
};

/* The process's slot on a GPU; NULL: it has none. */
static struct gpu_slot *slot_of(struct gpu *gpu, int pid) {
    for (int i = 0; i < gpu_slots(gpu->file); i++)
        if (gpu_owner(gpu, i) == pid)
            return &gpu->file->slot[i];
    return NULL;
}

/* Its state; -1: it uses no GPU. */
static int state_of(int pid) {
    for (int i = 0; i < sim_gpus; i++) {
        struct gpu_slot *s = slot_of(&sim_gpu[i], pid);
        if (s)
            return (int)(atomic_load(&s->checkpoint) & ~LOST);
    }
    return -1;
}

static bool is_lost(int pid) {
    for (int i = 0; i < sim_gpus; i++) {
        struct gpu_slot *s = slot_of(&sim_gpu[i], pid);
        if (s && atomic_load(&s->checkpoint) & LOST)
            return true;
    }
    return false;
}

static CUresult change(int pid, int from, int to) {
    if (state_of(pid) != from)
        return CUDA_ERROR_ILLEGAL_STATE;
    for (int i = 0; i < sim_gpus; i++) {
        struct gpu_slot *s = slot_of(&sim_gpu[i], pid);
        if (s)
            atomic_store(&s->checkpoint, (uint32_t)to);
    }
    return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessGetState(int pid, int *out) {
    if (!out || state_of(pid) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = state_of(pid);
    return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    if (!tid || state_of(pid) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *tid = pid;
    return CUDA_SUCCESS;
}

API CUresult cuCheckpointProcessLock(int pid, const void *args) { return (void)args, change(pid, RUNNING, LOCKED); }
API CUresult cuCheckpointProcessUnlock(int pid, const void *args) { return (void)args, change(pid, LOCKED, RUNNING); }

static bool has_managed(int pid) {
    for (int i = 0; i < sim_gpus; i++) {
        struct gpu_slot *s = slot_of(&sim_gpu[i], pid);
        if (s && atomic_load(&s->managed))
            return true;
    }
    return false;
}

API CUresult cuCheckpointProcessCheckpoint(int pid, const void *args) {
    (void)args;
    if (has_managed(pid) && gpu_cuda_version(sim_gpu, sim_gpus) < 13000)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = change(pid, LOCKED, CHECKPOINTED);
    for (int i = 0; i < sim_gpus && !r; i++) {
        struct gpu_slot *s = slot_of(&sim_gpu[i], pid);
        if (s)
            atomic_store(&s->saved, atomic_exchange(&s->used, 0));
    }
    return r;
}

/* The GPU that the memory of GPU `i` comes back to; -1: this process has none of that name. */
static int target(int i, const struct restore_args *args) {
    CUuuid mine, other;
    if (sim_uuid(&mine, i, true))
        return -1;
    for (unsigned k = 0; args && k < args->n; k++)
        for (int to = 0; to < sim_gpus && !memcmp(&args->pairs[k].from, &mine, sizeof mine); to++)
            if (!sim_uuid(&other, to, true) && !memcmp(&args->pairs[k].to, &other, sizeof other))
                return to;
    return args && args->n ? -1 : i;
}

API CUresult cuCheckpointProcessRestore(int pid, const struct restore_args *args) {
    if (state_of(pid) != CHECKPOINTED)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (is_lost(pid))
        return CUDA_ERROR_OPERATING_SYSTEM;
    for (int i = 0; i < sim_gpus; i++) {
        struct gpu_slot *s = slot_of(&sim_gpu[i], pid);
        if (!s)
            continue;
        int to = target(i, args);
        struct gpu_slot *there = to >= 0 ? slot_of(&sim_gpu[to], pid) : NULL;
        if (!there)
            return CUDA_ERROR_INVALID_VALUE;
        struct gpu_file *f = sim_gpu[to].file;
        const struct gpu_home *home = &f->slot_home[there - f->slot];
        uint64_t managed = atomic_exchange(&s->managed, 0), saved = atomic_load(&s->saved), counted = saved - managed;
        bool room = gpu_reserve_in(&sim_gpu[to], &there->used, counted, home);
        if (room && !gpu_reserve_in(&sim_gpu[to], &there->used, managed, NULL)) { /* which limits do not count */
            atomic_fetch_sub(&there->used, counted);
            room = false;
        }
        atomic_fetch_add(room ? &there->managed : &s->managed, managed);
        if (!room) {
            atomic_fetch_or(&s->checkpoint, LOST);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        atomic_store(&s->saved, 0);
    }
    return change(pid, CHECKPOINTED, LOCKED);
}
