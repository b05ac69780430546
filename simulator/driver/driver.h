/* Shared by the parts of the simulated libcuda. Names and numbers are those of the CUDA driver API. */
#ifndef GPU_HOOK_SIM_DRIVER_H
#define GPU_HOOK_SIM_DRIVER_H

#include "gpu.h"

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
typedef struct {
    unsigned char bytes[16];
} CUuuid;

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
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_UNKNOWN = 999,
};

struct capture;
struct channel;
struct stream {
    CUcontext ctx;
    struct capture *_Atomic capture; /* not NULL: submitted work becomes nodes of a graph. Written by capture.c */
    struct channel *channel;         /* NULL before the first work */
    uint64_t last;                   /* 1 + sequence number of its last work in the channel; 0: none yet */
    unsigned flags;
    int priority;
    struct attributes *attributes; /* NULL: none was set */
};

#define CHANNELS 16 /* of a context. The first is the legacy default stream's; the other streams share the rest. */
struct context {
    uint64_t magic;
    int device;
    unsigned flags;
    bool primary;
    unsigned attached;      /* by cuCtxAttach */
    struct context *memory; /* whose its allocations are: its own, or those of a green context's primary one */
    size_t limit[8];        /* CU_LIMIT_... */
    uint64_t bytes;         /* that it takes itself, with what its limits take */
    int group;              /* number of its gpu_group */
    _Atomic bool closed;    /* written under the mutex */
    pthread_mutex_t mutex;  /* for submission; locked before the GPU's mutex */
    struct channel *channel[CHANNELS];
    struct stream null_stream;
    struct context *next;
};

/* What a stream memory operation does when its turn in the channel comes. */
struct memop {
    uint64_t seq, address, value;
    uint32_t kind;    /* WORK_WAIT, WORK_WRITE or WORK_SPIN */
    uint32_t compare; /* CU_STREAM_WAIT_VALUE_GEQ, EQ, AND, NOR */
    bool wide;        /* 64 bits */
};

struct channel { /* this process's side of a queue */
    struct gpu *gpu;
    int queue;
    unsigned users;
    _Atomic bool watched;   /* by the front end */
    _Atomic bool closed;    /* its context was destroyed, and the queue may be another's */
    uint64_t tail, head;    /* numbers of works: submitted; known to be done */
    uint64_t blocking;      /* 1 + the last work of a blocking stream (or of the legacy default stream) here */
    uint64_t after_legacy;  /* it has been ordered after the legacy channel's work up to here */
    uint64_t before_legacy; /* the legacy channel has been ordered after its work up to here */
    struct event *_Atomic pending[GPU_RING]; /* the events whose last record each cell is */
    struct memop op[GPU_RING];
    _Atomic uint64_t ops_tail, ops_head; /* submitted, done */
};

extern struct gpu sim_gpu[GPU_MAX];
extern int sim_gpus;
extern _Atomic bool sim_shares; /* the program has descriptors of a GPU's file */

/* CUDA_SUCCESS when this process itself called cuInit; a call before the fork does not count. */
CUresult sim_ready(void);
/* The calling thread's current context. */
CUresult sim_context(CUcontext *ctx);
void sim_run_host_function(void (*function)(void *), void *data); /* in which most calls are not permitted */
bool sim_context_valid(CUcontext ctx);
CUresult sim_device(CUdevice dev);
CUresult sim_uuid(CUuuid *uuid, CUdevice dev, bool instance); /* instance: a MIG device's own, else its GPU's */
/* device.c: a context that shares the device's primary one, which it retains. */
CUresult context_green(CUcontext *out, CUdevice dev);
void context_green_destroy(CUcontext ctx);
CUresult cuCtxDestroy_v2(CUcontext ctx);
static inline struct gpu *sim_gpu_of(CUcontext ctx) { return &sim_gpu[ctx->device]; }

/* capture.c. An error when a capture of this thread (or a global one) forbids calls that cannot be captured. */
CUresult capture_forbids(void);
/* False: the stream is not captured, and the caller does the work itself. True: the call became a node of the captured
 * graph, or was refused; its result is in *r. */
struct copy3d;
struct fill;
struct kernel;
struct kernel_params;
bool capture_kernel(struct stream *s, const struct kernel *kernel, const struct kernel_params *said, CUresult *r);
bool capture_memops(struct stream *s, const struct memop *ops, unsigned n, CUresult *r);
bool capture_copy(struct stream *s, uint64_t to, uint64_t from, size_t bytes, CUresult *r);
bool capture_box(struct stream *s, const struct copy3d *copy, CUresult *r);
bool capture_fill(struct stream *s, const struct fill *fill, CUresult *r);
bool capture_host(struct stream *s, void (*function)(void *), void *data, CUresult *r);
bool capture_alloc(struct stream *s, CUdeviceptr *out, size_t bytes, int device, CUresult *r);
bool capture_free(struct stream *s, CUdeviceptr address, CUresult *r);
bool capture_record(struct stream *s, CUevent event, CUresult *r);
bool capture_wait(struct stream *s, CUevent event, CUresult *r);
/* Refuses a call that no capture allows, and invalidates the capture. */
bool capture_refuses(struct stream *s, CUresult *r);
/* True if the capture still goes on. */
bool capture_holds(const struct capture *capture);
/* The stream is destroyed. */
void capture_leave(struct stream *s);

