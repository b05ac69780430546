#define _GNU_SOURCE
#include "memory/charge.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver/real.h"
#include "memory/cuda_pool.h"
#include "memory/piece.h"

#define FIRST_WAIT_MS 5
#define LONGEST_WAIT_MS 100

void end_wait(struct gh_state *st, int gpu, unsigned waited) {
    if (waited > 1) /* at 1 only our own pools were looked at, and the host was not told */
        gh_note_waiting(st, (unsigned)gpu, 0);
}

/* A driver cannot hand out to the last byte what it calls free, and pools grow by more than was asked for. */
#define ROUNDING (64ull << 20)

static bool gpu_has(struct gh_state *st, int gpu, uint64_t bytes) {
    size_t free, total;
    return current_place(st).gpu == gpu && !REAL(cuMemGetInfo_v2)(&free, &total) &&
           free >= bytes + bytes / 16 + ROUNDING;
}

bool wait_for_room(struct gh_state *st, int gpu, uint64_t units, unsigned *waited) {
    uint64_t most = 1000ull * gh_policy_memory_wait(st);
    if (*waited >= most || gpu_has(st, gpu, gh_bytes(units))) {
        end_wait(st, gpu, *waited);
        return false;
    }
    if (!*waited) { /* what our own pools keep for later may be enough */
        bool closed = pieces_reclaim(st);
        *waited = 1;
        if (pools_trim(st, gpu) || closed)
            return true;
    }
    unsigned ms = *waited < FIRST_WAIT_MS ? FIRST_WAIT_MS : *waited > LONGEST_WAIT_MS ? LONGEST_WAIT_MS : *waited;
    gh_note_waiting(st, (unsigned)gpu, units);
    syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = ms * 1000000l}, NULL);
    *waited += ms;
    return true;
}

bool charge_again(struct charge *c, CUresult r, unsigned *waited) {
    uint64_t units = c->units;
    if (r != CUDA_ERROR_OUT_OF_MEMORY || !units || c->at.gpu < 0) {
        end_wait(c->st, c->at.gpu, *waited);
        return false;
    }
    uncharge(c);
    return wait_for_room(c->st, c->at.gpu, units, waited);
}

