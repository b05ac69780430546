#include "gpu.h"

#include <stddef.h>
#include <string.h>

#include "gate/decide.h"

void gpu_reset(struct gpu *gpu, unsigned count) {
    memset(gpu, 0, offsetof(struct gpu, context) + count * sizeof *gpu->context);
    gpu->count = count;
    gpu->event = NEVER;
}

uint64_t gpu_pending(const struct gpu *gpu, unsigned i, uint64_t now) {
    return gpu->context[i].pending + (gpu->work >> i & 1 ? now - gpu->changed : 0);
}

uint64_t gpu_executed(const struct gpu *gpu, unsigned i, uint64_t now) {
    int running = gpu->phase == GPU_RUN && gpu->current == i;
    return gpu->context[i].executed + (running ? now - gpu->run_from : 0);
}

uint64_t gpu_shared(const struct gpu *gpu, unsigned i, uint64_t now) {
    uint64_t n = (uint64_t)__builtin_popcountll(gpu->work);
    return gpu->context[i].shared + (gpu->work >> i & 1 ? (now - gpu->changed) / n : 0);
}

void gpu_count(struct gpu *gpu, uint64_t now) {
    for (unsigned i = 0; i < gpu->count; i++) {
        struct context *c = &gpu->context[i];
        uint64_t pending = gpu_pending(gpu, i, now), shared = gpu_shared(gpu, i, now);
        if (c->clear_from < now) {
            uint64_t more = now - (c->clear_from > gpu->changed ? c->clear_from : gpu->changed);
            c->clear += more;
            c->clear_pending += c->full || gpu->work >> i & 1 ? more : 0;
        }
        c->pending = pending;
        c->shared = shared;
    }
    gpu->changed = now;
}

void gpu_full(struct gpu *gpu, unsigned i, int full, uint64_t now) {
    if (gpu->context[i].full != full)
        gpu_count(gpu, now);
    gpu->context[i].full = full;
}

static void set_work(struct gpu *gpu, uint64_t work, uint64_t now) {
    gpu_count(gpu, now);
    for (unsigned i = 0; i < gpu->count; i++) {
        struct context *c = &gpu->context[i];
        uint64_t others = work & ~(1ull << i);
        if (others)
            c->clear_from = NEVER;
        else if (c->clear_from == NEVER)
            c->clear_from = now + CLEAR_AFTER;
        if ((gpu->work & ~work) >> i & 1)
            c->clear_at_idle = c->clear;
    }
    gpu->work = work;
}

static struct kernel *front(struct gpu *gpu, unsigned i) {
    return &gpu->context[i].queue[gpu->context[i].head % QUEUE_SIZE];
}

static unsigned next_with_work(const struct gpu *gpu) {
    for (unsigned k = 1; k <= gpu->count; k++) {
        unsigned i = (gpu->current + k) % gpu->count;
        if (gpu->work >> i & 1)
            return i;
    }
    return gpu->current;
}

/* The slice timer keeps running while no other context wants the GPU; later only its phase counts. */
static void renew_slice(struct gpu *gpu, uint64_t now) {
    if (gpu->slice_end <= now)
        gpu->slice_end += ((now - gpu->slice_end) / gpu->slice + 1) * gpu->slice;
}

static void plan_event(struct gpu *gpu) {
    uint64_t end = gpu->run_from + front(gpu, gpu->current)->left;
    int others = (gpu->work & ~(1ull << gpu->current)) != 0;
    gpu->event = others && gpu->slice_end < end ? gpu->slice_end : end;
}

static void run(struct gpu *gpu, uint64_t now) {
    struct kernel *k = front(gpu, gpu->current);
    if (!k->began) {
        k->began = now;
        k->clean = gpu->context[gpu->current].clear_from <=
                   now; /* decided at its begin: others would interrupt long kernels more often */
        k->shared = gpu_shared(gpu, gpu->current, now);
    }
    gpu->phase = GPU_RUN;
    gpu->run_from = now;
    plan_event(gpu);
}

static void switch_away(struct gpu *gpu, uint64_t cost, uint64_t now) {
    gpu->current = next_with_work(gpu);
    gpu->phase = GPU_SWITCH;
    gpu->event = now + cost;
    gpu->switching += cost;
}

static void account(struct gpu *gpu, uint64_t now) {
    uint64_t time = now - gpu->run_from;
    if (!time)
        return;
    front(gpu, gpu->current)->left -= time;
    gpu->context[gpu->current].executed += time;
    gpu->busy += time;
    gpu->ran(gpu->who, gpu->current, gpu->run_from, now);
    gpu->run_from = now;
}

void gpu_submit(struct gpu *gpu, unsigned i, uint64_t duration, uint32_t key, uint64_t now) {
    struct context *c = &gpu->context[i];
    c->queue[c->tail++ % QUEUE_SIZE] =
        (struct kernel){.duration = duration, .left = duration, .submitted = now, .key = key};
    if (gpu->work >> i & 1)
        return;
    set_work(gpu, gpu->work | 1ull << i, now);
    if (gpu->phase == GPU_IDLE) {
        if (i == gpu->current) {
            gpu->slice_end = now + gpu->slice;
            run(gpu, now);
        } else {
            switch_away(gpu, gpu->switch_idle, now);
        }
    } else if (gpu->phase == GPU_RUN) {
        renew_slice(gpu, now);
        plan_event(gpu);
    }
}

void gpu_step(struct gpu *gpu) {
    uint64_t now = gpu->event;
    unsigned i = gpu->current;
    if (gpu->phase == GPU_SWITCH) {
        gpu->slice_end = now + gpu->slice;
        if (gpu->work >> i & 1) {
            run(gpu, now);
        } else if (gpu->work) { /* its process exited during the switch */
            switch_away(gpu, gpu->switch_idle, now);
        } else {
            gpu->phase = GPU_IDLE;
            gpu->event = NEVER;
        }
        return;
    }
    account(gpu, now);
    struct kernel *k = front(gpu, i);
    struct context *c = &gpu->context[i];
    int finished = !k->left;
    if (finished)
        k->shared = gh_less_switches(gpu_shared(gpu, i, now) - k->shared, now - k->began,
                                     (uint64_t)__builtin_popcountll(gpu->work));
    struct kernel copy = *k;
    if (finished) {
        c->head++;
        c->completed += copy.duration;
        if (c->head == c->tail)
            set_work(gpu, gpu->work & ~(1ull << i), now);
    }
    if (!(gpu->work >> i & 1)) {
        if (gpu->work) {
            switch_away(gpu, gpu->switch_idle, now);
        } else {
            gpu->phase = GPU_IDLE;
            gpu->event = NEVER;
        }
    } else if (gpu->slice_end <= now && gpu->work & ~(1ull << i)) {
        switch_away(gpu, gpu->switch_loaded, now);
    } else {
        renew_slice(gpu, now);
        run(gpu, now);
    }
    if (finished)
        gpu->finished(gpu->who, i, &copy, now);
}

void gpu_destroy(struct gpu *gpu, unsigned i, uint64_t now) {
    if (!(gpu->work >> i & 1))
        return;
    int running = gpu->phase == GPU_RUN && gpu->current == i;
    if (running)
        account(gpu, now);
    gpu->context[i].head = gpu->context[i].tail;
    set_work(gpu, gpu->work & ~(1ull << i), now);
    if (running) {
        if (gpu->work) {
            switch_away(gpu, gpu->switch_loaded, now);
        } else {
            gpu->phase = GPU_IDLE;
            gpu->event = NEVER;
        }
    } else if (gpu->phase == GPU_RUN) {
        plan_event(gpu);
    }
}
