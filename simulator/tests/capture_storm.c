/* Threads that make every kind of call on streams while other threads begin and end captures of the same streams.
 * capture_storm MODE ROUNDS [MIB]: MODE as of cuStreamBeginCapture; MIB of each allocation. Prints how many calls
 * succeeded, how many saw a capture, how many were refused, and how many had another result. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long address;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuCtxSynchronize(void);
extern int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle);
extern int cuStreamQuery(handle), cuStreamIsCapturing(handle, int *), cuStreamBeginCapture_v2(handle, int);
extern int cuStreamEndCapture(handle, handle *), cuStreamWaitEvent(handle, handle, unsigned);
extern int cuStreamUpdateCaptureDependencies(handle, handle *, size_t, unsigned);
extern int cuStreamGetCaptureInfo_v2(handle, int *, uint64_t *, handle *, handle **, size_t *);
extern int cuMemAllocAsync(address *, size_t, handle), cuMemFreeAsync(address, handle),
    cuMemAlloc_v2(address *, size_t);
extern int cuMemFree_v2(address), cuMemPoolTrimTo(handle, size_t), cuDeviceGetDefaultMemPool(handle *, int);
extern int cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle), cuEventQuery(handle);
extern int cuEventSynchronize(handle), cuEventDestroy_v2(handle), cuEventElapsedTime(float *, handle, handle);
extern int cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
extern int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                          void **);
extern int cuMemsetD8Async(address, unsigned char, size_t, handle),
    cuMemcpyDtoDAsync_v2(address, address, size_t, handle);
extern int cuLaunchHostFunc(handle, void (*)(void *), void *),
    cuStreamWriteValue32_v2(handle, address, uint32_t, unsigned);
extern int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long), cuGraphLaunch(handle, handle);
extern int cuGraphDestroy(handle), cuGraphExecDestroy(handle), cuGraphCreate(handle *, unsigned);
extern int cuDeviceGraphMemTrim(int), cuThreadExchangeStreamCaptureMode(int *);

enum { STREAMS = 2, CALLERS = 4 };
static handle context, stream[STREAMS], function, shared_event, empty;
static address word;
static int mode, rounds;
static size_t size = 1 << 20;
static _Atomic int ended, succeeded, captured, refused, odd;

static void count(int result) {
    switch (result) {
    case 0: succeeded++; return;
    case 1:   /* a pointer that was captured is not allocated; a graph whose memory is still there */
    case 2:   /* out of memory */
    case 400: /* the stream was destroyed */
    case 401: /* begun or ended twice */
    case 600: /* not ready */
    case 900:
    case 901:
    case 902:
    case 903:
    case 904:
    case 905:
    case 906:
    case 907:
    case 908: refused++; return;
    default:
        if (!odd++)
            fprintf(stderr, "result %d\n", result);
    }
}

static void check(int result) {
    if (result) {
        fprintf(stderr, "set-up: %d\n", result);
        exit(2);
    }
}

static void nothing(void *data) { (void)data; }

/* What one captured or ordinary allocation came to: freed as what it is. */
static void allocate(handle s) {
    address p = 0;
    int r = cuMemAllocAsync(&p, size, s);
    count(r);
    if (r == 0)
        count(cuMemFreeAsync(p, s));
}

static void one_call(handle s, handle event, unsigned kind) {
    int status;
    uint64_t id;
    handle graph, *last;
    size_t n;
    float ms;
    address p;
    switch (kind) {
    case 0: allocate(s); return;
    case 1: count(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); return;
    case 2: count(cuMemsetD8Async(word, 0, 64, s)); return;
    case 3: count(cuMemcpyDtoDAsync_v2(word, word + 512, 64, s)); return;
    case 4: count(cuEventRecord(event, s)); return;
    case 5: count(cuStreamWaitEvent(s, event, 0)); return;
    case 6: count(cuEventQuery(event)); return;
    case 7: count(cuStreamSynchronize(s)); return;
    case 8: count(cuStreamQuery(s)); return;
    case 9: count(cuLaunchHostFunc(s, nothing, NULL)); return;
    case 10: count(cuStreamWriteValue32_v2(s, word, 1, 0)); return;
    case 11: count(cuGraphLaunch(empty, s)); return;
    case 12:
        count(cuStreamIsCapturing(s, &status));
        captured += status == 1;
        return;
    case 13: count(cuStreamGetCaptureInfo_v2(s, &status, &id, &graph, &last, &n)); return;
    case 14: count(cuEventRecord(shared_event, s)); return;
    case 15: count(cuStreamWaitEvent(s, shared_event, 0)); return;
    case 16: count(cuEventSynchronize(shared_event)); return;
    case 17:
        if (!cuEventElapsedTime(&ms, event, shared_event))
            succeeded++;
        return;
    case 18: /* the nodes to come depend on nothing */ count(cuStreamUpdateCaptureDependencies(s, NULL, 0, 1)); return;
    default: /* a call that a capture may forbid */
        if (cuMemAlloc_v2(&p, 4096) == 0)
            while (cuMemFree_v2(p)) {}
    }
}

