/* Simulated libcuda: modules, kernels, streams, events. A kernel is a duration; it computes nothing. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_MAGIC 0x73747265616d2121ull

/* --- modules and functions ---
 * An image may be anything. When it is text (PTX), "sim_us=N" in it sets the duration of all its kernels and
 * "sim_us NAME=N" that of one, and only names that occur in it are found; with "sim_param" in it, a kernel runs for as
 * many ns as its first parameter (64 bits) says. A name that ends in "_Nus" runs N µs. */

struct function {
    char name[128];
    uint64_t duration_ns; /* 0: the card's default */
    bool by_parameter;
    struct module *module;
    struct function *next;
};

struct module {
    char *text; /* NULL: not text */
    struct function *functions;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool is_text(const char *image)
{
    for (int i = 0; i < 4; i++)
        if (!(image[i] >= ' ' && image[i] <= '~') && !strchr("\n\r\t", image[i]))
            return false;
    return image[0] != 'P' || (unsigned char)image[1] != 0xed; /* a fatbinary begins with 50 ed 55 ba */
}

static CUresult load(CUmodule *out, const void *image)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (is_text(image))
        m->text = strdup(image);
    *out = m;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image) { return load(out, image); }
API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return load(out, image); }

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, int *options, void **values)
{
    (void)n, (void)options, (void)values;
    return load(out, image);
}

API CUresult cuModuleLoad(CUmodule *out, const char *path)
{
    FILE *f = path ? fopen(path, "re") : NULL;
    if (!f)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char *image = calloc(1, (1 << 20) + 8);
    size_t n = image ? fread(image, 1, 1 << 20, f) : 0;
    fclose(f);
    CUresult r = n ? load(out, image) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return r;
}

API CUresult cuModuleUnload(CUmodule m)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!m)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(sim_stream_wait(&ctx->null_stream));
    while (m->functions) {
        struct function *f = m->functions;
        m->functions = f->next;
        free(f);
    }
    free(m->text);
    free(m);
    return CUDA_SUCCESS;
}

