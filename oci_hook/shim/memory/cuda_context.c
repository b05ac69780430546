/* Contexts: the memory that they take themselves, and the memory that is freed with them. */
#include "driver/real.h"
#include "gate/gate_forget.h"
#include "memory/charge.h"
#include "memory/cuda_context.h"
#include "memory/cuda_pool.h"
#include "memory/piece.h"

/* A context is charged by the figure in the policy page, if there is one. The agent corrects it (surcharge). */
static CUresult charge_context(struct charge *c, CUdevice device) {
    struct gh_state *st = gh_here();
    struct gh_limit limit = {0};
    *c = (struct charge){0};
    c->at.gpu = NO_CONTEXT;
    if (!st)
        return CUDA_SUCCESS;
    int gpu = gpu_of_device(st, device);
    if (gpu >= 0) {
        gh_policy_wait(st);
        gh_policy_limit(st, (unsigned)gpu, &limit);
    }
    if (gpu < 0 || !limit.context_bytes) { /* without a granted GPU, later allocations in it are refused */
        *c = (struct charge){st, {.gpu = gpu}, 0};
        return CUDA_SUCCESS;
    }
    return charge_at(c, st, (struct place){.gpu = gpu}, limit.context_bytes);
}

static void release_context(struct gh_state *st, uint64_t note) {
    if (!note)
        return;
    gh_release(st, gpu_of(note), units_of(note));
    gh_count_contexts(st, gpu_of(note), -1);
}

/* Notes what a new context is charged. If we know it already, it is a primary context that is retained again. */
static void note_context(struct charge *c, CUcontext context) {
    uint64_t note = pack(c->units, c->at.gpu, 0, CONTEXT);
    if (gh_pointers_put_new(&c->st->pointers, key_of(CONTEXT, (uintptr_t)context), note))
        gh_count_contexts(c->st, (unsigned)c->at.gpu, 1);
    else
        uncharge(c);
}

/* A context was made: what we know of its handle is of an older one, a primary one perhaps, that has gone. */
static void forget_older(struct gh_state *st, CUcontext made) {
    bool locked = gh_lock(&st->contexts.lock);
    atomic_fetch_add(&st->contexts.changes, 1);
    for (CUdevice device = 0; device < GH_DEVICES; device++)
        if (atomic_load(&st->contexts.primary[device]) == made)
            atomic_store(&st->contexts.primary[device], NULL);
    context_leaves(st, made);
    gh_pointers_take(&st->pointers, key_of(ATTACHED, (uintptr_t)made));
    uint64_t own = gh_pointers_take(&st->pointers, key_of(CONTEXT, (uintptr_t)made));
    if (locked)
        gh_unlock(&st->contexts.lock);
    release_context(st, own);
}

static CUresult created(struct charge *c, CUresult r, const CUcontext *made, CUcontext *context) {
    if (r == CUDA_SUCCESS && c->st)
        forget_older(c->st, *made);
    if (r != CUDA_SUCCESS || c->at.gpu < 0)
        uncharge(c);
    else
        note_context(c, *made);
    if (r == CUDA_SUCCESS)
        *context = *made;
    return r;
}

GH_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
    struct charge c;
    CUcontext made = NULL;
    CUresult r;
    if (!context)
        return REAL(cuCtxCreate)(context, flags, device);
    CHARGE_AND_ASK(r, &c, charge_context(&c, device), REAL(cuCtxCreate)(&made, flags, device), r);
    return created(&c, r, &made, context);
}
GH_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    struct charge c;
    CUcontext made = NULL;
    CUresult r;
    if (!context)
        return REAL(cuCtxCreate_v2)(context, flags, device);
    CHARGE_AND_ASK(r, &c, charge_context(&c, device), REAL(cuCtxCreate_v2)(&made, flags, device), r);
    return created(&c, r, &made, context);
}
GH_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    struct charge c;
    CUcontext made = NULL;
    CUresult r;
    if (!context)
        return REAL(cuCtxCreate_v3)(context, affinity, count, flags, device);
    CHARGE_AND_ASK(r, &c, charge_context(&c, device), REAL(cuCtxCreate_v3)(&made, affinity, count, flags, device), r);
    return created(&c, r, &made, context);
}
GH_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    struct charge c;
    CUcontext made = NULL;
    CUresult r;
    if (!context)
        return REAL(cuCtxCreate_v4)(context, parameters, flags, device);
    CHARGE_AND_ASK(r, &c, charge_context(&c, device), REAL(cuCtxCreate_v4)(&made, parameters, flags, device), r);
    return created(&c, r, &made, context);
}