/* channel.c: submission. event, op: may be NULL. */
CUresult channel_submit(struct stream *stream, struct gpu_work work, struct event *event, const struct memop *op);
struct channel *channel_now(struct stream *stream); /* NULL before the first work */
bool channel_done(struct channel *channel, uint64_t last);
void channel_wait(struct channel *channel, uint64_t last);
void channel_leave(struct stream *stream); /* the stream is destroyed */
void channel_close(CUcontext ctx);

/* event.c */
struct mark {                /* where an event was recorded last */
    struct channel *channel; /* NULL: never recorded */
    CUcontext ctx;
    uint64_t seq, done_ns;
    bool retired; /* its cell is used again; its time is in done_ns */
};
struct event {
    uint64_t magic;
    unsigned flags;
    int device;
    CUcontext ctx;
    struct shared_event *shared;              /* event_ipc.c; NULL: only this process has it. Once set, it stays */
    struct mark mark;                         /* under event.c's mutex, as the channels' cells of events are */
    struct capture *_Atomic captured;         /* not NULL: its last record was captured, by this capture */
    uint64_t captured_works, captured_misses; /* as they were then: capture.c */
};
CUresult event_record(CUevent event, struct stream *stream);
/* Context's mutex held. The event's last record is this work now. */
void event_marked(CUevent event, struct mark mark);
/* Context's mutex held. The work's cell is used again: keeps the time of the event that was recorded with it. */
void event_retire(struct channel *channel, uint64_t seq);
CUresult event_wait(struct stream *stream, CUevent event);
CUresult event_valid(CUevent event);
void event_publish(CUevent event); /* shared_event_marked under the mutex */
CUresult event_new(CUevent *out, CUcontext ctx, unsigned flags);
/* event_ipc.c: of an event with `shared` */
void shared_event_marked(CUevent event); /* without `shared`, too: does nothing then */
void shared_event_gone(CUevent event);
bool shared_event_done(CUevent event);
void shared_event_wait(CUevent event);
CUresult shared_event_order(CUevent event, struct stream *stream); /* the stream goes on after it */

struct kernel_params { /* CUDA_KERNEL_NODE_PARAMS; version 1 ends before `kernel` */
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    CUfunction kernel;
    CUcontext ctx;
};

/* module.c: what the simulation needs to know of a launch */
struct kernel {
    uint64_t duration_ns; /* the mean, if `spread` is set */
    const double *spread; /* quantiles to multiply the duration by; NULL: constant */
    uint64_t seed;
    uint64_t spin;  /* address of a word: the kernel runs until it is not 0. 0: an ordinary kernel */
    uint32_t width; /* SMs */
};
unsigned function_shared(const struct function *f);     /* bytes of dynamic shared memory that a launch may have */
bool function_fits(CUfunction function, CUcontext ctx); /* it is of that context, or of none, as those of libraries */
CUresult kernel_of(CUfunction function, int device, uint64_t blocks, void **params, struct kernel *out);
uint64_t kernel_ns(const struct kernel *kernel); /* duration of its next run */
unsigned function_threads(CUfunction function);
/* attribute.c. out, value: 64 bytes. */
struct attributes;
CUresult attribute_get(const struct attributes *a, int id, void *out);
CUresult attribute_set(struct attributes **a, int id, const void *value);
struct attributes *attributes_copy(const struct attributes *a);
void attributes_free(struct attributes *a);
/* launch.c */
CUresult kernel_submit(struct stream *stream, const struct kernel *kernel);

/* stream.c */
#define PER_THREAD(handle) \
    ((handle) ? (handle) : (CUstream)2) /* NULL is the per-thread stream in _ptsz and _ptds functions */
CUresult sim_stream(CUstream handle, struct stream **stream);
CUresult stream_new(CUstream *out, CUcontext ctx, unsigned flags, int priority);
CUresult sim_stream_wait(struct stream *stream);
CUresult sim_context_wait(CUcontext ctx);
/* memop.c */
CUresult memops_of(const void *list, unsigned n, struct memop *out); /* CUstreamBatchMemOpParams */
CUresult memops_submit(struct stream *stream, const struct memop *ops, unsigned n);
void memops_run(struct channel *channel); /* does the operations whose turn has come, if no other thread is doing so */
void memops_start(struct channel *channel);
/* copy.c: submits the GPU time of a copy or fill of so many bytes */
CUresult copy_time(struct stream *stream, uint64_t to, uint64_t from, uint64_t bytes);
CUresult fill_time(struct stream *stream, uint64_t bytes);
/* host.c: pinned host memory. */
bool host_holding(uint64_t address, uint64_t bytes, bool write);
struct host_range {
    uint64_t address, bytes;
    CUcontext ctx; /* in which it was allocated or registered; NULL: none was current */
};
bool host_range(uint64_t address, struct host_range *out); /* the one that holds the address */
/* fault.c */
CUresult fault(void);

#define TRY(expression)                     \
    do {                                    \
        CUresult try_result = (expression); \
        if (try_result != CUDA_SUCCESS)     \
            return try_result;              \
    } while (0)

#endif
