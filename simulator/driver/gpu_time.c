/* Sharing of the simulated GPU's time: any process that looks computes a later state and puts it in place of
 * the live one. */
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REAP_NS 1000000ull /* real time between two looks for exited processes */
#define LOOK_NS \
    2000000ull   /* real time: a waiter looks again so soon, since a neighbour may have exited or been stopped */
#define TRIES 16 /* how often neighbours may be quicker; a hostile one may always be */

static const struct gpu_state *live_state(const struct gpu_file *f, uint64_t live) {
    return &f->state[(live & 0xffff) % (GPU_SLOTS * GPU_STATES)];
}

bool gpu_picture(const struct gpu_file *f, struct gpu_state *out, uint64_t *live) {
    for (int i = 0; i < TRIES; i++) {
        *live = atomic_load_explicit(&f->head.live, memory_order_acquire);
        memcpy(out, live_state(f, *live), offsetof(struct gpu_state, queue) + gpu_queues(f) * sizeof *out->queue);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&f->head.live, memory_order_relaxed) == *live)
            return true;
    }
    return false;
}

/* Copies the times of passed marks into the rings. Two processes may both do it. */
static void apply_log(struct gpu_file *f, const struct gpu_state *s) {
    for (unsigned i = 0; i < s->logged && i < GPU_LOG; i++) {
        const struct gpu_logged *l = &s->log[i];
        struct gpu_work *w = &f->queue[l->queue % GPU_QUEUES].ring[l->seq % GPU_RING];
        if (atomic_load(&w->seq1) == l->seq + 1)
            w->done_ns = l->done_ns;
    }
}

void gpu_advance(struct gpu *gpu, bool front) {
    struct gpu_file *f = gpu->file;
    unsigned base = (unsigned)gpu->slot * GPU_STATES + (front ? 2 : 0);
    for (int i = 0; i < TRIES; i++) {
        uint64_t live = atomic_load_explicit(&f->head.live, memory_order_acquire);
        unsigned mine = base + ((live & 0xffff) == base);
        struct gpu_state *s = &f->state[mine];
        if (!gpu_picture(f, s, &live) || (live & 0xffff) == mine)
            continue;
        apply_log(f, s);
        s->logged = 0;
        memset(s->exited, 0, sizeof s->exited);
        bool whole = engine_run(f, s, gpu_now(f));
        if (!atomic_compare_exchange_strong(&f->head.live, &live, ((live >> 16) + 1) << 16 | mine))
            continue;
        apply_log(f, s);
        if (whole)
            return;
        i = 0;
    }
}

uint64_t gpu_head_of(const struct gpu_file *f, int queue) {
    uint64_t head = 0;
    for (int i = 0; i < TRIES; i++) {
        uint64_t live = atomic_load_explicit(&f->head.live, memory_order_acquire);
        head = *(const volatile uint64_t *)&live_state(f, live)->queue[queue].head;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&f->head.live, memory_order_relaxed) == live)
            break;
    }
    return head;
}

/* Mutex held. */
static struct gpu_state *scratch(struct gpu *gpu) {
    if (!gpu->scratch)
        gpu->scratch = malloc(sizeof *gpu->scratch);
    return gpu->scratch;
}

uint64_t gpu_mark_ns(struct gpu *gpu, int queue, uint64_t seq) {
    uint64_t live;
    pthread_mutex_lock(&gpu->mutex);
    struct gpu_state *s = scratch(gpu);
    if (s && gpu_picture(gpu->file, s, &live))
        apply_log(gpu->file,
                  s); /* the process that computed this state may have been stopped before it copied the times */
    pthread_mutex_unlock(&gpu->mutex);
    const struct gpu_work *w = &gpu->file->queue[queue].ring[seq % GPU_RING];
    return atomic_load(&w->seq1) == seq + 1 ? w->done_ns : 0;
}

uint64_t gpu_ahead_ns(struct gpu *gpu, int queue, uint64_t seq, uint64_t most) {
    uint64_t live, scale = gpu_scale(gpu->file), now = gpu_now(gpu->file), end = now + most / scale + 1;
    pthread_mutex_lock(&gpu->mutex);
    struct gpu_state *s = scratch(gpu);
    if (s && gpu_picture(gpu->file, s, &live)) {
        do
            s->logged = 0;
        while (!engine_run_until(gpu->file, s, end, queue, seq) && s->now_ns < end);
        end = s->queue[queue].head > seq ? s->now_ns : end;
    }
    pthread_mutex_unlock(&gpu->mutex);
    uint64_t ns = end > now ? (end - now) * scale : 0;
    return ns < most ? ns : most;
}

static void sleep_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static void look(struct gpu *gpu) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    pthread_mutex_lock(&gpu->mutex);
    if (now - gpu->reaped_ns >= REAP_NS) {
        gpu->reaped_ns = now;
        gpu_reap(gpu);
    }
    gpu_advance(gpu, false);
    pthread_mutex_unlock(&gpu->mutex);
}

bool gpu_done(struct gpu *gpu, int queue, uint64_t seq) {
    if (gpu_head_of(gpu->file, queue) > seq)
        return true;
    look(gpu);
    return gpu_head_of(gpu->file, queue) > seq;
}

void gpu_wait(struct gpu *gpu, int queue, uint64_t seq) {
    uint64_t wake = gpu->file->head.wake_ns < 10000000 ? gpu->file->head.wake_ns * gpu_scale(gpu->file) : 0;
    bool late = false; /* it slept until the end of the work, plus the time that waking up takes */
    while (!gpu_done(gpu, queue, seq)) {
        uint64_t ns = gpu_ahead_ns(gpu, queue, seq, LOOK_NS);
        late = ns < LOOK_NS;
        sleep_ns(late ? ns + wake : ns);
        wake = late ? 0 : wake;
    }
}
