/* gpu-probe: a small program of the CUDA driver API for demos and tests. It runs on any libcuda, real or simulated.
 *
 * usage: gpu-probe COMMAND [ARGUMENT] ...      does the commands in order and prints one line for each
 *        gpu-probe -                           reads the commands from standard input
 *   info             every device: name, total and free memory
 *   device N         use device N from now on (default 0)
 *   alloc MIB        allocate MIB mebibytes and write to the first and last byte
 *   fill MIB         allocate pieces of MIB mebibytes until one is refused
 *   free             free everything allocated so far
 *   launch US COUNT  launch COUNT kernels that each keep the GPU busy for US microseconds, and wait for them
 *   run US SECONDS   keep launching kernels of US microseconds; prints its part of the GPU, in total and per second
 *   bench COUNT      prints what launch, alloc+free and cuMemGetInfo cost on the host, in ns per call
 *   fork             go on in a forked child; this process exits. The child cannot use the GPU, but keeps everything
 *   hold SECONDS     keep everything for a while
 *   pause            keep everything until standard input ends
 * exit status: 0 every command succeeded; 1 a call was refused; 2 usage; 3 no libcuda.so.1 or no device
 *
 * Built three times: the plain one opens libcuda.so.1 with dlopen; gpu-probe-linked (-DLINKED) is linked against it;
 * gpu-probe-static is a static program with the simulated driver in itself. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

#define FUNCTIONS                                                                                                    \
    F(cuInit, (unsigned flags))                                                                                      \
    F(cuDeviceGetCount, (int *count))                                                                                \
    F(cuDeviceGet, (int *device, int ordinal))                                                                       \
    F(cuDeviceGetName, (char *name, int length, int device))                                                         \
    F(cuDevicePrimaryCtxRetain, (void **ctx, int device))                                                            \
    F(cuDevicePrimaryCtxRelease_v2, (int device))                                                                    \
    F(cuCtxSetCurrent, (void *ctx))                                                                                  \
    F(cuCtxSynchronize, (void))                                                                                      \
    F(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total))                                                          \
    F(cuMemAlloc_v2, (CUdeviceptr *address, size_t bytes))                                                           \
    F(cuMemFree_v2, (CUdeviceptr address))                                                                           \
    F(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))                                             \
    F(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                                                   \
    F(cuModuleLoadData, (void **module, const void *image))                                                          \
    F(cuModuleGetFunction, (void **function, void *module, const char *name))                                        \
    F(cuLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                       unsigned shared, void *stream, void **params, void **extra))                                  \
    F(cuEventCreate, (void **event, unsigned flags))                                                                 \
    F(cuEventRecord, (void *event, void *stream))                                                                    \
    F(cuEventSynchronize, (void *event))                                                                             \
    F(cuGetErrorName, (CUresult error, const char **name))

#ifdef LINKED
#define F(name, parameters) extern CUresult name parameters;
FUNCTIONS
#undef F
static int open_driver(void) { return 0; }
#else
#define F(name, parameters) static CUresult(*name) parameters;
FUNCTIONS
#undef F
static int open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "gpu-probe: %s\n", dlerror());
        return 3;
    }
#define F(name, parameters)                                            \
    *(void **)&name = dlsym(library, #name);                           \
    if (!name) {                                                       \
        fprintf(stderr, "gpu-probe: libcuda.so.1 has no %s\n", #name); \
        return 3;                                                      \
    }
    FUNCTIONS
#undef F
    return 0;
}
#endif

#define MIB (1ull << 20)
#define MOST 65536

static CUdeviceptr held[MOST];
static int count, device, status;
static void *context;

static const char *error(CUresult code) {
    const char *name = NULL;
    static char number[32];
    if (cuGetErrorName(code, &name) == 0 && name)
        return name;
    snprintf(number, sizeof number, "error %d", code);
    return number;
}

static int refused(const char *what, CUresult code) {
    if (code) {
        printf("%s: %s\n", what, error(code));
        status = 1;
    }
    return code;
}

static int use_device(void) {
    if (context)
        return 0;
    int handle;
    return refused("cuDeviceGet", cuDeviceGet(&handle, device)) ||
           refused("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, handle)) ||
           refused("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

static void info(void) {
    int devices = 0;
    if (refused("cuDeviceGetCount", cuDeviceGetCount(&devices)))
        return;
    printf("%d device%s\n", devices, devices == 1 ? "" : "s");
    for (int i = 0; i < devices; i++) {
        char name[128] = "";
        size_t free_bytes = 0, total = 0;
        void *ctx;
        if (refused("cuDeviceGetName", cuDeviceGetName(name, sizeof name, i)) ||
            refused("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&ctx, i)))
            return;
        cuCtxSetCurrent(ctx);
        CUresult r = cuMemGetInfo_v2(&free_bytes, &total);
        cuCtxSetCurrent(context);
        cuDevicePrimaryCtxRelease_v2(i);
        if (refused("cuMemGetInfo", r))
            return;
        printf("device %d: %s, %llu MiB total, %llu MiB free\n", i, name, total / MIB, free_bytes / MIB);
    }
}

static CUresult allocate(unsigned long long mib) {
    unsigned char byte = 0x5a, back = 0;
    CUdeviceptr address = 0;
    CUresult r = cuMemAlloc_v2(&address, mib * MIB);
    if (r)
        return r;
    held[count++] = address;
    for (int end = 0; end < 2; end++) {
        CUdeviceptr at = address + (end ? mib * MIB - 1 : 0);
        if ((r = cuMemcpyHtoD_v2(at, &byte, 1)) || (r = cuMemcpyDtoH_v2(&back, at, 1)))
            return r;
    }
    return back == byte ? 0 : 999;
}

static void alloc(unsigned long long mib) {
    CUresult r = count < MOST ? allocate(mib) : 2;
    printf("alloc %llu MiB: %s\n", mib, r ? error(r) : "ok");
    if (r)
        status = 1;
}

static void fill(unsigned long long mib) {
    unsigned long long all = 0;
    CUresult r = 0;
    while (count < MOST && !(r = allocate(mib)))
        all += mib;
    printf("fill: %llu MiB allocated in pieces of %llu, then %s\n", all, mib, r ? error(r) : "no more pieces");
}

static void free_all(void) {
    while (count)
        if (refused("cuMemFree", cuMemFree_v2(held[--count])))
            return;
    printf("free: ok\n");
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A kernel that spins until the GPU's clock has advanced by its parameter. The simulated driver reads the PTX comment. */
static const char KERNEL[] = ".version 6.3\n.target %s\n.address_size 64\n// sim_us=%lu\n"
                             ".visible .entry work(.param .u64 ns) {\n"
                             ".reg .u64 %%t<4>;\n.reg .pred %%p;\n"
                             "mov.u64 %%t0, %%globaltimer;\nld.param.u64 %%t1, [ns];\n"
                             "again: mov.u64 %%t2, %%globaltimer;\nsub.u64 %%t3, %%t2, %%t0;\n"
                             "setp.lt.u64 %%p, %%t3, %%t1;\n@%%p bra again;\nret;\n}\n";