static uint64_t duration(const struct module *m, const char *name)
{
    char key[160];
    const char *at;
    if (m->text) {
        snprintf(key, sizeof key, "sim_us %s=", name);
        if ((at = strstr(m->text, key)) || (snprintf(key, sizeof key, "sim_us="), at = strstr(m->text, key)))
            return strtoull(at + strlen(key), NULL, 10) * 1000;
    }
    size_t n = strlen(name), digits = n;
    if (n > 3 && !strcmp(name + n - 2, "us")) {
        for (digits = n - 2; digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9';)
            digits--;
        if (digits > 0 && digits < n - 2 && name[digits - 1] == '_')
            return strtoull(name + digits, NULL, 10) * 1000;
    }
    return 0;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name)
{
    TRY(sim_ready());
    if (!out || !m || !name || !*name || strlen(name) >= sizeof m->functions->name)
        return CUDA_ERROR_INVALID_VALUE;
    if (m->text && !strstr(m->text, name))
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&mutex);
    struct function *f = m->functions;
    while (f && strcmp(f->name, name))
        f = f->next;
    if (!f && (f = calloc(1, sizeof *f))) {
        strcpy(f->name, name);
        f->duration_ns = duration(m, name);
        f->by_parameter = m->text && strstr(m->text, "sim_param");
        f->module = m;
        f->next = m->functions;
        m->functions = f;
    }
    pthread_mutex_unlock(&mutex);
    *out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, CUmodule m, const char *name)
{
    (void)out, (void)bytes, (void)m, (void)name;
    TRY(sim_ready());
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetLoadingMode(int *mode)
{
    *mode = 2; /* CU_MODULE_LAZY_LOADING */
    return CUDA_SUCCESS;
}

/* A library is a module that needs no context, a kernel a function. */
API CUresult cuLibraryLoadData(CUmodule *out, const void *image, int *jit, void **jit_values, unsigned jit_n,
                               int *options, void **values, unsigned n)
{
    (void)jit, (void)jit_values, (void)jit_n, (void)options, (void)values, (void)n;
    return load(out, image);
}

API CUresult cuLibraryUnload(CUmodule library) { return cuModuleUnload(library); }

API CUresult cuLibraryGetKernel(CUfunction *out, CUmodule library, const char *name)
{
    return cuModuleGetFunction(out, library, name);
}

API CUresult cuLibraryGetModule(CUmodule *out, CUmodule library)
{
    *out = library;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel)
{
    *out = kernel;
    return kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
    if (!value || !f)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) { /* CU_FUNC_ATTRIBUTE_... */
    case 0: *value = 1024; break;        /* MAX_THREADS_PER_BLOCK */
    case 4: *value = 32; break;          /* NUM_REGS */
    case 5: case 6: *value = 90; break;  /* PTX_VERSION, BINARY_VERSION */
    case 8: *value = 49152; break;       /* MAX_DYNAMIC_SHARED_SIZE_BYTES */
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
    (void)attribute, (void)value;
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
    (void)config;
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuFuncGetModule(CUmodule *out, CUfunction f)
{
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = f->module;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetName(const char **out, CUfunction f)
{
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = f->name;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared)
{
    (void)shared;
    if (!blocks || !f || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = threads > 2048 ? 0 : 2048 / threads > 32 ? 32 : 2048 / threads;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int threads,
                                                                  size_t shared, unsigned flags)
{
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared);
}

/* --- streams --- */

struct live_stream {
    uint64_t magic;
    struct stream s;
};

/* Handles: NULL, CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD (2) are the context's default stream here: a
 * context's work runs in order of submission anyway. */
CUresult sim_stream(CUstream handle, struct stream **out)
{
    if ((uintptr_t)handle <= 2) {
        CUcontext ctx;
        TRY(sim_context(&ctx));
        *out = &ctx->null_stream;
        return CUDA_SUCCESS;
    }
    TRY(sim_ready());
    const struct live_stream *l = (const void *)((const char *)handle - offsetof(struct live_stream, s));
    if (l->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    return CUDA_SUCCESS;
}

/* The default stream waits for all of the context's work. */
static uint64_t last_work(struct stream *s)
{
    struct card *card = sim_card_of(s->ctx);
    return s == &s->ctx->null_stream ? atomic_load(&card->file->slot[card->slot].tail) : atomic_load(&s->last);
}

CUresult sim_stream_wait(struct stream *s)
{
    uint64_t last = last_work(s);
    if (last)
        card_wait(sim_card_of(s->ctx), last - 1);
    pool_release(s->ctx->device, false);
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct live_stream *l = calloc(1, sizeof *l);
    if (!l)
        return CUDA_ERROR_OUT_OF_MEMORY;
    l->magic = STREAM_MAGIC;
    l->s.ctx = ctx;
    l->s.flags = flags;
    l->s.priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *out = &l->s;
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

static CUresult stream_destroy(CUstream handle)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if ((uintptr_t)handle <= 2)
        return CUDA_ERROR_INVALID_HANDLE;
    struct live_stream *l = (void *)((char *)s - offsetof(struct live_stream, s));
    l->magic = 0;
    free(l);
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(CUstream handle) { return stream_destroy(handle); }
API CUresult cuStreamDestroy_v2(CUstream handle) { return stream_destroy(handle); }

static CUresult synchronise(CUstream handle)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    return capture_active(s) ? capture_unsupported(s) : sim_stream_wait(s);
}

static CUresult query(CUstream handle)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (capture_active(s))
        return capture_unsupported(s);
    uint64_t last = last_work(s);
    return !last || card_done(sim_card_of(s->ctx), last - 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult get_flags(CUstream handle, unsigned *flags)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    *flags = s->flags;
    return CUDA_SUCCESS;
}

static CUresult get_priority(CUstream handle, int *priority)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    *priority = s->priority;
    return CUDA_SUCCESS;
}

static CUresult get_context(CUstream handle, CUcontext *ctx)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    *ctx = s->ctx;
    return CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream s) { return synchronise(s); }
API CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronise(s); }
API CUresult cuStreamQuery(CUstream s) { return query(s); }
API CUresult cuStreamQuery_ptsz(CUstream s) { return query(s); }
API CUresult cuStreamGetFlags(CUstream s, unsigned *flags) { return get_flags(s, flags); }
API CUresult cuStreamGetFlags_ptsz(CUstream s, unsigned *flags) { return get_flags(s, flags); }
API CUresult cuStreamGetPriority(CUstream s, int *priority) { return get_priority(s, priority); }
API CUresult cuStreamGetPriority_ptsz(CUstream s, int *priority) { return get_priority(s, priority); }
API CUresult cuStreamGetCtx(CUstream s, CUcontext *ctx) { return get_context(s, ctx); }
API CUresult cuStreamGetCtx_ptsz(CUstream s, CUcontext *ctx) { return get_context(s, ctx); }

static CUresult get_contexts(CUstream s, CUcontext *ctx, void **green)
{
    if (green)
        *green = NULL;
    return get_context(s, ctx);
}

API CUresult cuStreamGetCtx_v2(CUstream s, CUcontext *ctx, void **green) { return get_contexts(s, ctx, green); }
API CUresult cuStreamGetCtx_v2_ptsz(CUstream s, CUcontext *ctx, void **green) { return get_contexts(s, ctx, green); }

API CUresult cuCtxSynchronize(void)
{
    CUcontext ctx;
    TRY(sim_context(&ctx));
    TRY(capture_forbids());
    return sim_stream_wait(&ctx->null_stream);
}

API CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    if (!ctx)
        return cuCtxSynchronize();
    TRY(sim_ready());
    return sim_context_valid(ctx) ? sim_stream_wait(&ctx->null_stream) : CUDA_ERROR_INVALID_CONTEXT;
}

