/* A program that launches kernels from one thread and does all else from another:
 *
 *   calls MICROSECONDS
 *
 * Prints "launched NANOSECONDS COUNT" for the clock and the first thread's launches, and
 * "CALL NANOSECONDS MICROSECONDS" for the clock and how long the call took, over and over. Ends when its input does. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "program.h"

static void *ml, *context, *function, *stream;
static _Atomic unsigned long launched;

static void must(const char *name, int r) {
    if (r && r != 600) { /* not ready */
        fprintf(stderr, "%s: %d\n", name, r);
        exit(1);
    }
}

#define DO(name, ...) must(name, CALL(name, __VA_ARGS__))
#define TIMED(library, name, ...)                                                                          \
    do {                                                                                                   \
        uint64_t from_ = now();                                                                            \
        must(name, FIND(library, name)(__VA_ARGS__));                                                      \
        uint64_t to_ = now();                                                                              \
        printf("%s %llu %llu\n", name, (unsigned long long)to_, (unsigned long long)(to_ - from_) / 1000); \
    } while (0)

static void *launches(void *unused) {
    DO("cuCtxSetCurrent", context);
    for (;;) {
        DO("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
        launched++;
    }
    return unused;
}

int main(int argc, char **argv) {
    char image[200], name[64], host[64] = {0};
    void *module, *own, *event, *device, *found;
    unsigned long long memory, pages[8];
    uint64_t used[8];
    pthread_t thread;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    ml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (argc < 2 || !cuda || !ml)
        return 2;
    snprintf(name, sizeof name, "spin_%sus", argv[1]);
    snprintf(image, sizeof image, "// %s", name);
    DO("cuInit", 0);
    DO("cuDevicePrimaryCtxRetain", &context, 0);
    DO("cuCtxSetCurrent", context);
    DO("cuModuleLoadData", &module, image);
    DO("cuModuleGetFunction", &function, module, name);
    DO("cuStreamCreate", &stream, 1);
    DO("cuStreamCreate", &own, 1);
    DO("cuEventCreate", &event, 0);
    must("nvmlInit_v2", FIND(ml, "nvmlInit_v2")());
    must("nvmlDeviceGetHandleByIndex_v2", FIND(ml, "nvmlDeviceGetHandleByIndex_v2")(0, &device));
    pthread_create(&thread, NULL, launches, NULL);
    for (;;) {
        struct pollfd in = {0, POLLIN, 0};
        printf("launched %llu %lu\n", (unsigned long long)now(), launched);
        TIMED(cuda, "cuMemAlloc_v2", &memory, (size_t)1 << 20);
        TIMED(cuda, "cuMemcpyHtoD_v2", memory, host, sizeof host);
        TIMED(cuda, "cuMemcpyDtoH_v2", host, memory, sizeof host);
        TIMED(cuda, "cuMemFree_v2", memory);
        TIMED(cuda, "cuMemGetInfo_v2", pages, pages + 1);
        TIMED(cuda, "cuStreamQuery", stream);
        TIMED(cuda, "cuEventRecord", event, stream);
        TIMED(cuda, "cuEventQuery", event);
        TIMED(cuda, "cuEventSynchronize", event);
        TIMED(cuda, "cuStreamSynchronize", own);
        TIMED(cuda, "cuStreamSynchronize", stream);
        TIMED(cuda, "cuCtxSynchronize");
        TIMED(cuda, "cuModuleGetFunction", &found, module, name);
        TIMED(ml, "nvmlDeviceGetMemoryInfo", device, used);
        TIMED(ml, "nvmlDeviceGetUtilizationRates", device, used);
        fflush(stdout);
        if (poll(&in, 1, 5) > 0)
            break;
    }
    _exit(0);
}
