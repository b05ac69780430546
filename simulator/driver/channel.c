/* Simulated libcuda: a context's channels. Each is a ring of work on the GPU, which this file fills. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

#define SPARE (CHANNELS + 2) /* cells beyond the queue depth, for waits between channels */

/* Context's mutex held. Returns the n-th channel and makes it at its first use; NULL when the GPU has no more. */
static struct channel *open_channel(CUcontext ctx, int n, int priority) {
    if (ctx->channel[n])
        return ctx->channel[n];
    struct gpu *gpu = sim_gpu_of(ctx);
    struct channel *ch = calloc(1, sizeof *ch);
    int queue = ch ? gpu_take_queue(gpu, ctx->group, priority) : -1;
    if (queue < 0) {
        free(ch);
        return NULL;
    }
    ch->gpu = gpu;
    ch->queue = queue;
    ch->tail = ch->head = atomic_load(&gpu->file->queue[queue].tail);
    ch->after_legacy = ch->before_legacy = 0;
    return ctx->channel[n] = ch;
}

/* Context's mutex held. Returns the stream's channel; a new stream gets the channel with the fewest streams. */
static struct channel *channel_of(struct stream *s) {
    CUcontext ctx = s->ctx;
    if (s->channel)
        return s->channel;
    int best = 0;
    if (s != &ctx->null_stream)
        for (int i = best = 1; i < CHANNELS && ctx->channel[best] && ctx->channel[best]->users; i++)
            if (!ctx->channel[i] || ctx->channel[i]->users < ctx->channel[best]->users)
                best = i;
    struct channel *ch = open_channel(ctx, best, s->priority);
    for (int i = 1; !ch && i < CHANNELS; i++)
        ch = ctx->channel[i];
    if (!ch)
        ch = open_channel(ctx, 0, 0);
    if (ch) {
        if (!ch->users && s != &ctx->null_stream)
            ch->gpu->file->queue[ch->queue].priority = s->priority;
        ch->users++;
    }
    return s->channel = ch;
}

struct channel *channel_now(struct stream *s) {
    pthread_mutex_lock(&s->ctx->mutex);
    struct channel *ch = s->channel;
    pthread_mutex_unlock(&s->ctx->mutex);
    return ch;
}

void channel_leave(struct stream *s) {
    pthread_mutex_lock(&s->ctx->mutex);
    if (s->channel)
        s->channel->users--;
    s->channel = NULL;
    pthread_mutex_unlock(&s->ctx->mutex);
}

void channel_close(CUcontext ctx) {
    pthread_mutex_lock(&ctx->mutex);
    ctx->closed = true;
    for (int i = 0; i < CHANNELS; i++)
        if (ctx->channel[i])
            atomic_store(&ctx->channel[i]->closed, true);
    gpu_release_group(sim_gpu_of(ctx), ctx->group);
    pthread_mutex_unlock(&ctx->mutex);
}

/* Context's mutex held. */
static void append(struct channel *ch, const struct gpu_work *work) {
    struct gpu_queue *q = &ch->gpu->file->queue[ch->queue];
    uint64_t seq = ch->tail;
    struct gpu_work *w = &q->ring[seq % GPU_RING];
    if (ch->pending[seq % GPU_RING])
        event_retire(ch, seq - GPU_RING);
    atomic_store_explicit(&w->seq1, 0, memory_order_relaxed);
    w->submit_ns = gpu_now(ch->gpu->file);
    w->duration_ns = work->duration_ns;
    w->done_ns = 0;
    w->kind = work->kind;
    w->width = work->width;
    w->other = work->other;
    w->seq = work->seq;
    w->met_ns = 0;
    atomic_store_explicit(&w->met, 0, memory_order_relaxed);
    atomic_store_explicit(&w->seq1, seq + 1, memory_order_release);
    ch->tail = seq + 1;
    atomic_store_explicit(&q->tail, seq + 1, memory_order_release);
}

/* Context's mutex held. The next work of `ch` starts after the other channel's work up to `last`. */
static void after(struct channel *ch, const struct channel *other, uint64_t last) {
    append(ch, &(struct gpu_work){.kind = WORK_AFTER, .other = (uint32_t)other->queue, .seq = last - 1});
}