/* --- events: a work of no duration; its time is kept here before the ring's cell is used again --- */

#define EVENT_MAGIC 0x6576656e74212121ull
static struct event *pending[CARD_MAX][CARD_RING]; /* written under the card's mutex */

static void retire(struct card *card, uint64_t seq, uint64_t done_ns)
{
    struct event **cell = &pending[card - sim_card][seq % CARD_RING];
    if (*cell && (*cell)->card == card && (*cell)->seq == seq) {
        (*cell)->done_ns = done_ns;
        (*cell)->retired = true;
    }
    *cell = NULL;
}

static CUresult event_valid(CUevent e)
{
    TRY(sim_ready());
    return e && e->magic == EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
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

static CUresult event_destroy(CUevent e)
{
    TRY(event_valid(e));
    if (e->card) {
        pthread_mutex_lock(&e->card->mutex);
        struct event **cell = &pending[e->card - sim_card][e->seq % CARD_RING];
        if (*cell == e)
            *cell = NULL;
        pthread_mutex_unlock(&e->card->mutex);
    }
    e->magic = 0;
    free(e);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent e) { return event_destroy(e); }
API CUresult cuEventDestroy_v2(CUevent e) { return event_destroy(e); }

static void note_event(struct card *card, uint64_t seq, void *argument)
{
    struct event *e = argument;
    if (e->card) {
        struct event **old = &pending[e->card - sim_card][e->seq % CARD_RING];
        if (*old == e)
            *old = NULL;
    }
    e->card = card;
    e->seq = seq;
    e->retired = false;
    pending[card - sim_card][seq % CARD_RING] = e;
}

CUresult event_record(CUevent e, CUstream handle)
{
    struct stream *s;
    TRY(event_valid(e));
    TRY(sim_stream(handle, &s));
    if (capture_active(s))
        return capture_record(s, e);
    e->captured = NULL;
    uint64_t seq = card_submit(sim_card_of(s->ctx), 0, retire, note_event, e);
    atomic_store(&s->last, seq + 1);
    return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent e, CUstream s) { return event_record(e, s); }
API CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return event_record(e, s); }

API CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags)
{
    return flags ? CUDA_ERROR_NOT_SUPPORTED : event_record(e, s);
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned flags)
{
    return flags ? CUDA_ERROR_NOT_SUPPORTED : event_record(e, s);
}

API CUresult cuEventQuery(CUevent e)
{
    TRY(event_valid(e));
    if (capture_holds(e->captured))
        return CUDA_ERROR_CAPTURED_EVENT;
    return !e->card || e->retired || card_done(e->card, e->seq) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent e)
{
    TRY(event_valid(e));
    if (capture_holds(e->captured))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (e->card && !e->retired)
        card_wait(e->card, e->seq);
    if (e->card)
        pool_release((int)(e->card - sim_card), false);
    return CUDA_SUCCESS;
}