/* Refuses only after a sweep, and after our own pools have released what they keep for later, and exports were looked at. */
static CUresult reserve(struct gh_state *st, int gpu, uint64_t units, uint64_t most) {
    enum gh_reservation done = gh_reserve(st, (unsigned)gpu, units, most);
    if (done == GH_NO_ROOM && units <= most) {
        bool closed = pieces_reclaim(st);
        if (pools_trim(st, gpu) || closed)
            done = gh_reserve(st, (unsigned)gpu, units, most);
    }
    if (done == GH_NO_ROOM)
        gh_press(st, (unsigned)gpu);
    return done == GH_RESERVED ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Whole blocks; of pieces that are smaller than one, as many as fit share it. */
static uint64_t units_in_blocks(uint64_t bytes, uint32_t block_bytes) {
    uint64_t units = gh_units(bytes);
    uint32_t block = block_bytes >> GH_UNIT_SHIFT;
    if (block < 2 || !units)
        return units;
    if (units < block)
        return block / (block / (uint32_t)units);
    return units > GH_VALUE_MAX ? units : (units + block - 1) / block * block;
}

enum wish { PLAIN, IN_BLOCKS, FIXED };

static CUresult charge_as(struct charge *c, struct gh_state *st, struct place at, uint64_t bytes, enum wish wish) {
    struct gh_limit limit;
    *c = (struct charge){st, at, 0};
    if (at.gpu == NO_CONTEXT)
        return CUDA_SUCCESS;
    if (at.gpu == NO_ANSWER)
        return at.error;
    if (at.gpu == NO_GPU) {
        if (gh_policy_usable(st))
            gh_say(GH_SAID_GPU, "gpu-hook: GH-309: a program uses a GPU that is not in its container's policy page: "
                                "device memory is refused on it\n");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    gh_policy_wait(st);
    if (!gh_policy_limit(st, (unsigned)at.gpu, &limit))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t units = wish == IN_BLOCKS ? units_in_blocks(bytes, limit.block_bytes) : gh_units(bytes);
    CUresult r = reserve(st, at.gpu, units, gh_most_units(st, &limit, wish == FIXED));
    c->units = r ? 0 : units;
    return r;
}

CUresult charge_at(struct charge *c, struct gh_state *st, struct place at, uint64_t bytes) {
    return charge_as(c, st, at, bytes, PLAIN);
}

static CUresult charge_here(struct charge *c, uint64_t bytes, enum wish wish) {
    struct gh_state *st = gh_here();
    *c = (struct charge){0};
    return st ? charge_as(c, st, current_place(st), bytes, wish) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult charge(struct charge *c, uint64_t bytes) { return charge_here(c, bytes, PLAIN); }
CUresult charge_linear(struct charge *c, uint64_t bytes) { return charge_here(c, bytes, IN_BLOCKS); }

CUresult recharge_linear(struct charge *c, uint64_t bytes) {
    struct gh_limit limit;
    if (c->at.gpu < 0)
        return CUDA_SUCCESS;
    if (!gh_policy_limit(c->st, (unsigned)c->at.gpu, &limit))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t units = units_in_blocks(bytes, limit.block_bytes);
    if (units < c->units)
        gh_release(c->st, (unsigned)c->at.gpu, c->units - units);
    else if (units > c->units && reserve(c->st, c->at.gpu, units - c->units, gh_most_units(c->st, &limit, false)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->units = units;
    return CUDA_SUCCESS;
}

void uncharge(struct charge *c) {
    if (c->units)
        gh_release(c->st, (unsigned)c->at.gpu, c->units);
    c->units = 0;
}

CUresult finish_alloc(struct charge *c, CUresult r, enum kind kind, uint64_t handle) {
    if (r == CUDA_SUCCESS && c->at.gpu >= 0) /* without memory for the note, it stays charged until the process ends */
        gh_pointers_put(&c->st->pointers, key_of(kind, handle), pack(c->units, c->at.gpu, c->at.context, kind));
    else
        uncharge(c);
    return r;
}

struct owed begin_free(enum kind kind, uint64_t handle) {
    struct gh_state *st = gh_here();
    uint64_t key = key_of(kind, handle);
    return (struct owed){st, key, st ? gh_pointers_take(&st->pointers, key) : 0};
}

CUresult end_free(struct owed *o, CUresult r) {
    if (!o->value) { /* maybe memory of a graph or of an imported pool */
        if (o->st)
            pools_changed(o->st);
        return r;
    }
    if (r != CUDA_SUCCESS)
        gh_pointers_put(&o->st->pointers, o->key, o->value);
    else if (kind_of(o->value) == POOLED)
        pool_freed(o->st, o->key, o->value);
    else if (kind_of(o->value) == SHARED)
        shared_freed(o->st, o->key);
    else if (kind_of(o->value) == GRAPHED)
        atomic_store(&o->st->pools.dirty, 1);
    else
        release_note(o->st, o->value);
    return r;
}

/* ---- memory that may lie on any of the container's GPUs ---- */

static unsigned gpus_of(struct gh_state *st) {
    struct gh_gpu_policy policy;
    uint32_t count = 0, class_;
    return gh_policy_gpu(st, 0, &policy, &count, &class_) ? count : 0;
}

/* Releases what charge_everywhere has charged on the GPUs before `end`, but for the current one. */
static void release_others(const struct charge *c, unsigned end) {
    for (unsigned gpu = 0; gpu < end; gpu++)
        if ((int)gpu != c->at.gpu)
            gh_release(c->st, gpu, c->units);
}

CUresult charge_everywhere(struct charge *c, uint64_t bytes) {
    CUresult r = charge_here(c, bytes, FIXED);
    unsigned count = r == CUDA_SUCCESS && c->units ? gpus_of(c->st) : 0;
    for (unsigned gpu = 0; gpu < count; gpu++) {
        struct gh_limit limit;
        if ((int)gpu == c->at.gpu)
            continue;
        if (!gh_policy_limit(c->st, gpu, &limit) ||
            reserve(c->st, (int)gpu, c->units, gh_most_units(c->st, &limit, true))) {
            release_others(c, gpu);
            uncharge(c);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return r;
}

CUresult finish_everywhere(struct charge *c, CUresult r, uint64_t pointer) {
    unsigned count = c->units ? gpus_of(c->st) : 0;
    if (count < 2)
        return finish_alloc(c, r, LINEAR, pointer);
    if (r == CUDA_SUCCESS) {
        uint64_t note = pack(c->units, (int)count - 1, c->at.context, MANAGED);
        gh_pointers_put(&c->st->pointers, key_of(LINEAR, pointer), note);
    } else {
        release_others(c, count);
        uncharge(c);
    }
    return r;
}

bool gpu_memory(struct gh_state *st, int gpu, uint64_t *free, uint64_t *total, bool *whole) {
    struct gh_limit limit;
    *free = *total = 0;
    if (gpu < 0 || !gh_policy_limit(st, (unsigned)gpu, &limit))
        return false;
    uint64_t used = gh_bytes(gh_total(st, (unsigned)gpu));
    *whole = limit.whole;
    *total = limit.bytes;
    *free = used < limit.bytes ? (limit.bytes - used) & ~((1ull << GH_UNIT_SHIFT) - 1) : 0;
    return true;
}
