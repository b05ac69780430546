/* Simulated libcuda: streams. A stream uses one channel of its context, where its work runs in order. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdlib.h>

#define STREAM_MAGIC 0x73747265616d2121ull

struct live_stream {
    uint64_t magic;
    uint64_t id;
    struct stream s;
    struct live_stream *next; /* the thread's next default stream */
};

/* --- per-thread default streams: one for each context that the thread used --- */

static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void leave_thread(void *list) {
    for (struct live_stream *l = list, *next; l; l = next) {
        next = l->next;
        capture_leave(&l->s);
        channel_leave(&l->s);
        l->magic = 0;
        attributes_free(l->s.attributes);
        free(l);
    }
}

static void make_key(void) { pthread_key_create(&own_key, leave_thread); }

static struct live_stream *new_stream(CUcontext ctx, unsigned flags, int priority) {
    static _Atomic uint64_t ids = 3;
    struct live_stream *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->magic = STREAM_MAGIC;
    l->id = atomic_fetch_add(&ids, 1);
    l->s.ctx = ctx;
    l->s.flags = flags;
    l->s.priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return l;
}

static struct stream *per_thread(CUcontext ctx) {
    pthread_once(&own_once, make_key);
    struct live_stream *list = pthread_getspecific(own_key), *l = list;
    while (l && l->s.ctx != ctx)
        l = l->next;
    if (l)
        return &l->s;
    if (!(l = new_stream(ctx, 0, 0)))
        return NULL;
    l->next = list;
    pthread_setspecific(own_key, l);
    return &l->s;
}