static void *kernel(unsigned long us) {
    /* Drivers differ in the oldest architecture that they compile for: CUDA 13 dropped those before sm_75. */
    static const char *const targets[] = {"sm_75", "sm_50", "sm_30"};
    char image[640];
    void *module, *function = NULL;
    CUresult r = 0;
    for (unsigned i = 0; i < sizeof targets / sizeof *targets; i++) {
        snprintf(image, sizeof image, KERNEL, targets[i], us);
        if (!(r = cuModuleLoadData(&module, image)) && !(r = cuModuleGetFunction(&function, module, "work")))
            return function;
    }
    refused("cuModuleLoadData", r);
    return NULL;
}

static CUresult start(void *function, unsigned long us) {
    unsigned long long ns = us * 1000ull;
    void *parameters[] = {&ns};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

static void launch(unsigned long us, unsigned long n) {
    void *function = kernel(us);
    if (!function)
        return;
    double begin = seconds();
    for (unsigned long i = 0; i < n; i++)
        if (refused("cuLaunchKernel", start(function, us)))
            return;
    if (refused("cuCtxSynchronize", cuCtxSynchronize()))
        return;
    double ms = (seconds() - begin) * 1e3;
    printf("launch %lu x %lu us: %.1f ms (alone it takes %.1f ms)\n", n, us, ms, (double)us * (double)n / 1e3);
}

/* Two batches of about 5 ms are always queued, so the GPU is never idle for lack of a launch; only finished work counts.
 * Seconds are of wall-clock time, so that the lines of several containers can be compared. */
static void run(unsigned long us, double length) {
    void *function = kernel(us), *event[2];
    unsigned long batch = us < 5000 ? 5000 / us : 1, n = 0, done = 0, then = 0;
    if (!function || refused("cuEventCreate", cuEventCreate(&event[0], 2)) ||
        refused("cuEventCreate", cuEventCreate(&event[1], 2)))
        return;
    double begin = seconds(), at = begin, mark = begin;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    double tick = begin + 1 - (double)wall.tv_nsec / 1e9;
    printf("run:");
    for (; at < begin + length; n++) {
        for (unsigned long i = 0; i < batch; i++)
            if (refused("cuLaunchKernel", start(function, us)))
                return;
        if (refused("cuEventRecord", cuEventRecord(event[n & 1], NULL)) ||
            (n && refused("cuEventSynchronize", cuEventSynchronize(event[~n & 1]))))
            return;
        done = n * batch;
        at = seconds();
        if (at >= tick) {
            printf(" %.0f%%", (double)((done - then) * us) / (at - mark) / 1e4);
            fflush(stdout);
            mark = at, then = done, tick += 1;
        }
    }
    printf("; %lu kernels of %lu us in %.1f s, %.0f %% of the GPU\n", done, us, at - begin,
           (double)(done * us) / (at - begin) / 1e4);
}

/* The batches are far smaller than the launch queue, so no call waits for the GPU. */
static void bench(unsigned long n) {
    void *function = kernel(0);
    double launches = 0, allocs = 0, infos = 0, begin;
    size_t free_bytes, total;
    CUdeviceptr address;
    for (unsigned long done = 0; function && done < n; done += 100) {
        begin = seconds();
        for (int i = 0; i < 100; i++)
            if (refused("cuLaunchKernel", start(function, 0)))
                return;
        launches += seconds() - begin;
        if (refused("cuCtxSynchronize", cuCtxSynchronize()))
            return;
        begin = seconds();
        for (int i = 0; i < 100; i++)
            if (refused("cuMemAlloc", cuMemAlloc_v2(&address, 1 << 16)) || refused("cuMemFree", cuMemFree_v2(address)))
                return;
        allocs += seconds() - begin;
        begin = seconds();
        for (int i = 0; i < 100; i++)
            cuMemGetInfo_v2(&free_bytes, &total);
        infos += seconds() - begin;
    }
    n = (n + 99) / 100 * 100;
    if (function)
        printf("bench: launch %.0f ns, alloc+free %.0f ns, meminfo %.0f ns\n", launches / (double)n * 1e9,
               allocs / (double)n * 1e9, infos / (double)n * 1e9);
}

/* Does one command; next() gives its arguments, one by one. Returns the exit status; 2 for an unknown command. */
static int command(const char *word, char *(*next)(void)) {
    char *a = NULL, *b = NULL;
    int takes = !strcmp(word, "launch") || !strcmp(word, "run")                            ? 2
                : strchr("abdfh", word[0]) && strcmp(word, "free") && strcmp(word, "fork") ? 1
                                                                                           : 0;
    if ((takes > 0 && !(a = next())) || (takes > 1 && !(b = next())))
        return 2;
    if (!strcmp(word, "device")) {
        device = atoi(a);
        context = NULL;
        count = 0;
        return 0;
    }
    if (!strcmp(word, "info")) {
        info();
    } else if (!strcmp(word, "hold")) {
        printf("hold %s s\n", a);
        fflush(stdout);
        struct timespec t = {.tv_sec = (time_t)atof(a), .tv_nsec = (long)((atof(a) - (time_t)atof(a)) * 1e9)};
        nanosleep(&t, NULL);
    } else if (!strcmp(word, "fork")) {
        fflush(stdout);
        if (fork())
            _exit(0);
        printf("fork: child\n");
    } else if (!strcmp(word, "pause")) {
        char c;
        printf("pause\n");
        fflush(stdout);
        while (read(0, &c, 1) > 0)
            ;
    } else if (use_device()) {
        return 0;
    } else if (!strcmp(word, "alloc")) {
        alloc(strtoull(a, NULL, 10));
    } else if (!strcmp(word, "fill")) {
        fill(strtoull(a, NULL, 10));
    } else if (!strcmp(word, "free")) {
        free_all();
    } else if (!strcmp(word, "launch")) {
        launch(strtoul(a, NULL, 10), strtoul(b, NULL, 10));
    } else if (!strcmp(word, "run") && atoi(a) > 0) {
        run(strtoul(a, NULL, 10), atof(b));
    } else if (!strcmp(word, "bench")) {
        bench(strtoul(a, NULL, 10));
    } else {
        return 2;
    }
    fflush(stdout);
    return 0;
}

static char **words;
static char *next_argument(void) { return *words ? *words++ : NULL; }

static char *next_input(void) {
    static char word[2][64]; /* a command may need two at once */
    static int turn;
    turn = !turn;
    return scanf("%63s", word[turn]) == 1 ? word[turn] : NULL;
}

int main(int argc, char **argv) {
    int asked = argc > 1 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"));
    if (argc < 2 || asked) {
        fprintf(asked ? stdout : stderr,
                "usage: gpu-probe info | device N | alloc MIB | fill MIB | free | launch US COUNT | "
                "run US SECONDS | bench COUNT | "
                "fork | hold SECONDS | pause ...\n       gpu-probe -   (commands from standard input)\n");
        return asked ? 0 : 2;
    }
    int r = open_driver();
    if (r)
        return r;
    if (refused("cuInit", cuInit(0)))
        return 3;
    words = argv + 1;
    char *(*next)(void) = strcmp(argv[1], "-") ? next_argument : next_input;
    char word[64];
    for (char *w; (w = next());) {
        snprintf(word, sizeof word, "%s", w);
        if (command(word, next)) {
            fprintf(stderr, "gpu-probe: cannot do \"%s\" here\n", word);
            return 2;
        }
    }
    return status;
}
