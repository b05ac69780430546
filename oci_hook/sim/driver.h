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
    CUDA_ERROR_UNKNOWN = 999,
};

struct stream {
    CUcontext ctx;
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

/* memory.c: free everything a context allocated */
void sim_free_all(CUcontext ctx);
/* launch.c */
CUresult sim_stream(CUstream handle, struct stream **stream);
CUresult sim_stream_wait(struct stream *stream);

#define TRY(expression)                      \
    do {                                     \
        CUresult try_result = (expression);  \
        if (try_result != CUDA_SUCCESS)      \
            return try_result;               \
    } while (0)

#endif