/* Handles: NULL and CU_STREAM_LEGACY (1) are the context's default stream, CU_STREAM_PER_THREAD (2) the thread's own. */
CUresult sim_stream(CUstream handle, struct stream **out) {
    if ((uintptr_t)handle <= 2) {
        CUcontext ctx;
        TRY(sim_context(&ctx));
        *out = (uintptr_t)handle == 2 ? per_thread(ctx) : &ctx->null_stream;
        return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    TRY(sim_ready());
    const struct live_stream *l = (const void *)((const char *)handle - offsetof(struct live_stream, s));
    if (l->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    return handle->ctx->closed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult stream_new(CUstream *out, CUcontext ctx, unsigned flags, int priority) {
    if (!out || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct live_stream *l = new_stream(ctx, flags, priority);
    if (!l)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = &l->s;
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    return stream_new(out, ctx, flags, priority);
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

/* Queued work still runs; cuStreamDestroy does not wait for it. */
static CUresult stream_destroy(CUstream handle) {
    struct stream *s;
    CUresult r = sim_stream(handle, &s);
    if (r && r != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return r;
    if ((uintptr_t)handle <= 2)
        return CUDA_ERROR_INVALID_HANDLE;
    struct live_stream *l = (void *)((char *)s - offsetof(struct live_stream, s));
    capture_leave(s);
    channel_leave(s);
    l->magic = 0;
    attributes_free(s->attributes);
    free(l);
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(CUstream handle) { return stream_destroy(handle); }
API CUresult cuStreamDestroy_v2(CUstream handle) { return stream_destroy(handle); }

/* --- waiting --- */

/* The last work per channel that a wait for this stream waits for. For the legacy default stream, that includes all
 * blocking streams. all: the whole context. */
static bool each_channel(struct stream *s, bool all, bool wait) {
    CUcontext ctx = s->ctx;
    struct channel *ch[CHANNELS];
    uint64_t last[CHANNELS];
    pthread_mutex_lock(&ctx->mutex);
    if (!all && s != &ctx->null_stream) {
        ch[0] = s->channel;
        last[0] = s->last;
        pthread_mutex_unlock(&ctx->mutex);
        if (wait)
            channel_wait(ch[0], last[0]);
        return wait || channel_done(ch[0], last[0]);
    }
    for (int i = 0; i < CHANNELS; i++) {
        ch[i] = ctx->channel[i];
        last[i] = !ch[i] ? 0 : all ? ch[i]->tail : ch[i]->blocking;
    }
    pthread_mutex_unlock(&ctx->mutex);
    for (int i = 0; i < CHANNELS; i++)
        if (wait)
            channel_wait(ch[i], last[i]);
        else if (!channel_done(ch[i], last[i]))
            return false;
    return true;
}

CUresult sim_stream_wait(struct stream *s) {
    each_channel(s, false, true);
    pool_release(s->ctx->device, false);
    return CUDA_SUCCESS;
}

CUresult sim_context_wait(CUcontext ctx) {
    each_channel(&ctx->null_stream, true, true);
    pool_release(ctx->device, false);
    return CUDA_SUCCESS;
}

static CUresult synchronise(CUstream handle) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    CUresult r;
    if (capture_refuses(s, &r))
        return r;
    TRY(capture_forbids());
    return sim_stream_wait(s);
}

static CUresult query(CUstream handle) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    CUresult r;
    if (capture_refuses(s, &r))
        return r;
    TRY(capture_forbids());
    return each_channel(s, false, false) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult get_flags(CUstream handle, unsigned *flags) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = s->flags;
    return CUDA_SUCCESS;
}

static CUresult get_priority(CUstream handle, int *priority) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}

static CUresult get_context(CUstream handle, CUcontext *ctx) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    *ctx = s->ctx;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUstream handle, unsigned long long *id) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = s == &s->ctx->null_stream ? 1 : ((struct live_stream *)((char *)s - offsetof(struct live_stream, s)))->id;
    return CUDA_SUCCESS;
}

#define P(s) PER_THREAD(s)
API CUresult cuStreamSynchronize(CUstream s) { return synchronise(s); }
API CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronise(P(s)); }
API CUresult cuStreamQuery(CUstream s) { return query(s); }
API CUresult cuStreamQuery_ptsz(CUstream s) { return query(P(s)); }
API CUresult cuStreamGetFlags(CUstream s, unsigned *flags) { return get_flags(s, flags); }
API CUresult cuStreamGetFlags_ptsz(CUstream s, unsigned *flags) { return get_flags(P(s), flags); }
API CUresult cuStreamGetPriority(CUstream s, int *priority) { return get_priority(s, priority); }
API CUresult cuStreamGetPriority_ptsz(CUstream s, int *priority) { return get_priority(P(s), priority); }
API CUresult cuStreamGetCtx(CUstream s, CUcontext *ctx) { return get_context(s, ctx); }
API CUresult cuStreamGetCtx_ptsz(CUstream s, CUcontext *ctx) { return get_context(P(s), ctx); }
API CUresult cuStreamGetId(CUstream s, unsigned long long *id) { return get_id(s, id); }
API CUresult cuStreamGetId_ptsz(CUstream s, unsigned long long *id) { return get_id(P(s), id); }

static CUresult get_contexts(CUstream s, CUcontext *ctx, void **green) {
    if (green)
        *green = NULL;
    return get_context(s, ctx);
}

static CUresult get_green(CUstream handle, void **green) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    *green = NULL; /* which one is not simulated */
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetGreenCtx(CUstream s, void **green) { return get_green(s, green); }
API CUresult cuStreamGetCtx_v2(CUstream s, CUcontext *ctx, void **green) { return get_contexts(s, ctx, green); }
API CUresult cuStreamGetCtx_v2_ptsz(CUstream s, CUcontext *ctx, void **green) { return get_contexts(P(s), ctx, green); }

API CUresult cuCtxSynchronize(void) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    return sim_context_wait(ctx);
}

API CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    if (!ctx)
        return cuCtxSynchronize();
    TRY(sim_ready());
    return sim_context_valid(ctx) ? sim_context_wait(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

/* The caller waits for the work before a host function, then runs it; the real driver runs it in a thread of its own. */
static CUresult host_function(CUstream handle, void (*function)(void *), void *data) {
    struct stream *s;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_stream(handle, &s));
    CUresult r;
    if (capture_host(s, function, data, &r))
        return r;
    TRY(sim_stream_wait(s));
    sim_run_host_function(function, data);
    return CUDA_SUCCESS;
}

API CUresult cuLaunchHostFunc(CUstream s, void (*f)(void *), void *data) { return host_function(s, f, data); }
API CUresult cuLaunchHostFunc_ptsz(CUstream s, void (*f)(void *), void *data) { return host_function(P(s), f, data); }

static CUresult callback(CUstream s, void (*f)(CUstream, CUresult, void *), void *data) {
    if (!f)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(synchronise(s));
    f(s, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}

API CUresult cuStreamAddCallback(CUstream s, void (*f)(CUstream, CUresult, void *), void *data, unsigned flags) {
    return (void)flags, callback(s, f, data);
}

API CUresult cuStreamAddCallback_ptsz(CUstream s, void (*f)(CUstream, CUresult, void *), void *data, unsigned flags) {
    return (void)flags, callback(P(s), f, data);
}
