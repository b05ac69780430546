/* Simulated libcuda: capturing a stream. Submitted work becomes nodes of a graph. A call that cannot be captured
 * is refused and invalidates the capture, as in the real driver. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 }; /* CU_STREAM_CAPTURE_MODE_... */
enum { NONE = 0, ACTIVE = 1, INVALIDATED = 2 };     /* CU_STREAM_CAPTURE_STATUS_... */
#define MAX_STREAMS 64

struct capture {
    struct graph *graph;
    struct node *last; /* each node depends on the one captured before it: a context's work runs in order anyway */
    struct stream *stream[MAX_STREAMS]; /* the first is the origin */
    int streams, mode, status;
    pthread_t thread;
    uint64_t id;
    struct capture *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic int active;
static __thread int thread_mode = GLOBAL;

CUresult capture_forbids(void) {
    CUresult r = CUDA_SUCCESS;
    if (!atomic_load_explicit(&active, memory_order_relaxed) || thread_mode == RELAXED)
        return r;
    pthread_mutex_lock(&mutex);
    for (struct capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if ((mine && c->mode != RELAXED) || (!mine && c->mode == GLOBAL && thread_mode == GLOBAL)) {
            c->status = INVALIDATED;
            r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

CUresult capture_unsupported(struct stream *s) {
    s->capture->status = INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    TRY(sim_ready());
    if (!mode || *mode < GLOBAL || *mode > RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static CUresult add(struct stream *s, const struct op *op) {
    struct capture *c = s->capture;
    if (c->status == INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    pthread_mutex_lock(&mutex);
    CUresult r = graph_add(c->graph, &c->last, c->last != NULL, op, &c->last);
    pthread_mutex_unlock(&mutex);
    return r;
}

CUresult capture_kernel(struct stream *s, const struct kernel *kernel) {
    return add(s, &(struct op){.type = NODE_KERNEL, .kernel = *kernel});
}

CUresult capture_memops(struct stream *s, const struct memop *ops, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        TRY(add(s, &(struct op){.type = NODE_MEMOP, .memop = {.one = ops[i]}}));
    return CUDA_SUCCESS;
}

CUresult capture_copy(struct stream *s, uint64_t to, uint64_t from, size_t bytes) {
    return add(s, &(struct op){.type = NODE_COPY, .flat = true, .copy = {to, from, bytes}});
}

CUresult capture_box(struct stream *s, const struct copy3d *copy) {
    return add(s, &(struct op){.type = NODE_COPY, .box = *copy});
}

CUresult capture_fill(struct stream *s, uint64_t to, size_t pitch, uint32_t value, size_t width, size_t n,
                      size_t rows) {
    return add(s, &(struct op){.type = NODE_FILL, .fill = {to, pitch, width, n, rows, value}});
}

CUresult capture_host(struct stream *s, void (*function)(void *), void *data) {
    return add(s, &(struct op){.type = NODE_HOST, .host = {function, data}});
}

CUresult capture_alloc(struct stream *s, CUdeviceptr *out, size_t bytes, int device) {
    struct op op;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(graph_address(&op, bytes, device));
    TRY(add(s, &op));
    *out = op.memory.address;
    return CUDA_SUCCESS;
}

CUresult capture_free(struct stream *s, CUdeviceptr address) {
    return add(s, &(struct op){.type = NODE_FREE, .memory = {address, 0, 0}});
}

CUresult capture_record(struct stream *s, CUevent event) {
    event->captured = s->capture;
    return CUDA_SUCCESS;
}

/* A stream that waits for a captured event joins the capture. Waiting for an event from outside is an error. */
CUresult capture_wait(struct stream *s, CUevent event) {
    struct capture *c = event->captured;
    CUresult r = CUDA_SUCCESS;
    if (s->capture)
        return s->capture == c ? CUDA_SUCCESS : capture_unsupported(s);
    pthread_mutex_lock(&mutex);
    if (c->streams < MAX_STREAMS) {
        c->stream[c->streams++] = s;
        s->capture = c;
    } else
        r = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&mutex);
    return r;
}

static CUresult begin(CUstream handle, int mode) {
    static _Atomic uint64_t ids;
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (mode < GLOBAL || mode > RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s == &s->ctx->null_stream) /* the legacy stream cannot be captured */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *c = calloc(1, sizeof *c);
    CUresult r = c ? graph_new(&c->graph) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
        free(c);
        return r;
    }
    c->stream[c->streams++] = s;
    c->mode = mode;
    c->status = ACTIVE;
    c->thread = pthread_self();
    c->id = ++ids;
    pthread_mutex_lock(&mutex);
    c->next = captures;
    captures = c;
    s->capture = c;
    atomic_fetch_add(&active, 1);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult end(CUstream handle, struct graph **out) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    struct capture *c = s->capture;
    if (!c)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (c->stream[0] != s)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    pthread_mutex_lock(&mutex);
    for (struct capture **p = &captures; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    for (int i = 0; i < c->streams; i++)
        c->stream[i]->capture = NULL;
    atomic_fetch_sub(&active, 1);
    pthread_mutex_unlock(&mutex);
    bool good = c->status == ACTIVE;
    if (out)
        *out = good ? c->graph : NULL;
    if (!good || !out)
        graph_destroy(c->graph);
    /* An event may still point to the capture, so its object is kept and marked as ended. */
    c->status = NONE;
    return good ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

bool capture_holds(const struct capture *c) { return c && c->status != NONE; }

static CUresult info(CUstream handle, int *status, uint64_t *id, struct graph **graph, struct node ***last, size_t *n) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    struct capture *c = s->capture;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = c ? c->status : NONE;
    if (!c)
        return CUDA_SUCCESS;
    if (id)
        *id = c->id;
    if (graph)
        *graph = c->graph;
    if (last)
        *last = &c->last;
    if (n)
        *n = c->last != NULL;
    return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture(CUstream s) { return begin(s, GLOBAL); }
API CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin(PER_THREAD(s), GLOBAL); }
API CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return begin(PER_THREAD(s), mode); }
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return begin(PER_THREAD(s), mode); }
API CUresult cuStreamEndCapture(CUstream s, struct graph **out) { return end(PER_THREAD(s), out); }
API CUresult cuStreamEndCapture_ptsz(CUstream s, struct graph **out) { return end(PER_THREAD(s), out); }
API CUresult cuStreamIsCapturing(CUstream s, int *status) {
    return info(PER_THREAD(s), status, NULL, NULL, NULL, NULL);
}
API CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) {
    return info(PER_THREAD(s), status, NULL, NULL, NULL, NULL);
}
API CUresult cuStreamGetCaptureInfo(CUstream s, int *status, uint64_t *id) {
    return info(PER_THREAD(s), status, id, NULL, NULL, NULL);
}
API CUresult cuStreamGetCaptureInfo_ptsz(CUstream s, int *status, uint64_t *id) {
    return info(PER_THREAD(s), status, id, NULL, NULL, NULL);
}
API CUresult cuStreamGetCaptureInfo_v2(CUstream s, int *st, uint64_t *id, struct graph **g, struct node ***l,
                                       size_t *n) {
    return info(s, st, id, g, l, n);
}
API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream s, int *st, uint64_t *id, struct graph **g, struct node ***l,
                                            size_t *n) {
    return info(PER_THREAD(s), st, id, g, l, n);
}

static CUresult info3(CUstream s, int *st, uint64_t *id, struct graph **g, struct node ***l, const void **edges,
                      size_t *n) {
    static const uint8_t plain[8]; /* CUgraphEdgeData of an ordinary dependency */
    if (edges)
        *edges = plain;
    return info(s, st, id, g, l, n);
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream s, int *st, uint64_t *id, struct graph **g, struct node ***l,
                                       const void **edges, size_t *n) {
    return info3(s, st, id, g, l, edges, n);
}
API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, int *st, uint64_t *id, struct graph **g, struct node ***l,
                                            const void **edges, size_t *n) {
    return info3(PER_THREAD(s), st, id, g, l, edges, n);
}
