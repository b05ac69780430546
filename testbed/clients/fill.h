/* Takes device memory until the driver refuses, by one of its functions; what is found by whom is the caller's. */
#ifndef GPU_HOOK_TEST_FILL_H
#define GPU_HOOK_TEST_FILL_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef void *finder(const char *symbol); /* exported name, such as cuMemAlloc_v2 -> its address, or NULL */

#define MIB ((size_t)1 << 20)

struct array3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct pool_props {
    int type, handles, location, device;
    void *win32;
    size_t max;
    unsigned short usage;
    char rest[54];
};
struct prop {
    int type, handles, location, device;
    void *win32;
    unsigned char flags[8];
};

static finder *fill_find;
static void *fill_pool;

#define CALL(symbol, types, ...)                                              \
    do {                                                                      \
        CUresult(*f) types = (CUresult(*) types)(uintptr_t)fill_find(symbol); \
        if (!f) {                                                             \
            printf("missing=%s\n", symbol);                                   \
            return 500;                                                       \
        }                                                                     \
        return f(__VA_ARGS__);                                                \
    } while (0)

static CUresult init(void) { CALL("cuInit", (unsigned), 0); }
static CUresult retain(void **ctx) { CALL("cuDevicePrimaryCtxRetain", (void **, int), ctx, 0); }
static CUresult current(void *ctx) { CALL("cuCtxSetCurrent", (void *), ctx); }
static CUresult make_pool(void) {
    struct pool_props p = {.type = 1, .location = 1};
    CALL("cuMemPoolCreate", (void **, struct pool_props *), &fill_pool, &p);
}

/* One piece of n bytes, a multiple of 1 MiB. */
static CUresult take(const char *how, size_t n) {
    unsigned long long at;
    size_t pitch;
    void *array;
    struct array3d box = {1024, 1024, n / MIB, 1, 1, 0}; /* one byte an element */
    struct prop prop = {.type = 1, .location = 1};
    if (!strcmp(how, "cuMemAllocPitch_v2"))
        CALL(how, (unsigned long long *, size_t *, size_t, size_t, unsigned), &at, &pitch, MIB, n / MIB, 4);
    if (!strcmp(how, "cuMemAllocManaged"))
        CALL(how, (unsigned long long *, size_t, unsigned), &at, n, 1);
    if (!strcmp(how, "cuMemAllocAsync") || !strcmp(how, "cuMemAllocAsync_ptsz"))
        CALL(how, (unsigned long long *, size_t, void *), &at, n, NULL);
    if (!strcmp(how, "cuMemAllocFromPoolAsync"))
        CALL(how, (unsigned long long *, size_t, void *, void *), &at, n, fill_pool, NULL);
    if (!strcmp(how, "cuMemCreate"))
        CALL(how, (unsigned long long *, size_t, struct prop *, unsigned long long), &at, n, &prop, 0);
    if (!strcmp(how, "cuArray3DCreate_v2"))
        CALL(how, (void **, struct array3d *), &array, &box);
    CALL(how, (unsigned long long *, size_t), &at, n); /* cuMemAlloc_v2 */
}

/* Prints "granted=MIB code=CUresult" and keeps all until standard input ends. */
static int fill(finder *find, const char *how) {
    size_t granted = 0, piece = 256 * MIB;
    void *ctx;
    CUresult r;
    fill_find = find;
    if ((r = init()) || (r = retain(&ctx)) || (r = current(ctx)) ||
        (!strcmp(how, "cuMemAllocFromPoolAsync") && (r = make_pool()))) {
        printf("failed=%d\n", r);
        return 1;
    }
    while (granted < 1024 * 1024 * MIB)
        if ((r = take(how, piece)) == 0)
            granted += piece;
        else if (r != 2 || (piece /= 2) < 2 * MIB)
            break;
    printf("granted=%zu code=%d\n", granted / MIB, r);
    fflush(stdout);
    for (char c; read(0, &c, 1) > 0;)
        ;
    return 0;
}

/* The functions above by direct reference, for what is linked against libcuda. */
#ifdef DIRECT
#define FUNCTIONS               \
    F(cuInit)                   \
    F(cuDevicePrimaryCtxRetain) \
    F(cuCtxSetCurrent)          \
    F(cuMemPoolCreate)          \
    F(cuMemAlloc_v2)            \
    F(cuMemAllocPitch_v2)       \
    F(cuMemAllocManaged)        \
    F(cuMemAllocAsync) F(cuMemAllocAsync_ptsz) F(cuMemAllocFromPoolAsync) F(cuMemCreate) F(cuArray3DCreate_v2)
#define F(name) extern CUresult name(void);
FUNCTIONS
#undef F
static void *direct(const char *symbol) {
#define F(name)                 \
    if (!strcmp(symbol, #name)) \
        return (void *)(uintptr_t)name;
    FUNCTIONS
#undef F
    return NULL;
}
#endif
#endif
