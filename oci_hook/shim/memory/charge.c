#include "memory/charge.h"

#include "memory/cuda_pool.h"
#include "memory/piece.h"

/* Refuses only after a sweep, and after our own pools have released what they keep for later, and exports were looked at. */
static CUresult reserve(struct gh_state *st, int gpu, uint64_t units, const struct gh_limit *limit) {
    uint64_t most = limit->whole ? GH_UNLIMITED : limit->bytes >> GH_UNIT_SHIFT;
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

CUresult charge_at(struct charge *c, struct gh_state *st, struct place at, uint64_t bytes) {
    struct gh_limit limit;
    *c = (struct charge){st, at, gh_units(bytes)};
    if (at.gpu == NO_CONTEXT) {
        c->units = 0;
        return CUDA_SUCCESS;
    }
    if (at.gpu == NO_GPU) {
        if (gh_policy_usable(st))
            gh_say(GH_SAID_GPU, "gpu-hook: GH-309: a program uses a GPU that is not in its container's policy page: "
                                "device memory is refused on it\n");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!gh_policy_limit(st, (unsigned)at.gpu, &limit))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return reserve(st, at.gpu, c->units, &limit);
}

CUresult charge(struct charge *c, uint64_t bytes) {
    struct gh_state *st = gh_here();
    if (!st)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return charge_at(c, st, current_place(st), bytes);
}

CUresult recharge(struct charge *c, uint64_t bytes) {
    uint64_t units = gh_units(bytes);
    struct gh_limit limit;
    if (c->at.gpu < 0 || units == c->units)
        return CUDA_SUCCESS;
    if (units < c->units)
        gh_release(c->st, (unsigned)c->at.gpu, c->units - units);
    else if (!gh_policy_limit(c->st, (unsigned)c->at.gpu, &limit) ||
             reserve(c->st, c->at.gpu, units - c->units, &limit))
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
        gh_release(o->st, gpu_of(o->value), units_of(o->value));
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
