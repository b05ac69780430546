/* flip ROW [SECONDS]: makes a call whose arguments change while it runs, then compares what the driver has handed out with
 * what the container is charged. Without SECONDS the driver itself (flip_driver.c) calls `flip` when it begins and when it
 * ends. With SECONDS, a thread changes the arguments all the time. Without arguments: prints the rows that it knows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef int call();
#define MIB (1ull << 20)
#define LITTLE (2 * MIB)
#define MUCH (256 * MIB)

static void *shim, *driver;
static const char *row;
static double seconds;
static u64 context;

/* What changes: `in` has `good`; the driver shall see `bad`, and the shim `late`, if it looks again after the call. The
 * driver writes to `out`, and the shim shall read `other` there. */
static struct {
    volatile int armed;
    void *in;
    const void *good, *bad, *late;
    size_t size;
    void *out;
    const void *other;
    size_t out_size;
    void (*also)(void); /* called when the driver begins */
    u64 written; /* by the driver to `out`: what a program can learn of it by reading there at the right moment */
} change;

static void put(void *to, const void *from, size_t size) {
    if (to && from)
        memcpy(to, from, size);
}

static void flip(int end) {
    if (!change.armed)
        return;
    if (!end) {
        put(change.in, change.bad, change.size);
        if (change.also)
            change.also();
        change.also = NULL;
    } else {
        put(change.in, change.late ? change.late : change.good, change.size);
        put(&change.written, change.out, change.out_size);
        put(change.out, change.other, change.out_size);
    }
}

static void *flip_always(void *unused) {
    for (unsigned n = 0;; n++) {
        const void *image[] = {change.good, change.bad, change.late};
        if (change.armed)
            put(change.in, image[n % 3], change.size);
        if (change.armed && n % 7 == 0)
            put(change.out, change.other, change.out_size);
        for (volatile unsigned i = 0; i < n % 50; i++) {}
    }
    return unused;
}

static call *ours(const char *name) {
    call *f = (call *)dlsym(shim, name);
    if (!f) {
        fprintf(stderr, "no %s\n", name);
        exit(9);
    }
    return f;
}
#define DO(name, ...) ours(#name)(__VA_ARGS__)

static void must(int r, const char *what) {
    if (r) {
        fprintf(stderr, "%s: %s: %d\n", row, what, r);
        exit(8);
    }
}

static u64 in_use(void) {
    size_t free = 0, total = 0;
    must(((call *)dlsym(driver, "cuMemGetInfo_v2"))(&free, &total), "the driver's figures");
    return total - free;
}
static u64 charged(void) {
    size_t free = 0, total = 0;
    change.armed = 0;
    must(DO(cuMemGetInfo_v2, &free, &total), "our figures");
    return total - free;
}
static void check(const char *when) {
    u64 now = charged(), there = in_use();
    if (now < there) {
        printf("%s: %s: the driver has handed out %llu MiB, %llu are charged\n", row, when, (long long)(there / MIB),
               (long long)(now / MIB));
        exit(3);
    }
}

/* ---- arguments ---- */

struct prop {
    int type, handles, where, id;
    u64 security, max;
    char rest[56];
};
struct array {
    u64 w, h, d;
    int format, channels, flags, pad;
};
struct old_array {
    int w, h, a, b, c, d;
};
static const struct prop on_device = {.type = 1, .where = 1}, on_host = {.type = 1, .where = 3};

static u64 alloc(u64 bytes) {
    u64 p = 0;
    must(DO(cuMemAlloc_v2, &p, bytes), "cuMemAlloc_v2");
    return p;
}

static void changing(void *in, const void *good, const void *bad, const void *late, size_t size) {
    change.in = in;
    change.good = good;
    change.bad = bad;
    change.late = late;
    change.size = size;
    put(in, good, size);
}
static void returning(void *out, const void *other, size_t size) {
    change.out = out;
    change.other = other;
    change.out_size = size;
}

/* ---- rows; each makes its call with change.armed set ---- */

static int result;
#define CALL(...)                        \
    do {                                 \
        change.armed = 1;                \
        result = ours(row)(__VA_ARGS__); \
        change.armed = 0;                \
        check("after the call");         \
    } while (0)