/* The legacy default stream waits for all blocking streams, and all blocking streams wait for it. */
static void order(struct stream *s, struct channel *ch) {
    CUcontext ctx = s->ctx;
    struct channel *legacy = ctx->channel[0];
    if (s == &ctx->null_stream) {
        for (int i = 1; i < CHANNELS; i++) {
            struct channel *other = ctx->channel[i];
            if (other && other->blocking > other->before_legacy) {
                after(ch, other, other->blocking);
                other->before_legacy = other->blocking;
            }
        }
    } else if (!(s->flags & 1) && legacy && legacy != ch && legacy->blocking > ch->after_legacy) {
        after(ch, legacy, legacy->blocking);
        ch->after_legacy = legacy->blocking;
    }
}

/* Waits until the ring has a free cell. Context's mutex held; it is released while waiting. */
static void make_room(CUcontext ctx, struct channel *ch) {
    uint64_t depth = ch->gpu->file->head.queue_depth;
    if (depth < 16 || depth > GPU_RING - SPARE)
        depth = GPU_RING - SPARE;
    while (!ctx->closed && ch->tail - ch->head >= depth) {
        uint64_t seq = ch->tail - depth; /* waits for more than one free cell, so that not every launch sleeps */
        ch->head = gpu_head_of(ch->gpu->file, ch->queue);
        if (ch->tail - ch->head < depth)
            break;
        pthread_mutex_unlock(&ctx->mutex);
        if (!gpu_done(ch->gpu, ch->queue, seq))
            gpu_wait(ch->gpu, ch->queue, seq + depth / 32);
        pthread_mutex_lock(&ctx->mutex);
        ch->head = gpu_head_of(ch->gpu->file, ch->queue);
    }
    while (!ctx->closed && ch->tail - atomic_load(&ch->ops_head) >= GPU_RING &&
           atomic_load(&ch->ops_head) != atomic_load(&ch->ops_tail) &&
           ch->op[atomic_load(&ch->ops_head) % GPU_RING].seq + GPU_RING <= ch->tail)
        memops_run(ch); /* the front end would write the values in a moment */
}

CUresult channel_submit(struct stream *s, struct gpu_work work, struct event *event, const struct memop *op) {
    CUcontext ctx = s->ctx;
    pthread_mutex_lock(&ctx->mutex);
    struct channel *ch = ctx->closed ? NULL : channel_of(s);
    if (ch)
        make_room(ctx, ch);
    if (!ch || ctx->closed) {
        pthread_mutex_unlock(&ctx->mutex);
        return ctx->closed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_OUT_OF_MEMORY;
    }
    order(s, ch);
    uint64_t seq = ch->tail, ops = atomic_load(&ch->ops_tail);
    if (op) {
        ch->op[ops % GPU_RING] = *op;
        ch->op[ops % GPU_RING].seq = seq;
    }
    append(ch, &work);
    s->last = seq + 1;
    if (!(s->flags & 1))
        ch->blocking = seq + 1;
    if (event)
        event_marked(event, (struct mark){.channel = ch, .ctx = ctx, .seq = seq});
    if (op)
        atomic_store_explicit(&ch->ops_tail, ops + 1, memory_order_release);
    pthread_mutex_unlock(&ctx->mutex);
    if (op)
        memops_start(ch);
    return CUDA_SUCCESS;
}

/* True if all stream memory operations before `last` are done. */
static bool ops_done(struct channel *ch, uint64_t last) {
    uint64_t head = atomic_load_explicit(&ch->ops_head, memory_order_acquire);
    return head == atomic_load_explicit(&ch->ops_tail, memory_order_acquire) || ch->op[head % GPU_RING].seq >= last;
}

bool channel_done(struct channel *ch, uint64_t last) {
    if (!ch || !last || atomic_load(&ch->closed))
        return true;
    if (!gpu_done(ch->gpu, ch->queue, last - 1))
        return false;
    if (!ops_done(ch, last))
        memops_run(ch);
    return ops_done(ch, last);
}

void channel_wait(struct channel *ch, uint64_t last) {
    if (!ch || !last || atomic_load(&ch->closed))
        return;
    gpu_wait(ch->gpu, ch->queue, last - 1);
    while (!ops_done(ch, last) && !atomic_load(&ch->closed))
        memops_run(ch);
}