/* ---- what goes with a context ---- */

struct leaving {
    struct gh_state *st;
    unsigned context;
};

static bool lives_in(uint64_t key, uint64_t value, void *with) {
    const struct leaving *l = with;
    enum kind kind = kind_of(value);
    (void)key;
    if (kind == GRAPHED) /* the driver may have freed it with the context: forget that it exists */
        return true;
    bool goes = kind == LINEAR || kind == MANAGED || kind == ARRAY || kind == EXTERNAL || kind == LIMIT;
    if (number_of(value) != l->context || !goes)
        return false;
    release_note(l->st, value);
    return true;
}

/* place: the note that context_leaves returned; 0: no memory was noted in that context. */
static void release_memory(struct gh_state *st, uint64_t place) {
    struct leaving l = {st, number_of(place)};
    if (l.context)
        gh_pointers_filter(&st->pointers, lives_in, &l);
    if (l.context)
        shared_lost(st, l.context);
    pools_lost(st);
    atomic_store(&st->pools.dirty, 1);
    pools_look(st);
}

typedef CUresult destroy_call(CUcontext);

/* The notes are taken before the driver can give the handle to another context. */
static CUresult destroy(CUcontext context, destroy_call *call) {
    struct gh_state *st = gh_here();
    gate_context_leaves(context);
    uint64_t place = st ? context_leaves(st, context) : 0;
    uint64_t own = st ? gh_pointers_take(&st->pointers, key_of(CONTEXT, (uintptr_t)context)) : 0;
    CUresult r = call(context);
    gate_context_left(context, r == CUDA_SUCCESS);
    if (r == CUDA_SUCCESS && st) {
        release_memory(st, place);
        release_context(st, own);
    } else if (st) {
        context_stays(st, context, place);
        if (own)
            gh_pointers_put_new(&st->pointers, key_of(CONTEXT, (uintptr_t)context), own);
    }
    return r;
}

GH_EXPORT CUresult cuCtxDestroy(CUcontext context) { return destroy(context, REAL(cuCtxDestroy)); }
GH_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(context, REAL(cuCtxDestroy_v2)); }

/* A context is counted before the driver counts it up, and after it counts it down. So at worst, while threads do both
 * at once, cuCtxDetach destroys one unseen, and its memory stays charged until the process ends. */
GH_EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
    struct gh_state *st = gh_here();
    CUcontext current = NULL, made = NULL;
    CUresult r = st ? REAL(cuCtxGetCurrent)(&current) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r)
        return r;
    uint64_t key = key_of(ATTACHED, (uintptr_t)current);
    if (current && gh_pointers_count(&st->pointers, key, 16) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r = REAL(cuCtxAttach)(context ? &made : NULL, flags);
    if (r && current)
        gh_pointers_count(&st->pointers, key, -16);
    else if (made != current) /* a signal handler has changed which one is current */
        gh_pointers_count(&st->pointers, key_of(ATTACHED, (uintptr_t)made), 16);
    if (r == CUDA_SUCCESS)
        *context = made;
    return r;
}

GH_EXPORT CUresult cuCtxDetach(CUcontext context) {
    struct gh_state *st = gh_here();
    uint64_t key = key_of(ATTACHED, (uintptr_t)context);
    if (!st || !gh_pointers_get(&st->pointers, key))
        return destroy(context, REAL(cuCtxDetach));
    CUresult r = REAL(cuCtxDetach)(context);
    if (r == CUDA_SUCCESS)
        gh_pointers_count(&st->pointers, key, -16);
    return r;
}

/* ---- primary contexts ----
 *
 * A driver may give the handle of one that has gone to the next context, of whatever kind. So a handle in `primary` is
 * never that of a context that cuCtxCreate has made. And a thread may be held up after the driver's answer: `changes`
 * tells whether the answer may be old by now. */

