/* The GPU: one context (channel group) per tenant with a FIFO of kernels, time-sliced round robin. */
#ifndef GPU_HOOK_MODEL_GPU_H
#define GPU_HOOK_MODEL_GPU_H

#include <stdint.h>

#define MAX_TENANTS 16
#define QUEUE_SIZE 1024u
#define NEVER UINT64_MAX
#define CLEAR_AFTER 700000u

struct kernel {
    uint64_t duration;  /* alone, ns */
    uint64_t left;      /* not yet executed, ns */
    uint64_t submitted; /* when */
    uint64_t shared;    /* time since it began to run, shared out among the contexts with work */
    uint64_t began;     /* when it first ran, 0 before */
    int clean;          /* others had had no work for CLEAR_AFTER when it began */
    uint32_t key;       /* what its cost is learned by */
};

struct context {
    struct kernel queue[QUEUE_SIZE];
    uint64_t head, tail;           /* done and submitted, counted */
    uint64_t executed;             /* GPU time */
    uint64_t completed;            /* GPU time of finished kernels */
    uint64_t pending;              /* time with work, up to the last change of `work` */
    uint64_t shared;               /* the same, divided by the number of contexts with work */
    uint64_t clear_from;           /* others have had no work for CLEAR_AFTER at this time, NEVER when they have */
    uint64_t clear, clear_pending; /* time since then, and that part of it with own work or full */
    uint64_t clear_at_idle;        /* clear, when the own work last ended */
    int full;                      /* a launch waits for the own window */
};

struct gpu {
    uint64_t slice, switch_loaded, switch_idle; /* physics, ns */
    unsigned count;
    uint64_t work; /* bit i: context i has kernels */
    unsigned current;
    enum { GPU_IDLE, GPU_SWITCH, GPU_RUN } phase;
    uint64_t event;    /* next, or NEVER */
    uint64_t run_from; /* begin of the present piece of execution */
    uint64_t slice_end;
    uint64_t changed; /* when `work` last changed */
    uint64_t busy;    /* executing, ns in all */
    uint64_t switching;
    /* Called for each executed piece, then for each finished kernel. */
    void (*ran)(void *who, unsigned context, uint64_t from, uint64_t to);
    void (*finished)(void *who, unsigned context, const struct kernel *kernel, uint64_t now);
    void *who;
    struct context context[MAX_TENANTS]; /* last: only those in use are cleared */
};

/* An idle GPU of `count` contexts; physics and callbacks are the caller's to set. */
void gpu_reset(struct gpu *gpu, unsigned count);

void gpu_submit(struct gpu *gpu, unsigned context, uint64_t duration, uint32_t key, uint64_t now);
/* Handle gpu->event. */
void gpu_step(struct gpu *gpu);
/* The context's process died: its work is gone. */
void gpu_destroy(struct gpu *gpu, unsigned context, uint64_t now);
/* Its GPU time up to now, with the piece that is being executed. */
uint64_t gpu_executed(const struct gpu *gpu, unsigned context, uint64_t now);
uint64_t gpu_pending(const struct gpu *gpu, unsigned context, uint64_t now);
void gpu_full(struct gpu *gpu, unsigned context, int full, uint64_t now);
/* Bring the counters of `struct context` up to now. */
void gpu_count(struct gpu *gpu, uint64_t now);
uint64_t gpu_shared(const struct gpu *gpu, unsigned context, uint64_t now);

static inline uint64_t gpu_queued(const struct gpu *gpu, unsigned i) {
    return gpu->context[i].tail - gpu->context[i].head;
}

#endif
