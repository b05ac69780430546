/* Simulated libcuda: events. A recorded event is a mark in its stream's channel. Before the mark's cell is used again,
 * its time is copied to the event. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>

#define EVENT_MAGIC 0x6576656e74212121ull

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* may be locked while a context's is held, not the reverse */

static struct mark look(CUevent e) {
    pthread_mutex_lock(&mutex);
    struct mark mark = e->mark;
    pthread_mutex_unlock(&mutex);
    return mark;
}

/* Mutex held. */
static void leave_cell(CUevent e) {
    struct event *_Atomic *cell = e->mark.channel ? &e->mark.channel->pending[e->mark.seq % GPU_RING] : NULL;
    if (cell && *cell == e)
        *cell = NULL;
}

void event_marked(CUevent e, struct mark mark) {
    pthread_mutex_lock(&mutex);
    leave_cell(e);
    e->mark = mark;
    mark.channel->pending[mark.seq % GPU_RING] = e;
    shared_event_marked(e);
    pthread_mutex_unlock(&mutex);
}

void event_publish(CUevent e) {
    pthread_mutex_lock(&mutex);
    shared_event_marked(e);
    pthread_mutex_unlock(&mutex);
}

void event_retire(struct channel *ch, uint64_t seq) {
    pthread_mutex_lock(&mutex);
    struct event *e = ch->pending[seq % GPU_RING];
    if (e && e->mark.channel == ch && e->mark.seq == seq) {
        e->mark.done_ns = gpu_mark_ns(ch->gpu, ch->queue, seq);
        e->mark.retired = true;
    }
    ch->pending[seq % GPU_RING] = NULL;
    pthread_mutex_unlock(&mutex);
}

CUresult event_valid(CUevent e) {
    TRY(sim_ready());
    return e && e->magic == EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult event_new(CUevent *out, CUcontext ctx, unsigned flags) {
    struct event *e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->magic = EVENT_MAGIC;
    e->flags = flags;
    e->ctx = ctx;
    e->device = ctx->device;
    *out = e;
    return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || flags & ~7u || (flags & 6u) == 4u) /* CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING */
        return CUDA_ERROR_INVALID_VALUE;
    return event_new(out, ctx, flags);
}

static CUresult event_destroy(CUevent e) {
    TRY(event_valid(e));
    pthread_mutex_lock(&mutex);
    leave_cell(e);
    shared_event_gone(e);
    pthread_mutex_unlock(&mutex);
    e->magic = 0;
    free(e);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent e) { return event_destroy(e); }
API CUresult cuEventDestroy_v2(CUevent e) { return event_destroy(e); }

CUresult event_record(CUevent e, struct stream *s) {
    TRY(event_valid(e));
    CUresult r;
    if (capture_record(s, e, &r))
        return r;
    e->captured = NULL;
    return channel_submit(s, (struct gpu_work){.kind = WORK_MARK}, e, NULL);
}

static CUresult record(CUevent e, CUstream handle, unsigned flags) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    TRY(event_valid(e));
    if (e->ctx->memory != s->ctx->memory) /* green contexts of one primary context record each other's events */
        return CUDA_ERROR_INVALID_HANDLE;
    return flags ? CUDA_ERROR_NOT_SUPPORTED : event_record(e, s);
}

API CUresult cuEventRecord(CUevent e, CUstream s) { return record(e, s, 0); }
API CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return record(e, PER_THREAD(s), 0); }
API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) { return record(e, s, flags); }
API CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags) {
    return record(e, PER_THREAD(s), flags);
}

static CUresult done(CUevent e) {
    TRY(event_valid(e));
    if (capture_holds(e->captured))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (e->shared)
        return shared_event_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    struct mark m = look(e);
    return m.retired || channel_done(m.channel, m.seq + 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventQuery(CUevent e) {
    TRY(event_valid(e));
    if (!capture_holds(e->captured))
        TRY(capture_forbids());
    return done(e);
}

static CUresult wait_for(CUevent e) {
    if (capture_holds(e->captured))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (e->shared) {
        shared_event_wait(e);
        pool_release(e->device, false);
        return CUDA_SUCCESS;
    }
    struct mark m = look(e);
    if (!m.channel)
        return CUDA_SUCCESS;
    if (!m.retired)
        channel_wait(m.channel, m.seq + 1);
    pool_release(m.ctx->device, false);
    return CUDA_SUCCESS;
}

API CUresult cuEventSynchronize(CUevent e) {
    TRY(event_valid(e));
    if (!capture_holds(e->captured))
        TRY(capture_forbids());
    return wait_for(e);
}

static CUresult time_of(CUevent e, uint64_t *ns) {
    TRY(event_valid(e));
    struct mark m = look(e);
    if (!m.channel || e->flags & 2) /* never recorded, or CU_EVENT_DISABLE_TIMING */
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(done(e));
    CUcontext ctx = m.ctx;
    pthread_mutex_lock(&ctx->mutex); /* its cell is not used again meanwhile */
    m = look(e);
    *ns = m.retired ? m.done_ns : gpu_mark_ns(m.channel->gpu, m.channel->queue, m.seq);
    pthread_mutex_unlock(&ctx->mutex);
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent from, CUevent to) {
    uint64_t a, b;
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(time_of(from, &a));
    TRY(time_of(to, &b));
    *ms = (float)((double)(int64_t)(b - a) / 1e6);
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) { return elapsed(ms, from, to); }
API CUresult cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return elapsed(ms, from, to); }

CUresult event_wait(struct stream *s, CUevent e) {
    TRY(event_valid(e));
    CUresult r;
    if (capture_wait(s, e, &r))
        return r;
    if (e->shared)
        return shared_event_order(e, s);
    struct mark m = look(e);
    if (!m.channel || m.retired || m.channel == channel_now(s))
        return CUDA_SUCCESS;
    if (m.channel->gpu != sim_gpu_of(s->ctx)) /* the event is another GPU's: the caller itself waits */
        return wait_for(e);
    struct gpu_work work = {.kind = WORK_AFTER, .other = (uint32_t)m.channel->queue, .seq = m.seq};
    return channel_submit(s, work, NULL, NULL);
}

static CUresult stream_wait(CUstream handle, CUevent e, unsigned flags) {
    struct stream *s;
    (void)flags;
    TRY(sim_stream(handle, &s));
    return event_wait(s, e);
}

API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { return stream_wait(s, e, flags); }
API CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags) {
    return stream_wait(PER_THREAD(s), e, flags);
}