static bool is_active(CUdevice device, bool in_doubt) {
    unsigned flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) ? in_doubt : active;
}

static CUcontext known_primary(struct gh_state *st, CUdevice device) {
    return st && device >= 0 && device < GH_DEVICES ? atomic_load(&st->contexts.primary[device]) : NULL;
}

static struct gh_held *held_of(struct gh_state *st, CUdevice device) {
    return st && device >= 0 && device < GH_DEVICES ? &st->contexts.held[device] : NULL;
}

struct parting primary_parts(struct gh_state *st, CUdevice device, uint32_t holders) {
    struct gh_held *held = held_of(st, device);
    struct parting p = {device, held, NULL, held && gh_lock(&held->lock)};
    if (held && (!p.locked || held->retains <= holders))
        p.context = held->context;
    if (p.context)
        gate_context_leaves(p.context);
    return p;
}

void primary_parted(const struct parting *p, bool gone) {
    gone = gone || (p->context && !is_active(p->device, true));
    if (p->context)
        gate_context_left(p->context, gone);
    if (p->held && gone)
        p->held->context = NULL; /* the next context may have this handle */
    if (p->locked)
        gh_unlock(&p->held->lock);
}

static CUresult retain(struct gh_state *st, CUcontext *made, CUdevice device) {
    struct gh_held *held = held_of(st, device);
    bool locked = held && gh_lock(&held->lock);
    CUresult r = REAL(cuDevicePrimaryCtxRetain)(made, device);
    if (held && r == CUDA_SUCCESS) {
        held->retains += locked;
        held->context = *made;
    }
    if (locked)
        gh_unlock(&held->lock);
    return r;
}

typedef CUresult device_call(CUdevice);

static CUresult release(struct gh_state *st, CUdevice device, device_call *call) {
    struct parting p = primary_parts(st, device, 1);
    CUresult r = call(device);
    if (r == CUDA_SUCCESS && p.held && p.held->retains)
        p.held->retains--;
    primary_parted(&p, false);
    return r;
}

struct left {          /* a primary context, and its notes, which were taken */
    CUcontext context; /* NULL: none was known */
    uint64_t place, own;
};

/* With the lock held. */
static struct left take_notes(struct gh_state *st, CUdevice device) {
    struct left l = {known_primary(st, device), 0, 0};
    if (!l.context)
        return l;
    l.place = context_leaves(st, l.context);
    l.own = gh_pointers_take(&st->pointers, key_of(CONTEXT, (uintptr_t)l.context));
    atomic_store(&st->contexts.primary[device], NULL);
    atomic_fetch_add(&st->contexts.changes, 1);
    return l;
}

/* NULL in *l: none is known, or contexts have changed after `since`. False: there is no lock. */
static bool take_primary(struct gh_state *st, CUdevice device, const uint32_t *since, struct left *l) {
    *l = (struct left){0};
    if (!known_primary(st, device))
        return true;
    if (!gh_lock(&st->contexts.lock))
        return false;
    if (!since || atomic_load(&st->contexts.changes) == *since)
        *l = take_notes(st, device);
    gh_unlock(&st->contexts.lock);
    return true;
}

static void release_left(struct gh_state *st, const struct left *l) {
    if (!l->context)
        return;
    release_memory(st, l->place);
    release_context(st, l->own);
}

/* False: after `since`, when the device's primary context was active, contexts have changed. */
static bool put_back(struct gh_state *st, CUdevice device, const struct left *l, uint32_t since) {
    if (!gh_lock(&st->contexts.lock))
        return true; /* it stays charged until the process ends */
    CUcontext now = known_primary(st, device);
    bool known = now == l->context || (!now && atomic_load(&st->contexts.changes) == since), noted = false;
    if (known) {
        atomic_store(&st->contexts.primary[device], l->context);
        context_stays(st, l->context, l->place);
        noted = l->own && gh_pointers_put_new(&st->pointers, key_of(CONTEXT, (uintptr_t)l->context), l->own);
    }
    gh_unlock(&st->contexts.lock);
    if (now && !known) /* retained with another handle since the notes were taken: this one has gone */
        release_left(st, l);
    else if (known && !noted) /* the thread that retained it has charged it */
        release_context(st, l->own);
    return known || now;
}

