/* Simulated libcuda: events. A recorded event is a mark in its stream's channel. Before the mark's cell is used again,
 * its time is copied to the event. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>

#define EVENT_MAGIC 0x6576656e74212121ull

static CUresult event_valid(CUevent e) {
    TRY(sim_ready());
    return e && e->magic == EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->magic = EVENT_MAGIC;
    e->flags = flags;
    *out = e;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent e) {
    TRY(event_valid(e));
    if (e->channel) {
        pthread_mutex_lock(&e->ctx->mutex);
        struct event **cell = &e->channel->pending[e->seq % GPU_RING];
        if (*cell == e)
            *cell = NULL;
        pthread_mutex_unlock(&e->ctx->mutex);
    }
    e->magic = 0;
    free(e);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent e) { return event_destroy(e); }
API CUresult cuEventDestroy_v2(CUevent e) { return event_destroy(e); }

CUresult event_record(CUevent e, struct stream *s) {
    TRY(event_valid(e));
    if (capture_active(s))
        return capture_record(s, e);
    e->captured = NULL;
    return channel_submit(s, (struct gpu_work){.kind = WORK_MARK}, e, NULL);
}

static CUresult record(CUevent e, CUstream handle, unsigned flags) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    return flags ? CUDA_ERROR_NOT_SUPPORTED : event_record(e, s);
}

API CUresult cuEventRecord(CUevent e, CUstream s) { return record(e, s, 0); }
API CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return record(e, PER_THREAD(s), 0); }
API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) { return record(e, s, flags); }
API CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags) {
    return record(e, PER_THREAD(s), flags);
}

API CUresult cuEventQuery(CUevent e) {
    TRY(event_valid(e));
    if (capture_holds(e->captured))
        return CUDA_ERROR_CAPTURED_EVENT;
    return e->retired || channel_done(e->channel, e->seq + 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent e) {
    TRY(event_valid(e));
    if (capture_holds(e->captured))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!e->channel)
        return CUDA_SUCCESS;
    if (!e->retired)
        channel_wait(e->channel, e->seq + 1);
    pool_release(e->ctx->device, false);
    return CUDA_SUCCESS;
}

static CUresult time_of(CUevent e, uint64_t *ns) {
    TRY(event_valid(e));
    if (!e->channel || e->flags & 2) /* never recorded, or CU_EVENT_DISABLE_TIMING */
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(cuEventQuery(e));
    pthread_mutex_lock(&e->ctx->mutex);
    *ns = e->retired ? e->done_ns : gpu_mark_ns(e->channel->gpu, e->channel->queue, e->seq);
    pthread_mutex_unlock(&e->ctx->mutex);
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
    if (capture_holds(e->captured))
        return capture_wait(s, e);
    if (capture_active(s))
        return capture_unsupported(s);
    if (!e->channel || e->retired || e->channel == s->channel)
        return CUDA_SUCCESS;
    if (e->channel->gpu != sim_gpu_of(s->ctx)) /* the event is another GPU's: the caller itself waits */
        return cuEventSynchronize(e);
    struct gpu_work work = {.kind = WORK_AFTER, .other = (uint32_t)e->channel->queue, .seq = e->seq};
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
