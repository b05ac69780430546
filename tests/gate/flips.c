/* Calls whose arguments change while they run: what the gate saw is what the driver gets. With flip_driver.c below the
 * shim. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flips.h"
#include "hold.h"

enum { MANY = 100, MEGABYTE = 1 << 20 };
static struct config config;
static struct attribute attributes[MANY];
static struct launch launches[MANY];
static struct flat flat;
static struct solid solid;
static uint64_t to[MANY], from[MANY];
static size_t sizes[MANY];
static struct op ops[MANY];
static struct fabric copies[MANY];
static struct packed packed[MANY];

/* Another thread: everything becomes larger. */
static void grow(void) {
    config.gx = 999;
    config.count = 50;
    config.attributes = NULL;
    flat.width = solid.width = 1 << 30;
    for (int i = 0; i < MANY; i++) {
        attributes[i].value[0] = 100;
        launches[i].gx = 999;
        to[i] = from[i] = 1 << 30;
        sizes[i] = 1 << 30;
        ops[i].width = 1 << 30;
        copies[i].size = packed[i].unpacked = 1 << 30;
    }
}

static void reset(void) {
    config = (struct config){.gx = 7, .gy = 1, .gz = 1, .bx = 1, .by = 1, .bz = 1, .attributes = attributes};
    flat = (struct flat){.from = {.type = 2}, .to = {.type = 2}, .width = 1024, .height = 2048};
    solid = (struct solid){.from = {.type = 2}, .to = {.type = 2}, .width = 1024, .height = 1024, .depth = 2};
    for (int i = 0; i < MANY; i++) {
        attributes[i].value[0] = 1;
        launches[i] = (struct launch){.gx = 7, .gy = 1, .gz = 1, .bx = 1, .by = 1, .bz = 1};
        to[i] = from[i] = 1;
        sizes[i] = MEGABYTE;
        ops[i] = (struct op){.from = {.type = 1}, .to = {.type = 1}, .width = MEGABYTE, .height = 1, .depth = 1};
        copies[i] = (struct fabric){.from = {.type = 1}, .to = {.type = 1}, .size = MEGABYTE};
        packed[i] = (struct packed){.packed = 1024, .unpacked = MEGABYTE};
    }
}

static void *shim, *driver;
static struct seen *seen;
#define CALL(name, ...) (reset(), ((int (*)())dlsym(shim, name))(__VA_ARGS__))

/* A launch with so many attributes. */
static int launch_ex(const char *name, unsigned count) {
    reset();
    config.count = count;
    return ((int (*)())dlsym(shim, name))(&config, NULL, NULL, NULL);
}

static void launch_attributes(void) {
    static const unsigned counts[] = {0, 1, 2, 63, 64};
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        HOLD(!launch_ex("cuLaunchKernelEx", counts[i]));
        HOLD(seen->n == counts[i] && seen->size == 7 && seen->sum == counts[i]);
    }
    unsigned calls = seen->calls;
    HOLD(launch_ex("cuLaunchKernelEx", 65) == 1 && launch_ex("cuLaunchKernelEx", ~0u) == 1 && seen->calls == calls);
    HOLD(!CALL("cuLaunchKernelEx", NULL, NULL, NULL, NULL) && seen->calls == calls + 1 && !seen->n);
}

static void on_several_devices(void) {
    for (unsigned n = 1; n <= 16; n *= 2) {
        HOLD(!CALL("cuLaunchCooperativeKernelMultiDevice", launches, n, 0));
        HOLD(seen->n == n && seen->sum == 7 * n);
    }
    unsigned calls = seen->calls;
    HOLD(CALL("cuLaunchCooperativeKernelMultiDevice", launches, 17, 0) == 1 && seen->calls == calls);
    HOLD(!CALL("cuLaunchCooperativeKernelMultiDevice", NULL, 3, 0) && seen->calls == calls + 1);
    HOLD(!CALL("cuLaunchCooperativeKernelMultiDevice", launches, 0, 0) && seen->calls == calls + 2);
}

static void boxes(void) {
    HOLD(!CALL("cuMemcpy2D_v2", &flat) && seen->size == 2 * MEGABYTE);
    HOLD(!CALL("cuMemcpy3DAsync_v2", &solid, NULL) && seen->size == 2 * MEGABYTE);
    HOLD(!CALL("cuMemcpy2D_v2", NULL) && !CALL("cuMemcpy3DAsync_v2", NULL, NULL));
}

static void batches(void) {
    static const size_t counts[] = {1, 2, MANY};
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        size_t n = counts[i];
        HOLD(!CALL("cuMemcpyBatchAsync_v2", to, from, sizes, n, NULL, NULL, (size_t)0, NULL));
        HOLD(seen->n == n && seen->size == n * MEGABYTE && seen->sum == 2 * n);
        HOLD(!CALL("cuMemcpy3DBatchAsync_v2", n, ops, 0ull, NULL));
        HOLD(seen->n == n && seen->size == n * MEGABYTE);
        HOLD(!CALL("cuFabricCpyBatchAsync", n, copies, 0ull, NULL) && copies[0].size > MEGABYTE);
        HOLD(seen->n == n && seen->size == n * MEGABYTE);
        HOLD(!CALL("cuMemBatchDecompressAsync", packed, n, 0, NULL, NULL) && packed[0].unpacked > MEGABYTE);
        HOLD(seen->n == n && seen->size == n * MEGABYTE);
    }
    HOLD(!CALL("cuMemcpyBatchAsync_v2", to, from, sizes, (size_t)0, NULL, NULL, (size_t)0, NULL) && !seen->n);
    HOLD(CALL("cuMemcpyBatchAsync_v2", to, from, sizes, SIZE_MAX / 8, NULL, NULL, (size_t)0, NULL) == 2);
    HOLD(CALL("cuMemcpy3DBatchAsync_v2", SIZE_MAX / 8, ops, 0ull, NULL) == 2);
    HOLD(CALL("cuFabricCpyBatchAsync", SIZE_MAX / 8, copies, 0ull, NULL) == 2);
    HOLD(CALL("cuMemBatchDecompressAsync", packed, SIZE_MAX / 8, 0, NULL, NULL) == 2);
    HOLD(!CALL("cuFabricCpyBatchAsync", (size_t)0, NULL, 0ull, NULL) && !seen->n);
    HOLD(!CALL("cuMemBatchDecompressAsync", NULL, (size_t)0, 0, NULL, NULL) && !seen->n);
}

int main(int argc, char **argv) {
    shim = dlopen("libcuda.so.1", RTLD_NOW);
    HOLD(argc == 2 && shim && !CALL("cuInit", 0));
    driver = dlopen("/run/gpu-hook/driver/cuda", RTLD_NOW);
    HOLD(driver && (seen = dlsym(driver, "seen")));
    *(void (**)(void))dlsym(driver, "flip") = grow;
    if (!strcmp(argv[1], "attributes"))
        launch_attributes();
    else if (!strcmp(argv[1], "devices"))
        on_several_devices();
    else if (!strcmp(argv[1], "boxes"))
        boxes();
    else
        batches();
    puts("ok");
    return 0;
}
