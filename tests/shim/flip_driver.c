/* A driver between the shim and the simulated one, for flip.c. It exports every function of intercepts.def. Each calls
 * the program's hook when it begins and when it ends, so that the program can change its arguments at the worst moment:
 * after the shim has looked at them. What the simulated driver lacks is made of what it has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

typedef uint64_t u64;
typedef int call(u64, u64, u64, u64, u64, u64, u64, u64);
enum { INVALID = 1, MISSING = 500 };

void (*flip_hook)(int end);

static void *under(const char *name) {
    static void *driver;
    if (!driver)
        driver = dlopen("/run/gpu-hook/driver/under", RTLD_NOLOAD | RTLD_LAZY);
    return dlsym(driver, name);
}
#define UNDER(name) ((call *)under(#name))
#define NONE 0, 0, 0, 0, 0, 0

/* ---- older and newer versions ---- */

static u64 low[64]; /* addresses of 32 bits are indices into this */

static int low_address(unsigned *out, int r, u64 address) {
    for (unsigned i = 1; !r && i < 64; i++)
        if (!low[i]) {
            low[i] = address;
            *out = i;
            return 0;
        }
    return r ? r : INVALID;
}
static int old_alloc(u64 out, u64 bytes) {
    u64 p = 0;
    return low_address((unsigned *)out, UNDER(cuMemAlloc_v2)((u64)&p, bytes, NONE), p);
}
static int old_pitch(u64 out, u64 pitch, u64 width, u64 height, u64 element) {
    u64 p = 0, wide = 0;
    int r = UNDER(cuMemAllocPitch_v2)((u64)&p, (u64)&wide, width, height, element, 0, 0, 0);
    *(unsigned *)pitch = (unsigned)wide;
    return low_address((unsigned *)out, r, p);
}
static int old_free(u64 pointer) {
    u64 p = pointer < 64 ? low[pointer] : 0;
    if (pointer < 64)
        low[pointer] = 0;
    return p ? UNDER(cuMemFree_v2)(p, 0, NONE) : INVALID;
}
struct descriptor_v1 {
    unsigned w, h, a, b, c, d;
};
static int old_array(u64 out, u64 given, int solid) {
    const struct descriptor_v1 *o = (void *)given;
    struct {
        u64 w, h, d;
        unsigned format, channels, flags;
    } now = {o->w, o->h, 0, o->a, o->b, 0};
    if (solid)
        now.d = o->a, now.format = o->b, now.channels = o->c, now.flags = o->d;
    return UNDER(cuArray3DCreate_v2)(out, (u64)&now, NONE);
}
/* What is mapped into a sparse array lives on: here, as a mapping at an address of its own. */
static int map_array(u64 list, u64 count) {
    for (u64 i = 0; i < count; i++) {
        const char *one = (const char *)list + 96 * i;
        u64 at = 0, handle = *(const u64 *)(one + 64);
        if (*(const int *)(one + 56) != 1)
            continue;
        UNDER(cuMemAddressReserve)((u64)&at, 256 << 20, 0, 0, 0, 0, 0, 0);
        int r = UNDER(cuMemMap)(at, 256 << 20, 0, handle, 0, 0, 0, 0);
        if (r)
            return r;
    }
    return 0;
}
/* The simulated driver does not count external memory: it is another API's. */
static int external(u64 out, u64 given) {
    u64 p = 0;
    int r = UNDER(cuMemAlloc_v2)((u64)&p, ((const u64 *)given)[3], NONE);
    *(u64 *)out = p;
    return r;
}

/* The simulated driver's own cuGraphAddNode would call the shim for a memory node. */
static int add_node(u64 out, u64 graph, u64 after, u64 count, u64 params) {
    if (*(const int *)params == 10)
        return UNDER(cuGraphAddMemAllocNode)(out, graph, after, count, params + 16, 0, 0, 0);
    return UNDER(cuGraphAddNode)(out, graph, after, count, params, 0, 0, 0);
}

/* Other arguments than those of the function that it stands for. */
static int stands(const char *name, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, int *r) {
#define IS(x) !strcmp(name, #x)
    if (IS(cuMemAlloc))
        *r = old_alloc(a, (unsigned)b);
    else if (IS(cuMemAllocPitch))
        *r = old_pitch(a, b, (unsigned)c, (unsigned)d, e);
    else if (IS(cuMemFree))
        *r = old_free((unsigned)a);
    else if (IS(cuArrayCreate) || IS(cuArray3DCreate))
        *r = old_array(a, b, IS(cuArray3DCreate));
    else if (IS(cuMemMapArrayAsync) || IS(cuMemMapArrayAsync_ptsz))
        *r = map_array(a, b);
    else if (IS(cuImportExternalMemory))
        *r = external(a, b);
    else if (IS(cuMemGetHandleForAddressRange)) /* the simulated driver has no DMA-BUFs */
        *r = (*(int *)a = eventfd(0, 0)) < 0;
    else if (IS(cuDestroyExternalMemory))
        *r = UNDER(cuMemFree_v2)(a, 0, NONE);
    else if (IS(cuCtxCreate))
        *r = UNDER(cuCtxCreate_v2)(a, b, c, 0, 0, 0, 0, 0);
    else if (IS(cuCtxCreate_v3))
        *r = UNDER(cuCtxCreate_v2)(a, d, e, 0, 0, 0, 0, 0);
    else if (IS(cuCtxCreate_v4))
        *r = UNDER(cuCtxCreate_v2)(a, c, d, 0, 0, 0, 0, 0);
    else if (IS(cuGraphAddNode))
        *r = add_node(a, b, c, d, e);
    else if (IS(cuGraphAddNode_v2) || IS(cuGraphAddNode_v3))
        *r = add_node(a, b, c, e, f);
    else if (IS(cuGraphInstantiate) || IS(cuGraphInstantiate_v2))
        *r = UNDER(cuGraphInstantiateWithFlags)(a, b, 0, 0, 0, 0, 0, 0);
    else
        return 0;
    return 1;
}

static void *mine(void *theirs);

static int forward(const char *name, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h) {
    char plain[64];
    size_t n = strlen(name);
    int r = MISSING;
    if (flip_hook)
        flip_hook(0);
    if (!stands(name, a, b, c, d, e, f, &r)) {
        call *there = (call *)under(name);
        snprintf(plain, sizeof plain, "%.*s", (int)(n > 5 ? n - 5 : 0), name);
        if (!there && n > 5 && !strcmp(name + n - 5, "_ptsz"))
            there = (call *)under(plain);
        r = there ? there(a, b, c, d, e, f, g, h) : MISSING;
    }
    if (!r && !strncmp(name, "cuGetProcAddress", 16))
        *(void **)b = mine(*(void **)b);
    if (flip_hook)
        flip_hook(1);
    return r;
}

/* Launches have more arguments; nothing of them matters here. */
#define GH_CUDA(api, since, symbol)                                      \
    int symbol(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h) { \
        return forward(#symbol, a, b, c, d, e, f, g, h);                 \
    }
#include "intercepts.def"
#undef GH_CUDA

/* What the driver below finds is looked up here: the shim knows this driver's functions, not those below. */
static void *mine(void *theirs) {
#define GH_CUDA(api, since, symbol)         \
    if (theirs && theirs == under(#symbol)) \
        return (void *)symbol;
#include "intercepts.def"
    return theirs;
}
