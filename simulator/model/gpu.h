/* The model's GPU: one context per tenant with a FIFO of kernels, time-sliced round robin. README.md says why it is not
 * the driver's engine. Times in nanoseconds of virtual time. */
#ifndef GPU_HOOK_MODEL_GPU_H
#define GPU_HOOK_MODEL_GPU_H

#include <stdint.h>

#define MAX_TENANTS 16
#define QUEUE_SIZE 1024u
#define NEVER UINT64_MAX
#define CLEAR_AFTER 700000u

struct kernel {
    uint64_t duration;  /* GPU time that it needs */
    uint64_t left;      /* part of it that is not yet executed */
    uint64_t submitted; /* when */
    uint64_t shared;    /* its context's part of the time since it began, by the number of contexts with work */
    uint64_t began;     /* when it first ran; 0: not yet */
    int clean;          /* when it began, the others had had no work for CLEAR_AFTER */
    uint32_t key;       /* kernels with the same key share one learned cost */
};

struct context {
    struct kernel queue[QUEUE_SIZE];
    uint64_t head, tail; /* numbers of kernels done and submitted */
    uint64_t executed;   /* GPU time of all that was executed */
    uint64_t completed;  /* GPU time of finished kernels */
    uint64_t pending;    /* time with work, up to gpu.changed */
    uint64_t shared;     /* its part of that time, by the number of contexts with work */
    uint64_t clear_from; /* when the others will have had no work for CLEAR_AFTER; NEVER while they have some */
    uint64_t clear, clear_pending; /* total time after clear_from; and its part with own work, or with `full` */
    uint64_t clear_at_idle;        /* `clear` when the own work last ended */
    int full;                      /* a launch waits for the tenant's own window */
};

struct gpu {
    uint64_t slice, switch_loaded, switch_idle; /* constants of the GPU */
    unsigned count;
    uint64_t work; /* bit i: context i has kernels */
    unsigned current;
    enum { GPU_IDLE, GPU_SWITCH, GPU_RUN } phase;
    uint64_t event;    /* time of the next event, or NEVER */
    uint64_t run_from; /* when the current piece of execution began */
    uint64_t slice_end;
    uint64_t changed; /* when `work` last changed */
    uint64_t busy;    /* total time of execution */
    uint64_t switching;
    /* Called for each executed piece, then for each finished kernel. */
    void (*ran)(void *who, unsigned context, uint64_t from, uint64_t to);
    void (*finished)(void *who, unsigned context, const struct kernel *kernel, uint64_t now);
    void *who;
    struct context context[MAX_TENANTS]; /* the last field: gpu_reset clears only those in use */
};

/* Makes an idle GPU of `count` contexts; the caller then sets constants and callbacks. */
void gpu_reset(struct gpu *gpu, unsigned count);

void gpu_submit(struct gpu *gpu, unsigned context, uint64_t duration, uint32_t key, uint64_t now);
/* Does what happens at gpu->event. */
void gpu_step(struct gpu *gpu);
/* The context's process exited: its work is dropped. */
void gpu_destroy(struct gpu *gpu, unsigned context, uint64_t now);
/* Its GPU time up to now, including the piece that is being executed. */
uint64_t gpu_executed(const struct gpu *gpu, unsigned context, uint64_t now);
uint64_t gpu_pending(const struct gpu *gpu, unsigned context, uint64_t now);
void gpu_full(struct gpu *gpu, unsigned context, int full, uint64_t now);
/* Updates the counters of all contexts to now. */
void gpu_count(struct gpu *gpu, uint64_t now);
uint64_t gpu_shared(const struct gpu *gpu, unsigned context, uint64_t now);

static inline uint64_t gpu_queued(const struct gpu *gpu, unsigned i) {
    return gpu->context[i].tail - gpu->context[i].head;
}

#endif