static void contexts(void) {
    u64 made = 0, popped;
    returning(&made, &context, 8);
    if (!strcmp(row, "cuCtxCreate_v3"))
        CALL(&made, NULL, 0, 0, 0);
    else if (!strcmp(row, "cuCtxCreate_v4"))
        CALL(&made, NULL, 0, 0);
    else
        CALL(&made, 0, 0);
    if (strcmp(row, "cuDevicePrimaryCtxRetain"))
        DO(cuCtxPopCurrent_v2, &popped);
}

static void addresses(void) { /* the note of a large piece must not come under the address of a little one */
    u64 made = 0, victim, wide, narrow = 512, zero = 0;
    int async = !!strstr(row, "Async");
    unsigned low = 0, little = 0, low_wide = 0, low_narrow = 512;
    if (!strcmp(row, "cuMemAlloc") || !strcmp(row, "cuMemAllocPitch")) {
        must(DO(cuMemAlloc, &little, (unsigned)LITTLE), "cuMemAlloc");
        returning(&low, &little, 4);
        if (!strcmp(row, "cuMemAlloc")) {
            CALL(&low, (unsigned)MUCH);
        } else {
            CALL(&low, &low_wide, 4096, (unsigned)(MUCH / 4096), 4);
            returning(&low_wide, &low_narrow, 4);
            CALL(&low, &low_wide, 4096, (unsigned)(MUCH / 4096), 4);
        }
        DO(cuMemFree, little);
        check("after the other was freed");
        return;
    }
    victim = zero;
    if (async)
        must(DO(cuMemAllocAsync, &victim, LITTLE, NULL), "cuMemAllocAsync");
    else
        victim = alloc(LITTLE);
    returning(&made, &victim, 8);
    if (!strcmp(row, "cuMemAllocPitch_v2")) {
        CALL(&made, &wide, (size_t)4096, (size_t)(MUCH / 4096), 4);
        returning(&wide, &narrow, 8);
        CALL(&made, &wide, (size_t)4096, (size_t)(MUCH / 4096), 4);
    } else if (strstr(row, "FromPool")) {
        u64 pool = 0;
        must(DO(cuDeviceGetMemPool, &pool, 0), "cuDeviceGetMemPool");
        CALL(&made, (size_t)MUCH, pool, NULL);
    } else if (!strcmp(row, "cuMemAllocManaged")) {
        CALL(&made, (size_t)MUCH, 1);
    } else {
        CALL(&made, (size_t)MUCH, NULL);
    }
    if (async)
        DO(cuMemFreeAsync, victim, NULL);
    else
        DO(cuMemFree_v2, victim);
    DO(cuCtxSynchronize);
    check("after the other was freed");
}

/* ---- the state that the shim has asked for changes before the driver sees the call ---- */

static u64 other_pool, stream, captured;
static void under(const char *name, u64 a, u64 b) {
    void *simulated = dlopen("/run/gpu-hook/driver/under", RTLD_NOLOAD | RTLD_LAZY);
    must(((call *)dlsym(simulated, name))(a, b), name);
}
static void change_pool(void) { under("cuDeviceSetMemPool", 0, other_pool); }
static void end_capture(void) { under("cuStreamEndCapture", stream, (u64)&captured); }
static void begin_capture(void) { under("cuStreamBeginCapture_v2", stream, 2); }

static void run_graph(u64 exec);
static u64 instantiated(u64 graph);

static void asynchronous(void) {
    u64 made = 0;
    must(DO(cuMemPoolCreate, &other_pool, &on_device), "cuMemPoolCreate");
    must(DO(cuStreamCreate, &stream, 1), "cuStreamCreate");
    if (seconds) {
        addresses();
        return;
    }
    /* a stream whose capture begins before the driver sees the call: its graph takes memory when it is launched */
    change.also = begin_capture;
    CALL(&made, (size_t)MUCH, stream);
    end_capture();
    run_graph(instantiated(captured));
    under("cuStreamBeginCapture_v2", stream, 2);
    change.also = end_capture;
    CALL(&made, (size_t)MUCH, stream);
    change.also = change_pool;
    CALL(&made, (size_t)MUCH, stream);
    addresses();
}

static void figures(void) {
    u64 a = 0, b = 0, none = 0;
    returning(&a, &none, 8);
    CALL(&a, strstr(row, "Total") ? NULL : (void *)&b);
}

