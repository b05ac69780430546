/* What the parts of the simulated libcuda share. Names and numbers are those of the CUDA driver API. */
#ifndef GPU_HOOK_SIM_DRIVER_H
#define GPU_HOOK_SIM_DRIVER_H

#include "card.h"

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct pool *CUmemoryPool;
typedef struct { unsigned char bytes[16]; } CUuuid;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_ALREADY_MAPPED = 208,
    CUDA_ERROR_NOT_MAPPED = 211,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_UNKNOWN = 999,
};

struct capture;
struct stream {
    CUcontext ctx;
    struct capture *capture; /* not NULL: what is submitted becomes nodes of a graph */
    _Atomic uint64_t last; /* 1 + sequence number of the last work, 0 none yet */
    unsigned flags;
    int priority;
};

struct context {
    uint64_t magic;
    int device;
    unsigned flags;
    bool primary;
    struct stream null_stream;
    struct context *next;
};

extern struct card sim_card[CARD_MAX];
extern int sim_cards;

/* CUDA_SUCCESS when cuInit was called in this very process (not before a fork). */
CUresult sim_ready(void);
/* The calling thread's current context. */
CUresult sim_context(CUcontext *ctx);
bool sim_context_valid(CUcontext ctx);
CUresult sim_device(CUdevice dev);
static inline struct card *sim_card_of(CUcontext ctx) { return &sim_card[ctx->device]; }

/* graph.c: what a stream that is being captured does instead; capture_forbids: CUDA_SUCCESS unless this thread must
 * not do what cannot be captured. */
static inline bool capture_active(const struct stream *s) { return s->capture != NULL; }
struct copy3d;
CUresult capture_forbids(void);
CUresult capture_unsupported(struct stream *s);
CUresult capture_kernel(struct stream *s, uint64_t duration_ns);
CUresult capture_copy(struct stream *s, uint64_t to, uint64_t from, size_t bytes);
CUresult capture_box(struct stream *s, const struct copy3d *copy);
CUresult capture_fill(struct stream *s, uint64_t to, size_t pitch, uint32_t value, size_t width, size_t n, size_t rows);
CUresult capture_host(struct stream *s, void (*function)(void *), void *data);
CUresult capture_alloc(struct stream *s, CUdeviceptr *out, size_t bytes, int device);
CUresult capture_free(struct stream *s, CUdeviceptr address);
CUresult capture_record(struct stream *s, CUevent event);
CUresult capture_wait(struct stream *s, CUevent event);
bool capture_holds(const struct capture *capture);

/* launch.c */
struct event {
    uint64_t magic;
    unsigned flags;
    struct card *card; /* NULL: never recorded */
    uint64_t seq, done_ns;
    bool retired;
    struct capture *captured; /* recorded last in a stream that was being captured */
};
CUresult event_record(CUevent event, CUstream stream);
CUresult event_wait(CUstream stream, CUevent event);
CUresult stream_submit(struct stream *stream, uint64_t duration_ns);
uint64_t function_duration(CUfunction function, int device, void **params);
CUresult sim_stream(CUstream handle, struct stream **stream);
CUresult sim_stream_wait(struct stream *stream);

#define TRY(expression)                      \
    do {                                     \
        CUresult try_result = (expression);  \
        if (try_result != CUDA_SUCCESS)      \
            return try_result;               \
    } while (0)

#endif
