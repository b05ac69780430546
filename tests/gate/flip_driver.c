/* A driver for flips.c: before a launch or copy reaches it, but after the shim has begun to look at it, it calls `flip`,
 * which changes the program's arguments as another thread could. It keeps what it was given in the end. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "flips.h"

void (*flip)(void);
struct seen seen;

int cuInit(unsigned flags) { return (void)flags, 0; }
int cuCtxGetCurrent(void **out) { return *out = (void *)0x1000, 0; }
int cuCtxPushCurrent_v2(void *context) { return (void)context, 0; }
int cuCtxPopCurrent_v2(void **context) { return *context = (void *)0x1000, 0; }
int cuCtxGetDevice(int *out) { return *out = 0, 0; }
int cuDeviceGetUuid_v2(void *uuid, int device) { return (void)device, memset(uuid, 0xa0, 16), 0; }
int cuStreamGetCtx(void *stream, void **context) { return (void)stream, *context = (void *)0x1000, 0; }
int cuPointerGetAttribute(int *out, int what, uint64_t at) { return (void)at, *out = what == 2 ? 2 : 0, 0; }

/* The shim asks this after it has read the arguments, and before it calls the function itself. Its own threads ask as
 * well, at any time. */
int cuStreamIsCapturing(void *stream, int *out) {
    (void)stream;
    if (flip && syscall(SYS_gettid) == getpid())
        flip();
    return *out = 0, 0;
}

int cuLaunchKernelEx(const struct config *c, void *f, void **parameters, void **extra) {
    (void)f, (void)parameters, (void)extra;
    seen = (struct seen){.calls = seen.calls + 1, .n = c ? c->count : 0, .size = c ? c->gx : 0};
    for (unsigned i = 0; c && i < c->count; i++)
        seen.sum += c->attributes[i].value[0];
    return 0;
}

int cuLaunchCooperativeKernelMultiDevice(struct launch *list, unsigned n, unsigned flags) {
    (void)flags;
    seen = (struct seen){.calls = seen.calls + 1, .n = n};
    for (unsigned i = 0; list && i < n; i++)
        seen.sum += list[i].gx;
    return 0;
}

int cuMemcpy2D_v2(const struct flat *c) {
    seen = (struct seen){.calls = seen.calls + 1, .size = c ? c->width * c->height : 0};
    return 0;
}

int cuMemcpy3DAsync_v2(const struct solid *c, void *stream) {
    (void)stream;
    seen = (struct seen){.calls = seen.calls + 1, .size = c ? c->width * c->height * c->depth : 0};
    return 0;
}

int cuMemcpyBatchAsync_v2(uint64_t *to, uint64_t *from, size_t *sizes, size_t n, void *attributes, size_t *which,
                          size_t kinds, void *stream) {
    (void)attributes, (void)which, (void)kinds, (void)stream;
    seen = (struct seen){.calls = seen.calls + 1, .n = n};
    for (size_t i = 0; sizes && i < n; i++) {
        seen.size += sizes[i];
        seen.sum += to[i] + from[i];
    }
    return 0;
}

int cuMemcpy3DBatchAsync_v2(size_t n, struct op *list, unsigned long long flags, void *stream) {
    (void)flags, (void)stream;
    seen = (struct seen){.calls = seen.calls + 1, .n = n};
    for (size_t i = 0; list && i < n; i++)
        seen.size += list[i].width * list[i].height * list[i].depth;
    return 0;
}

int cuFabricCpyBatchAsync(size_t n, struct fabric *list, unsigned long long flags, void *stream) {
    (void)flags, (void)stream;
    seen = (struct seen){.calls = seen.calls + 1, .n = n};
    for (size_t i = 0; list && i < n; i++)
        seen.size += list[i].size;
    return 0;
}

int cuMemBatchDecompressAsync(struct packed *list, size_t n, unsigned flags, size_t *failed, void *stream) {
    (void)flags, (void)failed, (void)stream;
    seen = (struct seen){.calls = seen.calls + 1, .n = n};
    for (size_t i = 0; list && i < n; i++)
        seen.size += list[i].unpacked;
    return 0;
}
