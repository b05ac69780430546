/* Costs of a GPU and its driver: single measurements, one line of JSON each. Real times in nanoseconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

enum { MOST = 20000, BATCH = 100 };

static uint64_t sample[MOST];
static int first;

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print(FILE *out, const char *name, unsigned n) {
    qsort(sample, n, sizeof *sample, compare);
    fprintf(out, "%s\"%s\": {\"p50\": %llu, \"p99\": %llu, \"n\": %u}", first ? "" : ", ", name,
            (unsigned long long)sample[n / 2], (unsigned long long)sample[n * 99 / 100], n);
    first = 0;
}

/* Times the call `n` times, with the GPU idle at each batch's begin and `after` a batch. */
#define TIMES(name, count, call, after)                          \
    do {                                                         \
        unsigned n_ = (count) < MOST ? (unsigned)(count) : MOST; \
        for (unsigned k = 0; k < n_; k++) {                      \
            uint64_t begin_ = clock_ns();                        \
            check(call, #call);                                  \
            sample[k] = clock_ns() - begin_;                     \
            if (k % BATCH == BATCH - 1) {                        \
                after;                                           \
            }                                                    \
        }                                                        \
        print(out, name, n_);                                    \
    } while (0)

static void *graph_of(void *function, CUdeviceptr state, unsigned nodes, void *stream) {
    void *graph, *exec;
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    for (unsigned i = 0; i < nodes; i++)
        CHECK(spin(function, 1, state, i, 1, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return exec;
}

/* A page of a file, as the shim has its slot and others' slots. */
static void registering(FILE *out, int writable) {
    char path[] = "/tmp/load-page-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, 8192))
        exit(1);
    unlink(path);
    void *page = mmap(NULL, 8192, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        exit(1);
    uint64_t begin = clock_ns();
    CUresult r = cuMemHostRegister_v2(page, 8192, 2 /* DEVICEMAP */ | (writable ? 0 : 8 /* READ_ONLY */));
    fprintf(out, ", \"register_%s\": {\"error\": %d, \"ns\": %llu}", writable ? "rw" : "ro", r,
            (unsigned long long)(clock_ns() - begin));
    if (!r)
        cuMemHostUnregister(page);
    munmap(page, 8192);
    close(fd);
}

/* Delay until a stream continues after the host stores its awaited value, and the cost of the two operations. */
static void memory_operations(FILE *out, void *function, CUdeviceptr state, void *stream, unsigned n) {
    uint32_t *word;
    CUdeviceptr address;
    if (!cuStreamWriteValue32_v2 || !cuStreamWaitValue32_v2 || cuMemHostAlloc((void **)&word, 4096, 2) ||
        cuMemHostGetDevicePointer_v2(&address, word, 0) || cuStreamWriteValue32_v2(stream, address, 1, 0)) {
        fprintf(out, ", \"write_value\": null");
        return;
    }
    CHECK(cuStreamSynchronize(stream));
    TIMES("write_value", n, cuStreamWriteValue32_v2(stream, address, 1, 0), CHECK(cuStreamSynchronize(stream)));
    TIMES("wait_value", n, cuStreamWaitValue32_v2(stream, address, 1, 1 /* EQ */), CHECK(cuStreamSynchronize(stream)));
    unsigned rounds = n < 500 ? n : 500;
    volatile uint32_t *gate = word;
    for (unsigned k = 0; k < rounds; k++) {
        *gate = 0;
        CHECK(cuStreamWaitValue32_v2(stream, address, 1, 1));
        CHECK(spin(function, 1, state, k, 1, stream));
        CHECK(cuStreamWriteValue32_v2(stream, address + 4, k + 1, 0));
        uint64_t until = clock_ns() + 200000;
        while (clock_ns() < until)
            ;
        uint64_t begin = clock_ns();
        *gate = 1;
        while (gate[1] != k + 1 && clock_ns() - begin < 1000000000)
            ;
        sample[k] = clock_ns() - begin;
    }
    CHECK(cuStreamSynchronize(stream));
    print(out, "resume", rounds);
}

/* Calls by which the shim looks at a stream and at work that is not done. */
static void looks(FILE *out, void *function, CUdeviceptr state, void *stream, void *timed, void *plain, unsigned n) {
    void *context;
    int word = 2 /* RELAXED */;
    float ms;
    CHECK(cuEventRecord(plain, stream));
    CHECK(cuEventRecord(timed, stream));
    CHECK(cuStreamSynchronize(stream));
    if (cuCtxGetCurrent)
        TIMES("context_current", n, cuCtxGetCurrent(&context), (void)0);
    if (cuStreamGetCtx)
        TIMES("stream_context", n, cuStreamGetCtx(stream, &context), (void)0);
    if (cuStreamIsCapturing)
        TIMES("is_capturing", n, cuStreamIsCapturing(stream, &word), (void)0);
    word = 2;
    if (cuThreadExchangeStreamCaptureMode) /* an even number of times */
        TIMES("capture_mode", n / 2 * 2, cuThreadExchangeStreamCaptureMode(&word), (void)0);
    TIMES("elapsed_time", n, cuEventElapsedTime(&ms, timed, timed), (void)0);
    CHECK(spin(function, 1, state, 0, 1, stream));
    CHECK(spin(function, 10000000, state, 0, 1, stream));
    CHECK(cuEventRecord(plain, stream));
    TIMES("event_query", n, (cuEventQuery(plain), 0), (void)0);
    CHECK(cuStreamSynchronize(stream));
}

void physics_api(FILE *out, unsigned n, void *function, CUdeviceptr state) {
    void *stream, *timed, *plain;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuEventCreate(&timed, 0));
    CHECK(cuEventCreate(&plain, 2));
    first = 1;
    TIMES("launch", n, spin(function, 1, state, k, 1, stream), CHECK(cuStreamSynchronize(stream)));
    static const unsigned nodes[] = {1, 50, 300};
    for (unsigned i = 0; i < 3; i++) {
        char name[32];
        void *exec = graph_of(function, state, nodes[i], stream);
        snprintf(name, sizeof name, "graph_%u", nodes[i]);
        TIMES(name, n / nodes[i] < 20 ? 20 : n / nodes[i], cuGraphLaunch(exec, stream),
              CHECK(cuStreamSynchronize(stream)));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuGraphExecDestroy(exec));
    }
    TIMES("event_record_timed", n, cuEventRecord(timed, stream), CHECK(cuStreamSynchronize(stream)));
    TIMES("event_record", n, cuEventRecord(plain, stream), CHECK(cuStreamSynchronize(stream)));
    CHECK(cuStreamSynchronize(stream));
    TIMES("event_query_done", n, cuEventQuery(plain), (void)0);
    unsigned rounds = n < 500 ? n : 500;
    for (unsigned k = 0; k < rounds; k++) { /* from a kernel's launch to the return of a wait for it */
        uint64_t begin = clock_ns();
        CHECK(spin(function, 1, state, k, 1, stream));
        CHECK(cuStreamSynchronize(stream));
        sample[k] = clock_ns() - begin;
    }
    print(out, "launch_and_wait", rounds);
    looks(out, function, state, stream, timed, plain, n);
    memory_operations(out, function, state, stream, n);
    registering(out, 1);
    registering(out, 0);
}

/* The time between two events around a kernel: launched into an idle stream, and behind two others; and how long the call of
 * the driver was. Kernels of 8, 80 and 800 us. */
void physics_events(FILE *out, unsigned n, void *function, CUdeviceptr state, double steps_per_us) {
    static const unsigned us[] = {8, 80, 800};
    static uint64_t call[MOST], behind[MOST];
    void *stream, *begin, *end;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuEventCreate(&begin, 0));
    CHECK(cuEventCreate(&end, 0));
    first = 1;
    n = n < 400 ? n : 400;
    for (unsigned after = 0; after < 2; after++) { /* nothing between them */
        for (unsigned k = 0; k < n; k++) {
            float ms;
            if (after)
                CHECK(spin(function, (uint64_t)(100 * steps_per_us), state, k, 1, stream));
            CHECK(cuEventRecord(begin, stream));
            CHECK(cuEventRecord(end, stream));
            CHECK(cuStreamSynchronize(stream));
            CHECK(cuEventElapsedTime(&ms, begin, end));
            sample[k] = (uint64_t)((double)ms * 1e6);
        }
        print(out, after ? "nothing, behind" : "nothing, idle", n);
    }
    for (unsigned i = 0; i < 3; i++) {
        uint64_t steps = (uint64_t)(us[i] * steps_per_us);
        for (unsigned k = 0; k < 2 * n; k++) {
            float ms;
            for (unsigned more = 0; more < (k % 2) * 2; more++)
                CHECK(spin(function, steps + (uint64_t)(100 * steps_per_us), state, k, 1, stream));
            CHECK(cuEventRecord(begin, stream));
            uint64_t from = clock_ns();
            CHECK(spin(function, steps, state, k, 1, stream));
            uint64_t took = clock_ns() - from;
            CHECK(cuEventRecord(end, stream));
            CHECK(cuStreamSynchronize(stream));
            CHECK(cuEventElapsedTime(&ms, begin, end));
            (k % 2 ? behind : sample)[k / 2] = (uint64_t)((double)ms * 1e6);
            if (k % 2 == 0)
                call[k / 2] = took;
        }
        char name[32];
        snprintf(name, sizeof name, "%u us, idle", us[i]);
        print(out, name, n);
        memcpy(sample, call, n * sizeof *sample);
        snprintf(name, sizeof name, "%u us, its call", us[i]);
        print(out, name, n);
        memcpy(sample, behind, n * sizeof *sample);
        snprintf(name, sizeof name, "%u us, behind", us[i]);
        print(out, name, n);
    }
}

/* One thread looks at the GPU's clock for so long, and logs when the looks are far apart: another context was on. */
static const char GAPS[] =
    ".version 6.3\n.target %s\n.address_size 64\n// sim_param\n"
    ".visible .entry gaps(.param .u64 ns, .param .u64 log, .param .u64 most) {\n"
    ".reg .u64 %%a<12>;\n.reg .u32 %%b<4>;\n.reg .pred %%p<6>;\n"
    "ld.param.u64 %%a0, [ns];\nld.param.u64 %%a1, [log];\nld.param.u64 %%a2, [most];\n"
    "mov.u64 %%a3, %%globaltimer;\nmov.u64 %%a4, %%a3;\nmov.u64 %%a5, 0;\n"
    "mov.u32 %%b0, %%ctaid.x;\nmov.u32 %%b1, %%tid.x;\nor.b32 %%b2, %%b0, %%b1;\n"
    "again: mov.u64 %%a6, %%globaltimer;\nsub.u64 %%a7, %%a6, %%a4;\n"
    "setp.lt.u64 %%p0, %%a7, 5000;\n@%%p0 bra next;\n"
    "setp.ne.u32 %%p1, %%b2, 0;\n@%%p1 bra next;\nsetp.ge.u64 %%p2, %%a5, %%a2;\n@%%p2 bra next;\n"
    "shl.b64 %%a8, %%a5, 4;\nadd.u64 %%a8, %%a8, %%a1;\nst.global.u64 [%%a8+16], %%a4;\nst.global.u64 [%%a8+24], "
    "%%a6;\n"
    "add.u64 %%a5, %%a5, 1;\nst.global.u64 [%%a1], %%a5;\n"
    "next: mov.u64 %%a4, %%a6;\nsub.u64 %%a9, %%a6, %%a3;\nsetp.lt.u64 %%p3, %%a9, %%a0;\n@%%p3 bra again;\nret;\n}\n";

void physics_gaps(FILE *out, uint64_t ns, unsigned blocks) {
    enum { LOG = 8192 };
    static const char *const targets[] = {"sm_75", "sm_50"};
    static uint64_t log[2 + 2 * LOG];
    char image[2048];
    void *module, *function = NULL;
    CUdeviceptr address;
    for (unsigned i = 0; !function && i < 2; i++) {
        snprintf(image, sizeof image, GAPS, targets[i]);
        if (!cuModuleLoadData(&module, image))
            CHECK(cuModuleGetFunction(&function, module, "gaps"));
    }
    CHECK(cuMemAlloc_v2(&address, sizeof log));
    memset(log, 0, sizeof log);
    CHECK(cuMemcpyHtoD_v2(address, log, sizeof log));
    uint64_t most = LOG;
    void *params[] = {&ns, &address, &most};
    CHECK(cuLaunchKernel(function, blocks, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(log, address, sizeof log));
    CHECK(cuMemFree_v2(address));
    unsigned n = log[0] < LOG ? (unsigned)log[0] : LOG;
    fprintf(out, "\"gaps\": [");
    for (unsigned i = 0; i < n; i++)
        fprintf(out, "%s[%llu,%llu]", i ? "," : "", (unsigned long long)log[2 + 2 * i],
                (unsigned long long)log[3 + 2 * i]);
    fprintf(out, "]");
}

/* Copies to the GPU, one after the other, for so long. */
void physics_copies(FILE *out, uint64_t ns, size_t bytes) {
    void *host, *stream;
    CUdeviceptr address;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemHostAlloc(&host, bytes, 0));
    CHECK(cuMemAlloc_v2(&address, bytes));
    uint64_t begin = clock_ns(), now, n = 0;
    do {
        CHECK(cuMemcpyHtoDAsync_v2(address, host, bytes, stream));
        CHECK(cuStreamSynchronize(stream));
        n++;
    } while ((now = clock_ns()) - begin < ns);
    fprintf(out, "\"gb_per_s\": %.3f", (double)(n * bytes) / (double)(now - begin));
    CHECK(cuMemFree_v2(address));
}

/* A stream waits at a closed gate for so long; what does that cost whoever else uses the GPU? */
void physics_blocked(FILE *out, uint64_t ns, void *function, CUdeviceptr state) {
    void *stream;
    uint32_t *word;
    CUdeviceptr address;
    CHECK(cuStreamCreate(&stream, 1));
    if (!cuStreamWaitValue32_v2 || cuMemHostAlloc((void **)&word, 4096, 2) ||
        cuMemHostGetDevicePointer_v2(&address, word, 0)) {
        fprintf(out, "\"blocked\": null");
        return;
    }
    volatile uint32_t *gate = word;
    *gate = 0;
    CUresult r = cuStreamWaitValue32_v2(stream, address, 1, 1);
    if (!r) {
        CHECK(spin(function, 1, state, 1, 1, stream));
        sleep_until(clock_ns() + ns);
        *gate = 1;
        CHECK(cuStreamSynchronize(stream));
    }
    fprintf(out, "\"blocked\": %s", r ? "null" : "true");
}