static void pools(void) {
    struct prop props;
    u64 pool = 0, p = 0, device_pool = 0;
    must(DO(cuDeviceGetDefaultMemPool, &device_pool, 0), "cuDeviceGetDefaultMemPool");
    if (!strcmp(row, "cuMemPoolImportFromShareableHandle")) {
        struct prop shared = on_device;
        int fd = -1;
        u64 maker = 0;
        shared.handles = 1;
        must(DO(cuMemPoolCreate, &maker, &shared), "cuMemPoolCreate");
        must(DO(cuMemPoolExportToShareableHandle, &fd, maker, 1, 0), "cuMemPoolExportToShareableHandle");
        returning(&pool, &device_pool, 8);
        CALL(&pool, (u64)fd, 1, 0);
        pool = device_pool;
    } else if (!strcmp(row, "cuMemPoolSetAttribute")) {
        static const u64 most = ~0ull, none = 0;
        u64 value;
        changing(&value, &none, &most, &none, 8);
        pool = device_pool;
        CALL(pool, 4, &value);
    } else {
        changing(&props, &on_device, &on_device, &on_host, sizeof props);
        returning(&pool, &device_pool, 8);
        CALL(&pool, &props);
    }
    if (pool)
        DO(cuMemAllocFromPoolAsync, &p, (size_t)MUCH, pool, NULL);
    check("after an allocation from the pool");
}

static void pool_of_place(void) {
    static const int device[] = {1, 0}, host[] = {2, 0};
    int where[2];
    u64 pool = 0, p = 0, other = 0;
    must(DO(cuDeviceGetDefaultMemPool, &other, 0), "cuDeviceGetDefaultMemPool");
    changing(where, host, device, host, sizeof where);
    returning(&pool, &other, 8);
    CALL(&pool, where, 1);
    if (pool)
        DO(cuMemAllocFromPoolAsync, &p, (size_t)MUCH, pool, NULL);
    check("after an allocation from the pool");
}

static void create(void) {
    struct prop prop;
    u64 made = 0, victim = 0;
    must(DO(cuMemCreate, &victim, (size_t)LITTLE, &on_device, 0ull), "cuMemCreate");
    changing(&prop, &on_host, &on_device, &on_host, 32);
    CALL(&made, (size_t)MUCH, &prop, 0ull);
    changing(&prop, &on_device, &on_device, &on_host, 32);
    returning(&made, &victim, 8);
    CALL(&made, (size_t)MUCH, &prop, 0ull);
    DO(cuMemRelease, victim);
    check("after the other was released");
}

static void exported(void) {
    struct prop shared = on_device;
    int fd = -1, other = -1;
    u64 made = 0;
    shared.handles = 1;
    must(DO(cuMemCreate, &made, (size_t)MUCH, &shared, 0ull), "cuMemCreate");
    returning(&fd, &other, 4);
    CALL(&fd, made, 1, 0ull);
    DO(cuMemRelease, made);
    check("after the release");
}

static int numbers[2]; /* the program's descriptor, and one of another piece */
static void change_number(void) { dup2(numbers[1], numbers[0]); }

static void imported(void) { /* the number stands for another piece by the time that the driver imports it */
    struct prop shared = on_device;
    u64 little = 0, much = 0, made = 0;
    shared.handles = 1;
    must(DO(cuMemCreate, &little, (size_t)LITTLE, &shared, 0ull), "cuMemCreate");
    must(DO(cuMemCreate, &much, (size_t)MUCH, &shared, 0ull), "cuMemCreate");
    must(DO(cuMemExportToShareableHandle, &numbers[0], little, 1, 0ull), "cuMemExportToShareableHandle");
    must(DO(cuMemExportToShareableHandle, &numbers[1], much, 1, 0ull), "cuMemExportToShareableHandle");
    change.also = seconds ? NULL : change_number;
    returning(&made, &little, 8);
    CALL(&made, (u64)numbers[0], 1);
    close(numbers[0]);
    close(numbers[1]);
    DO(cuMemRelease, little);
    DO(cuMemRelease, much);
    check("after the release");
}

static u64 reserve_and_map(u64 handle, u64 bytes) {
    u64 at = 0;
    must(DO(cuMemAddressReserve, &at, bytes, 0ull, 0ull, 0ull), "cuMemAddressReserve");
    must(DO(cuMemMap, at, bytes, 0ull, handle, 0ull), "cuMemMap");
    return at;
}