/* Releases what was taken if the device's primary context has gone; else that may be the same one still. */
static void settle(struct gh_state *st, CUdevice device, const struct left *l) {
    uint32_t since;
    if (!l->context)
        return;
    do {
        since = atomic_load(&st->contexts.changes);
        if (!is_active(device, true)) {
            release_left(st, l);
            return;
        }
    } while (!put_back(st, device, l, since));
}

/* After the driver has retained it. One that was active, and has no charge, was made unseen, or another thread has just
 * released its charge. */
static CUresult charge_retained(struct charge *c, CUcontext context, CUdevice device) {
    if (c->at.gpu >= 0 || !c->st || gh_pointers_get(&c->st->pointers, key_of(CONTEXT, (uintptr_t)context)))
        return CUDA_SUCCESS;
    return charge_context(c, device);
}

/* Notes the context that was retained, and its charge. before: the changes before the driver has retained it. False: it
 * may have gone since. */
static bool know_primary(struct charge *c, CUcontext made, CUdevice device, uint32_t before) {
    struct gh_state *st = c->st;
    struct left last = {0};
    bool locked = st && device >= 0 && device < GH_DEVICES && gh_lock(&st->contexts.lock);
    bool same = locked && known_primary(st, device) == made;
    bool now = !locked || same || atomic_load(&st->contexts.changes) == before;
    if (locked && now) {
        if (!same)
            last = take_notes(st, device); /* it was reset unseen, and came back with another handle */
        atomic_store(&st->contexts.primary[device], made);
        atomic_fetch_add(&st->contexts.changes, 1);
    }
    if (now && c->at.gpu >= 0)
        note_context(c, made);
    if (locked)
        gh_unlock(&st->contexts.lock);
    release_left(st, &last);
    return now;
}

/* Retains it once more, as the earlier answer may be old by now; if it is the same one, it is released again. */
static CUresult retain_again(struct gh_state *st, CUcontext *made, CUdevice device) {
    CUcontext last = *made;
    CUresult r = retain(st, made, device);
    if (r == CUDA_SUCCESS && *made == last)
        release(st, device, REAL(cuDevicePrimaryCtxRelease_v2));
    return r;
}

GH_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct gh_state *st = gh_here();
    struct charge c = {st, {.gpu = NO_CONTEXT}, 0};
    CUcontext made = NULL;
    CUresult r;
    uint32_t before = st ? atomic_load(&st->contexts.changes) : 0;
    if (!context)
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    CHARGE_AND_ASK(r, &c, is_active(device, false) ? CUDA_SUCCESS : charge_context(&c, device),
                   retain(st, &made, device), r);
    if (r) {
        uncharge(&c);
        return r;
    }
    while (!(r = charge_retained(&c, made, device)) && !know_primary(&c, made, device, before)) {
        before = atomic_load(&st->contexts.changes);
        if ((r = retain_again(st, &made, device)))
            break;
    }
    if (r) {
        uncharge(&c);
        release(st, device, REAL(cuDevicePrimaryCtxRelease_v2));
        return r;
    }
    *context = made;
    return CUDA_SUCCESS;
}

/* Asks twice if the last release has destroyed the primary context: before its notes are taken, and after, as another
 * thread may be retaining it again. That thread's later allocations have another number. Once they are back, it asks
 * anew, since a thread that released it meanwhile has found none. */
void primary_left(struct gh_state *st, CUdevice device) {
    while (known_primary(st, device)) {
        uint32_t since = atomic_load(&st->contexts.changes);
        struct left l;
        if (is_active(device, true) || !take_primary(st, device, &since, &l))
            return;
        settle(st, device, &l);
    }
}

static CUresult released(CUdevice device, device_call *call) {
    struct gh_state *st = gh_here();
    CUresult r = release(st, device, call);
    if (r == CUDA_SUCCESS)
        primary_left(st, device);
    return r;
}

