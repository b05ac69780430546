/* Launches in several contexts: each event of the shim's is made in the context in whose streams it is put. With
 * contexts_driver.c below the shim. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "flips.h"
#include "hold.h"

enum { MANY = 60 };
static void *shim;
#define CALL(name, ...) ((int (*)())dlsym(shim, name))(__VA_ARGS__)
#define CONTEXT(i) ((void *)(((uintptr_t)(i) + 1) << 12))
#define STREAM(i) ((void *)((((uintptr_t)(i) + 1) << 12) + 0x10))

static void launch(int i) { HOLD(!CALL("cuLaunchKernel", NULL, 1, 1, 1, 32, 1, 1, 0, STREAM(i), NULL, NULL)); }

static void in_turns(void) {
    for (int n = 0; n < MANY; n++) {
        HOLD(!CALL("cuCtxSetCurrent", CONTEXT(n % 3)));
        launch(n % 3);
    }
}

/* The kernel is known by then, so few of its launches have an event. */
static void destroy_streams(void) {
    for (int i = 0; i < MANY; i++)
        launch(0);
    for (int i = 1; i < MANY; i++) {
        HOLD(!CALL("cuCtxSetCurrent", CONTEXT(i)));
        launch(i);
        HOLD(!CALL("cuCtxSetCurrent", CONTEXT(0)) && !CALL("cuStreamDestroy_v2", STREAM(i)));
    }
}

/* With the first context current, then with none. */
static void elsewhere(void) {
    for (int n = 0; n < 2 * MANY; n++) {
        HOLD(n != MANY || !CALL("cuCtxSetCurrent", NULL));
        launch(1 + n % 2);
    }
    struct launch list = {.gx = 1, .gy = 1, .gz = 1, .bx = 1, .by = 1, .bz = 1, .stream = STREAM(1)};
    for (int n = 0; n < MANY; n++)
        HOLD(!CALL("cuLaunchCooperativeKernelMultiDevice", &list, 1, 0));
}

/* Another holder of the primary context comes and goes while there is work in it, which keeps its events. */
static void release(const unsigned *events) {
    void *context;
    HOLD(!CALL("cuDevicePrimaryCtxRetain", &context, 0) && context == CONTEXT(0));
    for (int n = 0; n < MANY; n++) {
        launch(0);
        HOLD(!CALL("cuDevicePrimaryCtxRetain", &context, 0) && !CALL("cuDevicePrimaryCtxRelease_v2", 0));
        HOLD(CALL("cuCtxDestroy_v2", context));
    }
    HOLD(*events < MANY);
}

/* Threads that hold the primary context only while they use it: it goes and comes back, under the same handle. */
static void *hold_shortly(void *unused) {
    void *context;
    for (int n = 0; n < 10 * MANY; n++) {
        HOLD(!CALL("cuDevicePrimaryCtxRetain", &context, 0) && !CALL("cuCtxSetCurrent", context));
        launch(0);
        HOLD(!CALL("cuDevicePrimaryCtxRelease_v2", 0));
    }
    return unused;
}

static void come_and_go(void) {
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        HOLD(!pthread_create(&thread[i], NULL, hold_shortly, NULL));
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

/* Ten at a time, which takes less than the time after which the gate looks at others again. Most are not published at once. */
static void at_once(void) {
    const char *page = mmap(NULL, 8192, PROT_READ, MAP_SHARED, open("/run/gpu-hook/slot/0", O_RDONLY), 0);
    const _Atomic uint64_t *launched = (const void *)(page + 1024 + 8); /* of the first process */
    int published = 0;
    for (int n = 0; n < 10 * MANY; n++) {
        uint64_t before = *launched;
        launch(0);
        published += *launched != before;
        if (n % 10 == 9)
            nanosleep(&(struct timespec){0, 300000}, NULL);
    }
    HOLD(published > MANY / 2 && published < 5 * MANY);
}

int main(int argc, char **argv) {
    const unsigned *wrong;
    shim = dlopen("libcuda.so.1", RTLD_NOW);
    HOLD(argc == 2 && shim && !CALL("cuInit", 0) && !CALL("cuCtxSetCurrent", CONTEXT(0)));
    void *driver = dlopen("/run/gpu-hook/driver/cuda", RTLD_NOW);
    HOLD(driver && (wrong = dlsym(driver, "wrong")));
    if (!strcmp(argv[1], "turns"))
        in_turns();
    else if (!strcmp(argv[1], "streams"))
        destroy_streams();
    else if (!strcmp(argv[1], "elsewhere"))
        elsewhere();
    else if (!strcmp(argv[1], "threads"))
        come_and_go();
    else if (!strcmp(argv[1], "at once"))
        at_once();
    else
        release(dlsym(driver, "events"));
    HOLD(!*wrong);
    puts("ok");
    return 0;
}
