/* The gate before every launch: it asks gh_decide, waits, and accounts for what is in flight. One per GPU, for all
 * streams and threads of a process. What else it is told is in gate_forget.h. */
#ifndef GPU_HOOK_GATE_H
#define GPU_HOOK_GATE_H

#include "driver/cuda.h"
#include "process/state.h"

struct gh_gate;

/* State of a GPU for the fast path. Written with the gate's lock held. */
struct gate_fast {
    const uint32_t *seq;     /* word of the GPU page */
    _Atomic uint64_t open;   /* launches pass while *seq is this; UINT64_MAX: the gate decides */
    _Atomic uint64_t looked; /* gate_ticks() when the other slots were last read */
    _Atomic uint64_t fresh;  /* ticks for which `looked` is valid; 0: no other tenants */
};

#define GATE_KEYS 4096u /* keys of costs, by their lowest bits */

struct gates {
    uint32_t count;
    _Atomic uint64_t brief[GATE_KEYS / 64]; /* bit: a command of that key is known to be brief */
    struct gate_fast fast[GH_POLICY_GPUS];
    struct gh_gate *gate[GH_POLICY_GPUS]; /* the first `count` */
    struct gh_gate *of_gpu[GH_POLICY_GPUS];
};

/* gate_setup.c */
struct gates *gates_make(struct gh_state *st);

static inline uint64_t gate_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#endif
}

static inline struct gates *gates_here(void) {
    struct gh_state *st = gh_here();
    struct gates *g = st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
    return __builtin_expect(g || !st, 1) ? g : gates_make(st);
}

static inline bool gate_brief(const _Atomic uint64_t *brief, uint64_t key) {
    return atomic_load_explicit(&brief[key % GATE_KEYS / 64], memory_order_relaxed) >> key % 64 & 1;
}

enum gate_way {
    GATE_CLOSED,
    GATE_BRIEF, /* open for commands that are known to be brief: other containers may come, but none was active lately */
    GATE_OPEN   /* on every GPU we have no cap, and are alone */
};

static inline bool gate_decides(const struct gate_fast *f) {
    return atomic_load_explicit(&f->open, memory_order_relaxed) != __atomic_load_n(f->seq, __ATOMIC_RELAXED);
}

static inline enum gate_way gate_way(void) {
    struct gates *g = gates_here();
    enum gate_way way = GATE_OPEN;
    for (uint32_t i = 0; g && i < g->count; i++) {
        struct gate_fast *f = &g->fast[i];
        if (gate_decides(f))
            return GATE_CLOSED;
        uint64_t fresh = atomic_load_explicit(&f->fresh, memory_order_relaxed);
        if (fresh && gate_ticks() - atomic_load_explicit(&f->looked, memory_order_relaxed) >= fresh)
            return GATE_CLOSED;
        way = fresh ? GATE_BRIEF : way;
    }
    return way;
}

/* True only if gate_way() is GATE_OPEN. It calls no function, so a caller that then jumps to the driver needs no frame. */
static inline bool gate_is_open(void) {
    struct gh_state *st = atomic_load_explicit(&gh_state_page, memory_order_acquire);
    struct gates *g = st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
    if (!g) /* nobody has asked yet; or a fork(2) has emptied the page */
        return false;
    for (const struct gate_fast *f = g->fast, *end = f + g->count; f < end; f++)
        if (gate_decides(f) || atomic_load_explicit(&f->fresh, memory_order_relaxed))
            return false;
    return true;
}

/* One launch: from gate_begin to gate_end. */
struct gate_pass {
    struct gh_gate *gate; /* NULL: the launch is not counted, and the rest is not set */
    uint64_t key, estimate;
    uint64_t began;         /* the driver's call, after the event before it */
    unsigned cost;          /* where the key's cost is */
    unsigned track, marker; /* 0: none */
    CUcontext context;
    CUstream stream;
    bool timed, queued, kernel;
};

/* The slow path of gate_begin. No f: a copy of `blocks` KiB, or a graph, which has none. */
void gate_enter(struct gate_pass *pass, CUstream stream, uint64_t key, CUfunction f, uint64_t blocks);
CUresult gate_leave(struct gate_pass *pass, CUresult result);

/* gate_begin for a caller that has asked gate_way. blocks: of a kernel's grid, or KiB of a copy. */
static inline void gate_begin_on(enum gate_way way, struct gate_pass *pass, CUstream stream, uint64_t key, CUfunction f,
                                 uint64_t blocks) {
    pass->gate = NULL;
    if (way == GATE_CLOSED || (way == GATE_BRIEF && !gate_brief(gates_here()->brief, key)))
        gate_enter(pass, stream, key, f, blocks);
}

/* Before a call of the driver that puts work into `stream`, for which _ptsz functions pass CU_STREAM_PER_THREAD instead
 * of NULL. Waits until the gate admits it. key: of its cost. f: NULL if it is no kernel. */
static inline void gate_begin(struct gate_pass *pass, CUstream stream, uint64_t key, CUfunction f) {
    gate_begin_on(gate_way(), pass, stream, key, f, 0);
}

/* After that call, with the driver's answer. Returns that answer. */
static inline CUresult gate_end(struct gate_pass *pass, CUresult result) {
    return __builtin_expect(!pass->gate, 1) ? result : gate_leave(pass, result);
}

#endif