static void retained(void) {
    u64 made = 0, victim = 0, handle = 0;
    must(DO(cuMemCreate, &victim, (size_t)LITTLE, &on_device, 0ull), "cuMemCreate");
    must(DO(cuMemCreate, &handle, (size_t)MUCH, &on_device, 0ull), "cuMemCreate");
    u64 at = reserve_and_map(handle, MUCH);
    must(DO(cuMemRelease, handle), "cuMemRelease");
    returning(&made, &victim, 8);
    CALL(&made, at);
    DO(cuMemRelease, victim);
    DO(cuMemUnmap, at, (size_t)MUCH);
    check("after the release");
}

static void ranged(void) { /* the simulated driver releases what the descriptor keeps: ask what is charged */
    u64 little = alloc(LITTLE), much = alloc(MUCH);
    int fd = -1, other = -1;
    returning(&fd, &other, 4);
    CALL(&fd, much, (size_t)MUCH, 1, 0ull);
    DO(cuMemFree_v2, little);
    DO(cuMemFree_v2, much);
    if (!seconds && charged() < in_use() + MUCH) {
        printf("%s: freed memory that a descriptor keeps is not charged\n", row);
        exit(3);
    }
}

static void mapped_array(void) {
    static char good[96], late[96];
    char list[96];
    u64 handle = 0;
    must(DO(cuMemCreate, &handle, (size_t)MUCH, &on_device, 0ull), "cuMemCreate");
    *(int *)(good + 56) = 1;
    *(u64 *)(good + 64) = handle;
    *(int *)(late + 56) = 2;
    changing(list, good, good, late, sizeof list);
    CALL(list, 1, NULL);
    DO(cuMemRelease, handle);
    check("after the release");
}

static void arrays(void) {
    int old = !strcmp(row, "cuArrayCreate") || !strcmp(row, "cuArray3DCreate"), solid = !!strstr(row, "3D");
    int levels = !!strstr(row, "Mip");
    static struct array little = {64, 64, 0, 0x20, 4, 0, 0}, much = {4096, 4096, 0, 0x20, 4, 0, 0};
    static struct old_array old_little = {64, 64, 0x20, 4, 0, 0}, old_much = {4096, 4096, 0x20, 4, 0, 0};
    struct array d;
    struct old_array o;
    u64 made = 0, victim = 0;
    if (!solid && !levels) { /* CUDA_ARRAY_DESCRIPTOR has no depth */
        little.d = much.d = 0x20 | 4ull << 32;
    } else {
        old_little = (struct old_array){64, 64, 0, 0x20, 4, 0};
        old_much = (struct old_array){4096, 4096, 0, 0x20, 4, 0};
    }
    struct array plain = {64, 64, 0, 0x20, 4, 0, 0};
    if (levels)
        must(DO(cuMipmappedArrayCreate, &victim, &plain, 1), "cuMipmappedArrayCreate");
    else
        must(DO(cuArray3DCreate_v2, &victim, &plain), "cuArray3DCreate_v2");
    for (int turn = 0; turn < 2; turn++) {
        if (old)
            changing(&o, turn ? &old_much : &old_little, &old_much, &old_little, sizeof o);
        else
            changing(&d, turn ? &much : &little, &much, &little, sizeof d);
        if (turn)
            returning(&made, &victim, 8);
        if (levels)
            CALL(&made, &d, 1);
        else
            CALL(&made, old ? (void *)&o : (void *)&d);
    }
    if (levels)
        DO(cuMipmappedArrayDestroy, victim);
    else
        DO(cuArrayDestroy, victim);
    check("after the other was destroyed");
}

static void external(void) {
    static u64 little[13] = {1, 0, 0, LITTLE}, much[13] = {1, 0, 0, MUCH};
    u64 d[13], made = 0, victim = 0;
    must(DO(cuImportExternalMemory, &victim, little), "cuImportExternalMemory");
    changing(d, little, much, little, sizeof d);
    CALL(&made, d);
    changing(d, much, much, much, sizeof d);
    returning(&made, &victim, 8);
    CALL(&made, d);
    DO(cuDestroyExternalMemory, victim);
    check("after the other was destroyed");
}

/* ---- graphs: an executable graph whose memory node is not known takes memory that nobody charges ---- */