/* A reset frees what is in the context, whoever holds it. */
static CUresult reset(CUdevice device, device_call *call) {
    struct gh_state *st = gh_here();
    struct parting p = primary_parts(st, device, UINT32_MAX);
    struct left l;
    take_primary(st, device, NULL, &l);
    CUresult r = call(device);
    if (r == CUDA_SUCCESS && p.held)
        p.held->retains = 0; /* a driver may count anew from here on, or may go on */
    primary_parted(&p, r == CUDA_SUCCESS);
    if (r == CUDA_SUCCESS && l.context) {
        release_memory(st, l.place);
        l.place = 0;
    }
    settle(st, device, &l);
    return r;
}

GH_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return released(device, REAL(cuDevicePrimaryCtxRelease));
}
GH_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return released(device, REAL(cuDevicePrimaryCtxRelease_v2));
}
GH_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset(device, REAL(cuDevicePrimaryCtxReset)); }
GH_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return reset(device, REAL(cuDevicePrimaryCtxReset_v2));
}

/* ---- limits that make a context take memory ---- */

/* What a limit is by default, which is part of every context's own memory, and what each unit beyond it takes.
 *
 * For the device runtime (kernels that launch kernels) the CUDA C++ Programming Guide says: each level of nesting at which
 * kernels synchronise needs up to 150 MB for the state of the threads that wait, and two levels are the default; and for
 * each of 2048 pending launches, configuration and parameters are kept. It gives no size for these: parameters of launches
 * by kernels have at most 4 KiB, and as much again is our own upper bound for the rest. Not measured on a GPU. */
static const struct {
    uint64_t usual, each;
} cost_of_limit[] = {
    [CU_LIMIT_STACK_SIZE] = {1 << 10, 1}, /* for each thread that can run on the GPU at once */
    [CU_LIMIT_PRINTF_FIFO_SIZE] = {1 << 20, 1},
    [CU_LIMIT_MALLOC_HEAP_SIZE] = {8 << 20, 1},
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = {2, 150 << 20},
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = {2048, 8 << 10},
};
#define LIMITS (sizeof cost_of_limit / sizeof *cost_of_limit) /* the others take no device memory */
#define TOO_MUCH (UINT64_MAX / 4)                             /* more than any GPU has */

static uint64_t threads_at_once(void) {
    CUdevice device;
    int processors = 0, threads = 0;
    if (REAL(cuCtxGetDevice)(&device) ||
        REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) ||
        REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device))
        return TOO_MUCH;
    return (uint64_t)processors * (uint64_t)threads;
}

/* Bytes that a limit takes beyond its default. */
static uint64_t limit_bytes(int limit, size_t value) {
    uint64_t each = cost_of_limit[limit].each, bytes;
    if (value <= cost_of_limit[limit].usual)
        return 0;
    if (limit == CU_LIMIT_STACK_SIZE)
        each = threads_at_once();
    if (__builtin_mul_overflow(value - cost_of_limit[limit].usual, each, &bytes) || bytes > TOO_MUCH)
        return TOO_MUCH;
    return bytes;
}

GH_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext context = NULL;
    struct gh_state *st = gh_here();
    if (limit < 0 || (unsigned)limit >= LIMITS)
        return REAL(cuCtxSetLimit)(limit, value);
    CUresult r = st ? REAL(cuCtxGetCurrent)(&context) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r)
        return r;
    if (!context)
        return REAL(cuCtxSetLimit)(limit, value);
    uint64_t name =
        (uintptr_t)context + (uint64_t)limit; /* unique, since contexts are further apart than there are limits */
    struct owed before = begin_free(LIMIT, name);
    struct charge c;
    r = charge(&c, limit_bytes(limit, value));
    size_t now;
    if (r) /* a driver may round down what is impossible here, so it is asked whether the GPU has such a limit */
        r = refused(REAL(cuCtxGetLimit)(&now, limit));
    else
        r = finish_alloc(&c, REAL(cuCtxSetLimit)(limit, value), LIMIT, name);
    end_free(&before, CUDA_SUCCESS == r ? r : CUDA_ERROR_INVALID_VALUE);
    return r;
}