static void *caller(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed;
    int relaxed = 2;
    handle event;
    check(cuCtxSetCurrent(context));
    check(cuEventCreate(&event, 0));
    if (state % 2)
        check(cuThreadExchangeStreamCaptureMode(&relaxed));
    while (!ended)
        one_call(stream[rand_r(&state) % STREAMS], event, (unsigned)rand_r(&state) % 20);
    cuEventDestroy_v2(event);
    return NULL;
}

/* What was captured runs once, if its memory allows it. */
static void use(handle graph, handle s) {
    handle exec;
    if (cuGraphInstantiateWithFlags(&exec, graph, 1) == 0) {
        count(cuGraphLaunch(exec, s));
        check(cuGraphExecDestroy(exec));
    }
    check(cuGraphDestroy(graph));
}

static void *capturer(void *index) {
    handle s = stream[(uintptr_t)index], own, graph;
    check(cuCtxSetCurrent(context));
    check(cuStreamCreate(&own, 1));
    /* Until a caller has seen a capture, however slow the callers are. */
    for (int i = 0; i < rounds || (!captured && i < 100 * rounds); i++) {
        graph = NULL;
        count(cuStreamBeginCapture_v2(s, mode));
        allocate(s);
        usleep((unsigned)i % 4 * 100);
        int r = cuStreamEndCapture(s, &graph);
        count(r);
        if (r == 0 && graph)
            use(graph, own);
        if (i % 8 == 0) { /* a captured stream is destroyed */
            handle doomed;
            check(cuStreamCreate(&doomed, 1));
            count(cuStreamBeginCapture_v2(doomed, mode));
            count(cuStreamDestroy_v2(doomed));
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    handle module, none, pool;
    pthread_t thread[STREAMS + CALLERS];
    if (argc < 3)
        return 2;
    if (argc > 3)
        size = (size_t)atol(argv[3]) << 20;
    mode = atoi(argv[1]);
    rounds = atoi(argv[2]);
    check(cuInit(0));
    check(cuDevicePrimaryCtxRetain(&context, 0));
    check(cuCtxSetCurrent(context));
    check(cuModuleLoadData(&module, ".entry k() // sim_us=1"));
    check(cuModuleGetFunction(&function, module, "k"));
    check(cuGraphCreate(&none, 0));
    check(cuGraphInstantiateWithFlags(&empty, none, 0));
    check(cuEventCreate(&shared_event, 0));
    check(cuMemAlloc_v2(&word, 4096));
    for (int i = 0; i < STREAMS; i++)
        check(cuStreamCreate(&stream[i], 1));
    for (int i = 0; i < STREAMS; i++)
        pthread_create(&thread[i], NULL, capturer, (void *)(uintptr_t)i);
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&thread[STREAMS + i], NULL, caller, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < STREAMS; i++)
        pthread_join(thread[i], NULL);
    ended = 1;
    for (int i = 0; i < CALLERS; i++)
        pthread_join(thread[STREAMS + i], NULL);
    check(cuCtxSynchronize());
    check(cuDeviceGetDefaultMemPool(&pool, 0));
    check(cuMemPoolTrimTo(pool, 0));
    printf("%d %d %d %d\n", (int)succeeded, (int)captured, (int)refused, (int)odd);
    return 0;
}