static u64 node_params[15];
static u64 memory_graph(u64 bytes) {
    u64 graph = 0, node = 0;
    memset(node_params, 0, sizeof node_params);
    node_params[0] = 1; /* pinned */
    node_params[1] = 1; /* on device 0 */
    node_params[13] = bytes;
    must(DO(cuGraphCreate, &graph, 0), "cuGraphCreate");
    must(DO(cuGraphAddMemAllocNode, &node, graph, NULL, 0ull, node_params), "cuGraphAddMemAllocNode");
    return graph;
}

static void run_graph(u64 exec) {
    if (!exec)
        return;
    DO(cuGraphLaunch, exec, NULL);
    DO(cuCtxSynchronize);
    check("after the launch");
}

static u64 instantiated(u64 graph) {
    u64 exec = 0;
    must(DO(cuGraphInstantiateWithFlags, &exec, graph, 0ull), "cuGraphInstantiateWithFlags");
    return exec;
}

static void added(void) {
    u64 graph = 0, node = 0;
    must(DO(cuGraphCreate, &graph, 0), "cuGraphCreate");
    if (!strcmp(row, "cuGraphAddMemAllocNode")) {
        static u64 little[15] = {1, 1}, much[15] = {1, 1};
        u64 params[15];
        little[13] = LITTLE;
        much[13] = MUCH;
        changing(params, little, much, little, sizeof params);
        CALL(&node, graph, NULL, 0ull, params);
    } else {
        static u64 empty[32], memory[32];
        u64 params[32];
        *(int *)empty = 5;
        *(int *)memory = 10;
        memory[2] = memory[3] = 1;
        memory[15] = MUCH;
        changing(params, empty, memory, empty, sizeof params);
        if (!strcmp(row, "cuGraphAddNode"))
            CALL(&node, graph, NULL, 0ull, params);
        else
            CALL(&node, graph, NULL, NULL, 0ull, params);
    }
    change.in = NULL;
    if (!seconds)
        must(result, "the node");
    if (result == 0)
        run_graph(instantiated(graph));
}

static void instantiate(void) {
    u64 made = 0, victim = instantiated(memory_graph(LITTLE)), graph = memory_graph(MUCH);
    static u64 later[4] = {0}, upload[4] = {2};
    u64 params[4] = {0};
    if (strstr(row, "WithParams")) {
        changing(params, later, upload, later, sizeof params);
        CALL(&made, graph, params);
        changing(params, later, later, later, sizeof params);
        graph = memory_graph(MUCH);
    }
    returning(&made, &victim, 8);
    if (strstr(row, "WithParams"))
        CALL(&made, graph, params);
    else if (strstr(row, "WithFlags"))
        CALL(&made, graph, 0ull);
    else
        CALL(&made, graph, NULL, NULL, 0ull);
    returning(NULL, NULL, 0);
    run_graph(change.written ? change.written : made);
    DO(cuGraphExecDestroy, victim);
    check("after the other was destroyed");
}

static void updated(void) {
    u64 exec = instantiated(memory_graph(LITTLE)), error = 0, info[8] = {0};
    int said = 0, other = 0;
    u64 graph = memory_graph(LITTLE);
    returning(strstr(row, "_v2") ? (void *)info : (void *)&said, &other, 4);
    if (strstr(row, "_v2"))
        CALL(exec, graph, info);
    else
        CALL(exec, graph, &error, &said);
    run_graph(exec);
}

static void child_replaced(void) {
    static u64 little[32], much[32];
    u64 node = 0, graph = 0, params[32];
    must(DO(cuGraphCreate, &graph, 0), "cuGraphCreate");
    must(DO(cuGraphAddChildGraphNode, &node, graph, NULL, 0ull, memory_graph(LITTLE)), "cuGraphAddChildGraphNode");
    u64 exec = instantiated(graph);
    *(int *)little = *(int *)much = 4;
    little[2] = memory_graph(LITTLE);
    much[2] = memory_graph(MUCH);
    changing(params, little, much, little, sizeof params);
    CALL(exec, node, params);
    change.in = NULL;
    run_graph(exec);
}

