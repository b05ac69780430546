/* The gate before every launch: asks gh_decide, waits, keeps the books of what is in flight. One per GPU, all of a
 * process's streams and threads together. */
#ifndef GPU_HOOK_GATE_H
#define GPU_HOOK_GATE_H

#include "driver/cuda.h"
#include "process/state.h"

struct gh_gate;

/* What the fast path needs of a GPU; written under the gate's lock. */
struct gate_fast {
    const uint32_t *seq;     /* of the GPU page */
    _Atomic uint64_t open;   /* no gate while *seq is this; UINT64_MAX: gate */
    _Atomic uint64_t looked; /* ticks when the peers were last read, */
    _Atomic uint64_t fresh;  /* which holds for so many ticks; 0: there are no peers */
};

struct gates {
    uint32_t count;
    struct gate_fast fast[GH_POLICY_GPUS];
    struct gh_gate *gate[GH_POLICY_GPUS]; /* as many */
    struct gh_gate *of_gpu[GH_POLICY_GPUS];
};

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

/* Whether a launch need not come by: alone on all GPUs and uncapped, or nobody has moved of late. */
static inline bool gate_open(void) {
    struct gates *g = gates_here();
    for (uint32_t i = 0; g && i < g->count; i++) {
        struct gate_fast *f = &g->fast[i];
        if (atomic_load_explicit(&f->open, memory_order_relaxed) != __atomic_load_n(f->seq, __ATOMIC_RELAXED))
            return false;
        uint64_t fresh = atomic_load_explicit(&f->fresh, memory_order_relaxed);
        if (fresh && gate_ticks() - atomic_load_explicit(&f->looked, memory_order_relaxed) >= fresh)
            return false;
    }
    return true;
}

/* One launch between the decision and the driver's answer. */
struct gate_ticket {
    struct gh_gate *gate; /* NULL: not tracked */
    uint64_t key, estimate;
    unsigned track, mark; /* 1 + index; 0 none */
    CUstream stream;
    bool timed, queued;
};

/* Before a launch into `stream`: as it is, or CU_STREAM_PER_THREAD for the NULL of a _ptsz function. f: NULL when it is
 * no kernel. May wait. */
void gate_enter(struct gate_ticket *t, CUstream stream, uint64_t key, CUfunction f);
/* After it, with the driver's answer, which it returns. */
CUresult gate_leave(struct gate_ticket *t, CUresult r);

/* The clock of a GPU's gate for `gate_synchronised`; 0 when nothing is tracked. */
uint64_t gate_before_sync(void);
/* The program has seen all work of the stream (NULL with `all`: of the current context) that was launched before. */
void gate_synchronised(uint64_t before, CUstream stream, bool all);
/* About to be destroyed by the program: nothing of ours touches it from now on. */
void gate_stream_leaves(CUstream stream);
void gate_context_leaves(CUcontext context);
void gate_forget(uint64_t key);

/* In an interceptor: returns what the driver answers to `call`, which is made when it may be. */
#define GATED(stream, key, f, call)           \
    do {                                      \
        if (__builtin_expect(gate_open(), 1)) \
            return call;                      \
        struct gate_ticket ticket;            \
        gate_enter(&ticket, stream, key, f);  \
        return gate_leave(&ticket, call);     \
    } while (0)
#define PLAIN(stream) (stream)
#define PER_THREAD(stream) ((stream) ? (stream) : (CUstream)CU_STREAM_PER_THREAD)

#endif
