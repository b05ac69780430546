/* Simulated libcuda: capturing a stream. Submitted work becomes nodes of a graph. A call that cannot be captured
 * is refused and invalidates the capture, as in the real driver.
 *
 * Another thread may begin or end a capture at any time. So each call decides once, under the mutex, whether its stream
 * is captured, and becomes a node before the mutex is released. A call that finds no capture runs as if it had come
 * before the capture began, or after it ended. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 }; /* CU_STREAM_CAPTURE_MODE_... */
enum { NONE = 0, ACTIVE = 1, INVALIDATED = 2 };     /* CU_STREAM_CAPTURE_STATUS_... */
#define MAX_STREAMS 64

struct capture { /* never freed: an event may point to it when it has ended */
    struct graph *graph;
    bool borrowed;     /* the graph is the program's: cuStreamBeginCaptureToGraph */
    struct node *last; /* each node depends on the one captured before it: a context's work runs in order anyway */
    struct stream *stream[MAX_STREAMS]; /* the first is the origin */
    /* Whose newest work each stream does not come after, by bits of `stream`; and the number of its newest work. */
    uint64_t misses[MAX_STREAMS], newest[MAX_STREAMS], works;
    int streams, mode;
    _Atomic int status;
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

/* The capture of this stream, with the mutex held. NULL: it is not captured, and the mutex is not held. */
static struct capture *enter(struct stream *s) {
    if (!atomic_load_explicit(&s->capture, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&mutex);
    struct capture *c = s->capture;
    if (!c)
        pthread_mutex_unlock(&mutex);
    return c;
}

/* Mutex held. */
static CUresult invalidate(struct capture *c) {
    c->status = INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* A use of the legacy stream would have to come after what the context's blocking streams capture. */
static bool implicit(const struct stream *s, bool used) {
    bool found = false;
    if (s != &s->ctx->null_stream || !atomic_load_explicit(&active, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&mutex);
    for (struct capture *c = captures; c; c = c->next)
        for (int i = 0; i < c->streams; i++)
            if (c->stream[i]->ctx == s->ctx && !(c->stream[i]->flags & 1)) {
                found = true;
                c->status = used ? INVALIDATED : c->status;
            }
    pthread_mutex_unlock(&mutex);
    return found;
}

/* `enter`, and true if the call is over: *r says how. */
static bool enter_or_refuse(struct stream *s, struct capture **c, CUresult *r) {
    *c = enter(s);
    *r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return !*c && implicit(s, true);
}

bool capture_refuses(struct stream *s, CUresult *r) {
    struct capture *c;
    if (enter_or_refuse(s, &c, r))
        return true;
    if (!c)
        return false;
    *r = invalidate(c);
    pthread_mutex_unlock(&mutex);
    return true;
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

static int place_of(const struct capture *c, const struct stream *s) {
    int i = 0;
    while (i < c->streams - 1 && c->stream[i] != s)
        i++;
    return i;
}

/* Mutex held. */
static CUresult append(struct capture *c, const struct stream *s, const struct op *op) {
    int by = place_of(c, s);
    if (c->status == INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    c->newest[by] = ++c->works;
    for (int i = 0; i < MAX_STREAMS; i++)
        c->misses[i] |= (uint64_t)(i != by) << by;
    return graph_add(c->graph, &c->last, c->last != NULL, op, &c->last);
}

static bool add(struct stream *s, const struct op *op, CUresult *r) {
    struct capture *c;
    if (enter_or_refuse(s, &c, r))
        return true;
    if (!c)
        return false;
    *r = append(c, s, op);
    pthread_mutex_unlock(&mutex);
    return true;
}

bool capture_kernel(struct stream *s, const struct kernel *kernel, const struct kernel_params *said, CUresult *r) {
    return add(s, &(struct op){.type = NODE_KERNEL, .said = *said, .kernel = *kernel}, r);
}

bool capture_memops(struct stream *s, const struct memop *ops, unsigned n, CUresult *r) {
    struct capture *c;
    if (enter_or_refuse(s, &c, r))
        return true;
    if (!c)
        return false;
    *r = CUDA_SUCCESS;
    for (unsigned i = 0; i < n && !*r; i++)
        *r = append(c, s, &(struct op){.type = NODE_MEMOP, .memop = {.one = ops[i]}});
    pthread_mutex_unlock(&mutex);
    return true;
}

bool capture_copy(struct stream *s, uint64_t to, uint64_t from, size_t bytes, CUresult *r) {
    return add(s, &(struct op){.type = NODE_COPY, .flat = true, .copy = {to, from, bytes}}, r);
}

bool capture_box(struct stream *s, const struct copy3d *copy, CUresult *r) {
    return add(s, &(struct op){.type = NODE_COPY, .box = *copy}, r);
}

bool capture_fill(struct stream *s, const struct fill *fill, CUresult *r) {
    return add(s, &(struct op){.type = NODE_FILL, .fill = *fill}, r);
}

bool capture_host(struct stream *s, void (*function)(void *), void *data, CUresult *r) {
    return add(s, &(struct op){.type = NODE_HOST, .host = {function, data}}, r);
}

bool capture_alloc(struct stream *s, CUdeviceptr *out, size_t bytes, int device, CUresult *r) {
    struct op op;
    *r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!atomic_load_explicit(&s->capture, memory_order_relaxed))
        return implicit(s, true);
    *r = out ? graph_address(&op, bytes, device) : CUDA_ERROR_INVALID_VALUE;
    if (*r)
        return true;
    bool captured = add(s, &op, r);
    if (captured && !*r)
        *out = op.memory.address;
    else
        munmap((void *)(uintptr_t)op.memory.address, round_up(op.memory.size, 4096));
    return captured;
}

bool capture_free(struct stream *s, CUdeviceptr address, CUresult *r) {
    return add(s, &(struct op){.type = NODE_FREE, .memory = {address, 0, 0}}, r);
}

bool capture_record(struct stream *s, CUevent event, CUresult *r) {
    struct capture *c;
    if (enter_or_refuse(s, &c, r))
        return true;
    if (!c)
        return false;
    event->captured = c;
    event->captured_works = c->works;
    event->captured_misses = c->misses[place_of(c, s)];
    *r = CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return true;
}

/* Mutex held. A stream that waits for a captured event joins the capture; the legacy stream cannot be captured. */
static CUresult join(struct stream *s, struct capture *c) {
    if (s == &s->ctx->null_stream)
        return invalidate(c);
    if (c->streams == MAX_STREAMS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->stream[c->streams++] = s;
    s->capture = c;
    return CUDA_SUCCESS;
}

/* Mutex held. The stream comes after what the event came after, as far as that is still a stream's newest work. */
static CUresult depend(struct capture *c, const struct stream *s, CUevent event) {
    uint64_t *misses = &c->misses[place_of(c, s)];
    for (int i = 0; i < MAX_STREAMS; i++)
        if (c->newest[i] <= event->captured_works)
            *misses &= event->captured_misses | ~(1ull << i);
    return CUDA_SUCCESS;
}

/* Mutex held. Waiting in a captured stream for an event from outside is an error, which ends all captures concerned. */
static CUresult wait_for_outside(struct capture *mine, struct capture *other) {
    invalidate(mine);
    if (!other)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    invalidate(other);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
}

bool capture_wait(struct stream *s, CUevent event, CUresult *r) {
    *r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!atomic_load_explicit(&s->capture, memory_order_relaxed) && !capture_holds(event->captured))
        return implicit(s, true);
    pthread_mutex_lock(&mutex);
    struct capture *mine = s->capture, *c = capture_holds(event->captured) ? event->captured : NULL;
    if (mine || c)
        *r = mine && mine != c ? wait_for_outside(mine, c) : mine ? CUDA_SUCCESS : join(s, c);
    if ((mine || c) && *r == CUDA_SUCCESS)
        *r = depend(c, s, event);
    pthread_mutex_unlock(&mutex);
    return mine || c;
}

bool capture_holds(const struct capture *c) { return c && c->status != NONE; }

static void drop_graph(struct graph *graph, bool borrowed) {
    if (graph && !borrowed)
        graph_destroy(graph);
}

/* into: the program's graph, to which nodes are added after `last` (NULL: none); NULL: a new one. */
static CUresult begin(CUstream handle, int mode, struct graph *into, struct node *last) {
    static _Atomic uint64_t ids;
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (mode < GLOBAL || mode > RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (s == &s->ctx->null_stream) /* the legacy stream cannot be captured */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct capture *c = calloc(1, sizeof *c);
    CUresult r = !c ? CUDA_ERROR_OUT_OF_MEMORY : into ? CUDA_SUCCESS : graph_new(&c->graph);
    if (r) {
        free(c);
        return r;
    }
    if (into)
        c->graph = into;
    c->borrowed = into;
    c->last = last;
    c->stream[c->streams++] = s;
    c->mode = mode;
    c->status = ACTIVE;
    c->thread = pthread_self();
    c->id = ++ids;
    pthread_mutex_lock(&mutex);
    bool free_stream = !s->capture;
    if (free_stream) {
        c->next = captures;
        captures = c;
        s->capture = c;
        atomic_fetch_add(&active, 1);
    }
    pthread_mutex_unlock(&mutex);
    if (free_stream)
        return CUDA_SUCCESS;
    drop_graph(c->graph, c->borrowed);
    free(c);
    return CUDA_ERROR_ILLEGAL_STATE;
}

/* A node that depends on several: a context's work runs in order anyway, so the last of them stands for all. */
static CUresult last_of(struct graph *g, nodes list, size_t n, struct node **out) {
    if (n && !list)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (!list[i] || list[i]->graph != g)
            return CUDA_ERROR_INVALID_VALUE;
    *out = n > 1 ? NULL : n ? list[0] : NULL;
    return n > 1 ? graph_add(g, list, n, &(struct op){.type = NODE_EMPTY}, out) : CUDA_SUCCESS;
}

static CUresult begin_in(CUstream s, struct graph *g, nodes list, size_t n, int mode) {
    struct node *last;
    TRY(graph_valid(g));
    TRY(last_of(g, list, n, &last));
    return begin(s, mode, g, last);
}

static CUresult set_dependencies(CUstream handle, nodes list, size_t n, unsigned flags) {
    enum { ADD = 0, SET = 1 }; /* CU_STREAM_..._CAPTURE_DEPENDENCIES */
    struct stream *s;
    struct node *last = NULL;
    TRY(sim_stream(handle, &s));
    if (flags > SET)
        return CUDA_ERROR_INVALID_VALUE;
    struct capture *c = enter(s);
    if (!c)
        return CUDA_ERROR_ILLEGAL_STATE;
    CUresult r = c->status == INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : last_of(c->graph, list, n, &last);
    if (!r && flags == ADD && last && c->last) {
        struct node *both[] = {c->last, last};
        r = c->last == last ? CUDA_SUCCESS : last_of(c->graph, both, 2, &last);
    }
    if (!r && (flags == SET || last))
        c->last = last;
    if (!r) /* it may depend on any node now */
        c->misses[place_of(c, s)] = 0;
    pthread_mutex_unlock(&mutex);
    return r;
}

/* Mutex held. No stream is captured by it any more; returns its graph, which is the caller's now. */
static struct graph *finish(struct capture *c) {
    for (struct capture **p = &captures; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    for (int i = 0; i < c->streams; i++)
        c->stream[i]->capture = NULL;
    c->streams = 0;
    c->status = NONE;
    atomic_fetch_sub(&active, 1);
    return c->graph;
}

static CUresult end(CUstream handle, struct graph **out) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    struct capture *c = enter(s);
    if (!c)
        return CUDA_ERROR_ILLEGAL_STATE;
    CUresult r = c->stream[0] != s ? CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
                 : c->mode != RELAXED && !pthread_equal(c->thread, pthread_self())
                     ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
                 : c->status == INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                 : c->misses[0]             ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                            : CUDA_SUCCESS;
    bool ends =
        r == CUDA_SUCCESS || r == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || r == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    struct graph *graph = ends ? finish(c) : NULL;
    bool borrowed = c->borrowed;
    pthread_mutex_unlock(&mutex);
    if (!ends)
        return r;
    if (out)
        *out = r ? NULL : graph;
    if (r || !out)
        drop_graph(graph, borrowed);
    return r;
}

void capture_leave(struct stream *s) {
    struct capture *c = enter(s);
    struct graph *graph = NULL;
    if (!c)
        return;
    if (c->stream[0] == s)
        graph = finish(c); /* nobody can end it */
    else {
        c->status = INVALIDATED;
        for (int i = 1; i < c->streams; i++)
            if (c->stream[i] == s)
                c->stream[i--] = c->stream[--c->streams];
        s->capture = NULL;
    }
    bool borrowed = c->borrowed;
    pthread_mutex_unlock(&mutex);
    drop_graph(graph, borrowed);
}

static CUresult info(CUstream handle, int *status, uint64_t *id, struct graph **graph, struct node ***last, size_t *n) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    struct capture *c = enter(s);
    *status = c ? c->status : NONE;
    if (!c)
        return implicit(s, false) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
    if (id)
        *id = c->id;
    if (graph)
        *graph = c->graph;
    if (last)
        *last = &c->last;
    if (n)
        *n = c->last != NULL;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture(CUstream s) { return begin(s, GLOBAL, NULL, NULL); }
API CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin(PER_THREAD(s), GLOBAL, NULL, NULL); }
API CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return begin(s, mode, NULL, NULL); }
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return begin(PER_THREAD(s), mode, NULL, NULL); }
API CUresult cuStreamBeginCaptureToGraph(CUstream s, struct graph *g, nodes list, const void *edges, size_t n,
                                         int mode) {
    return (void)edges, begin_in(s, g, list, n, mode);
}
API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, struct graph *g, nodes list, const void *edges, size_t n,
                                              int mode) {
    return (void)edges, begin_in(PER_THREAD(s), g, list, n, mode);
}
API CUresult cuStreamEndCapture(CUstream s, struct graph **out) { return end(s, out); }
API CUresult cuStreamEndCapture_ptsz(CUstream s, struct graph **out) { return end(PER_THREAD(s), out); }
API CUresult cuStreamUpdateCaptureDependencies(CUstream s, nodes list, size_t n, unsigned flags) {
    return set_dependencies(s, list, n, flags);
}
API CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream s, nodes list, size_t n, unsigned flags) {
    return set_dependencies(PER_THREAD(s), list, n, flags);
}
API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream s, nodes list, const void *edges, size_t n, unsigned flags) {
    return (void)edges, set_dependencies(s, list, n, flags);
}
API CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream s, nodes list, const void *edges, size_t n,
                                                       unsigned flags) {
    return (void)edges, set_dependencies(PER_THREAD(s), list, n, flags);
}
API CUresult cuStreamIsCapturing(CUstream s, int *status) { return info(s, status, NULL, NULL, NULL, NULL); }
API CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) {
    return info(PER_THREAD(s), status, NULL, NULL, NULL, NULL);
}
API CUresult cuStreamGetCaptureInfo(CUstream s, int *status, uint64_t *id) {
    return info(s, status, id, NULL, NULL, NULL);
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