static void looked_up(void) {
    void *found = NULL, *other = NULL;
    char name[32];
    int status = 0;
    changing(name, "cuMemGetInfo\0.", "cuMemAlloc\0...", "cuMemGetInfo\0.", 14);
    returning(&found, &other, 8);
    if (!strcmp(row, "cuGetProcAddress"))
        CALL(name, &found, 12000, 0ull);
    else
        CALL(name, &found, 12000, 0ull, &status);
    if (!seconds && result == 0 && found != dlsym(shim, "cuMemAlloc_v2")) {
        printf("%s: the driver's own function\n", row);
        exit(3);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} rows[] = {
    {"cuCtxCreate", contexts},
    {"cuCtxCreate_v2", contexts},
    {"cuCtxCreate_v3", contexts},
    {"cuCtxCreate_v4", contexts},
    {"cuDevicePrimaryCtxRetain", contexts},
    {"cuMemAlloc", addresses},
    {"cuMemAlloc_v2", addresses},
    {"cuMemAllocPitch", addresses},
    {"cuMemAllocPitch_v2", addresses},
    {"cuMemAllocManaged", addresses},
    {"cuMemAllocAsync", asynchronous},
    {"cuMemAllocAsync_ptsz", asynchronous},
    {"cuMemAllocFromPoolAsync", addresses},
    {"cuMemAllocFromPoolAsync_ptsz", addresses},
    {"cuMemGetInfo", figures},
    {"cuMemGetInfo_v2", figures},
    {"cuDeviceTotalMem", figures},
    {"cuDeviceTotalMem_v2", figures},
    {"cuMemPoolCreate", pools},
    {"cuMemGetDefaultMemPool", pool_of_place},
    {"cuMemGetMemPool", pool_of_place},
    {"cuMemPoolSetAttribute", pools},
    {"cuMemPoolImportFromShareableHandle", pools},
    {"cuMemCreate", create},
    {"cuMemExportToShareableHandle", exported},
    {"cuMemImportFromShareableHandle", imported},
    {"cuMemRetainAllocationHandle", retained},
    {"cuMemGetHandleForAddressRange", ranged},
    {"cuMemMapArrayAsync", mapped_array},
    {"cuMemMapArrayAsync_ptsz", mapped_array},
    {"cuArrayCreate", arrays},
    {"cuArrayCreate_v2", arrays},
    {"cuArray3DCreate", arrays},
    {"cuArray3DCreate_v2", arrays},
    {"cuMipmappedArrayCreate", arrays},
    {"cuImportExternalMemory", external},
    {"cuGraphAddMemAllocNode", added},
    {"cuGraphAddNode", added},
    {"cuGraphAddNode_v2", added},
    {"cuGraphAddNode_v3", added},
    {"cuGraphInstantiate", instantiate},
    {"cuGraphInstantiate_v2", instantiate},
    {"cuGraphInstantiateWithFlags", instantiate},
    {"cuGraphInstantiateWithParams", instantiate},
    {"cuGraphInstantiateWithParams_ptsz", instantiate},
    {"cuGraphExecUpdate", updated},
    {"cuGraphExecUpdate_v2", updated},
    {"cuGraphExecNodeSetParams", child_replaced},
    {"cuGetProcAddress", looked_up},
    {"cuGetProcAddress_v2", looked_up},
    {"cuGetProcAddress_v2_ptsz", looked_up},
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void set_up(void) {
    shim = dlopen("libcuda.so.1", RTLD_NOW);
    driver = dlopen("/run/gpu-hook/driver/cuda", RTLD_NOLOAD | RTLD_LAZY);
    must(!shim || !driver, "libraries");
    must(DO(cuInit, 0), "cuInit");
    must(DO(cuCtxCreate_v2, &context, 0, 0), "cuCtxCreate_v2");
    if (!seconds)
        *(void (**)(int))dlsym(driver, "flip_hook") = flip;
}

int main(int argc, char **argv) {
    size_t n = sizeof rows / sizeof *rows, at = 0;
    if (argc < 2) {
        for (; at < n; at++)
            puts(rows[at].name);
        return 0;
    }
    row = argv[1];
    seconds = argc > 2 ? atof(argv[2]) : 0;
    while (at < n && strcmp(rows[at].name, row))
        at++;
    must(at == n, "a row");
    double end = now() + seconds;
    do { /* a process for each turn, as what one turn leaves would fill the GPU */
        pid_t child = fork();
        int status;
        if (!child) {
            pthread_t thread;
            set_up();
            if (seconds)
                pthread_create(&thread, NULL, flip_always, NULL);
            rows[at].run();
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            return status & 127 ? 7 : status >> 8;
    } while (now() < end);
    return 0;
}