static CUresult time_of(CUevent e, uint64_t *ns)
{
    TRY(event_valid(e));
    if (!e->card || e->flags & 2) /* never recorded, or CU_EVENT_DISABLE_TIMING */
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(cuEventQuery(e));
    pthread_mutex_lock(&e->card->mutex);
    *ns = e->retired ? e->done_ns : card_done_ns(e->card, e->seq);
    pthread_mutex_unlock(&e->card->mutex);
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
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

/* A context's work runs in order of submission, so what was recorded before is done before. */
CUresult event_wait(CUstream handle, CUevent e)
{
    struct stream *s;
    TRY(event_valid(e));
    TRY(sim_stream(handle, &s));
    if (capture_holds(e->captured))
        return capture_wait(s, e);
    if (capture_active(s))
        return capture_unsupported(s);
    if (e->card && e->card != sim_card_of(s->ctx))
        return cuEventSynchronize(e);
    return CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { return (void)flags, event_wait(s, e); }
API CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags) { return (void)flags, event_wait(s, e); }

/* --- launches --- */

uint64_t function_duration(CUfunction f, int device, void **params)
{
    if (f->by_parameter && params && params[0])
        return *(const uint64_t *)params[0];
    return f->duration_ns ? f->duration_ns : sim_card[device].file->head.kernel_ns;
}

CUresult stream_submit(struct stream *s, uint64_t duration_ns)
{
    uint64_t seq = card_submit(sim_card_of(s->ctx), duration_ns, retire, NULL, NULL);
    atomic_store_explicit(&s->last, seq + 1, memory_order_relaxed);
    return CUDA_SUCCESS;
}

static CUresult submit(CUfunction f, CUstream handle, unsigned grid, unsigned block, void **params)
{
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid || !block || block > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t ns = function_duration(f, s->ctx->device, params);
    return capture_active(s) ? capture_kernel(s, ns) : stream_submit(s, ns);
}

#define LAUNCH(name)                                                                                              \
    API CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                      unsigned shared, CUstream s, void **params, void **extra)                                   \
    {                                                                                                             \
        (void)shared, (void)extra;                                                                                \
        return submit(f, s, gx && gy ? gz : 0, bx * by * bz, params);                                             \
    }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

#define LAUNCH_COOPERATIVE(name)                                                                                  \
    API CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                      unsigned shared, CUstream s, void **params)                                                 \
    {                                                                                                             \
        (void)shared;                                                                                             \
        return submit(f, s, gx && gy ? gz : 0, bx * by * bz, params);                                             \
    }
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz)

struct launch_config { /* CUlaunchConfig */
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    void *attributes;
    unsigned n;
};

#define LAUNCH_EX(name)                                                                                           \
    API CUresult name(const struct launch_config *c, CUfunction f, void **params, void **extra) \
    {                                                                                                             \
        (void)extra;                                                                                              \
        return c ? submit(f, c->stream, c->gx && c->gy ? c->gz : 0, c->bx * c->by * c->bz, params) \
                 : CUDA_ERROR_INVALID_VALUE;                                                       \
    }
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

/* Host functions run at once, when what came before them is done: the caller waits, unlike with the real driver. */
static CUresult host_function(CUstream handle, void (*function)(void *), void *data)
{
    struct stream *s;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_stream(handle, &s));
    if (capture_active(s))
        return capture_host(s, function, data);
    TRY(sim_stream_wait(s));
    function(data);
    return CUDA_SUCCESS;
}

API CUresult cuLaunchHostFunc(CUstream s, void (*f)(void *), void *data) { return host_function(s, f, data); }
API CUresult cuLaunchHostFunc_ptsz(CUstream s, void (*f)(void *), void *data) { return host_function(s, f, data); }

static CUresult callback(CUstream s, void (*f)(CUstream, CUresult, void *), void *data)
{
    if (!f)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(synchronise(s));
    f(s, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}

API CUresult cuStreamAddCallback(CUstream s, void (*f)(CUstream, CUresult, void *), void *data, unsigned flags)
{
    return (void)flags, callback(s, f, data);
}

API CUresult cuStreamAddCallback_ptsz(CUstream s, void (*f)(CUstream, CUresult, void *), void *data, unsigned flags)
{
    return (void)flags, callback(s, f, data);
}
