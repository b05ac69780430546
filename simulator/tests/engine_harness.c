/* The engine for tests, on private memory: tests submit works with a time and read when they were done. */
#include "gpu.h"

#include <stdlib.h>

struct bench {
    struct gpu_file file;
    struct gpu_state state;
};

struct bench *bench_new(uint64_t slice, uint64_t loaded, uint64_t idle) {
    struct bench *b = calloc(1, sizeof *b);
    b->file.head.slice_ns = slice;
    b->file.head.switch_ns = loaded;
    b->file.head.switch_idle_ns = idle;
    b->file.head.sm_count = 100;
    atomic_store(&b->file.head.groups, 16);
    atomic_store(&b->file.head.queues, 32);
    for (unsigned i = 0; i < 32; i++) { /* 16 contexts of one process each, with two channels each */
        atomic_store(&b->file.queue[i].owner, i / 2 + 1);
        atomic_store(&b->file.group[i / 2].owner, i / 2 + 1);
        b->file.queue[i].group = i / 2;
    }
    return b;
}

void bench_free(struct bench *b) { free(b); }

uint64_t bench_submit(struct bench *b, int queue, uint64_t at, uint32_t kind, uint64_t duration, uint32_t width,
                      uint32_t other, uint64_t seq) {
    struct gpu_queue *q = &b->file.queue[queue];
    uint64_t tail = atomic_load(&q->tail);
    struct gpu_work *w = &q->ring[tail % GPU_RING];
    *w = (struct gpu_work){.seq1 = tail + 1,
                           .submit_ns = at,
                           .duration_ns = duration,
                           .kind = kind,
                           .width = width,
                           .other = other,
                           .seq = seq};
    atomic_store(&q->tail, tail + 1);
    return tail;
}

void bench_advance(struct bench *b, uint64_t now) {
    for (bool whole = false; !whole;) {
        whole = engine_run(&b->file, &b->state, now);
        for (unsigned i = 0; i < b->state.logged; i++)
            b->file.queue[b->state.log[i].queue].ring[b->state.log[i].seq % GPU_RING].done_ns = b->state.log[i].done_ns;
        b->state.logged = 0;
    }
}

/* When this work will be done if nothing else is submitted; at most `end`. */
uint64_t bench_foresee(struct bench *b, uint64_t end, int queue, uint64_t seq) {
    struct gpu_state s = b->state;
    engine_run_until(&b->file, &s, end, queue, seq);
    return s.queue[queue].head > seq ? s.now_ns : end;
}

uint64_t bench_head(struct bench *b, int queue) { return b->state.queue[queue].head; }
uint64_t bench_mark(struct bench *b, int queue, uint64_t seq) { return b->file.queue[queue].ring[seq].done_ns; }
uint64_t bench_busy(struct bench *b) { return b->state.busy.total_ns; }
uint64_t bench_served(struct bench *b, int slot) { return b->state.slot[slot].total_ns; }
void bench_met(struct bench *b, int queue, uint64_t seq, uint64_t at) {
    b->file.queue[queue].ring[seq % GPU_RING].met_ns = at;
    atomic_store(&b->file.queue[queue].ring[seq % GPU_RING].met, 1);
}
void bench_void(struct bench *b, int queue) {
    atomic_store(&b->file.queue[queue].cut, atomic_load(&b->file.queue[queue].tail));
}
