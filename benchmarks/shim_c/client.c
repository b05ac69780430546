/* Times calls through the shim and of the bare driver, in turns, in one process: client ROUNDS CALLS LIVE.
 * Prints one line per call: name, bare ns, ns through the shim (lower deciles over the rounds).
 *
 * client streams ROUNDS CALLS: the same of stream-ordered calls, over a driver that has them.
 *
 * client crowd: one of several processes that do the same at the same time. Says `ready`, then reads lines
 * `ours|bare BEGIN END` (CLOCK_MONOTONIC ns), does alloc and free in that time and prints how many pairs, and the CPU time
 * that they took. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long u64;
struct api {
    int (*init)(unsigned);
    int (*alloc)(u64 *, size_t);
    int (*free)(u64);
    int (*info)(size_t *, size_t *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*alloc_async)(u64 *, size_t, void *);
    int (*free_async)(u64, void *);
    int (*synchronize)(void *);
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* whatever else runs on the machine */
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static struct api load(const char *path) {
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    struct api a = {(int (*)(unsigned))dlsym(h, "cuInit"), (int (*)(u64 *, size_t))dlsym(h, "cuMemAlloc_v2"),
                    (int (*)(u64))dlsym(h, "cuMemFree_v2"), (int (*)(size_t *, size_t *))dlsym(h, "cuMemGetInfo_v2"),
                    NULL};
    *(void **)&a.launch = dlsym(h, "cuLaunchKernel");
    *(void **)&a.alloc_async = dlsym(h, "cuMemAllocAsync");
    *(void **)&a.free_async = dlsym(h, "cuMemFreeAsync");
    *(void **)&a.synchronize = dlsym(h, "cuStreamSynchronize");
    return a;
}

static int failed;
static double launches(const struct api *a, int n) {
    double t = now();
    for (int i = 0; i < n; i++)
        failed |= a->launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return (now() - t) / n;
}
static double pairs(const struct api *a, int n) {
    u64 p;
    double t = now();
    for (int i = 0; i < n; i++) {
        failed |= a->alloc(&p, 4096);
        failed |= a->free(p);
    }
    return (now() - t) / n;
}
static double infos(const struct api *a, int n) {
    size_t f, all;
    double t = now();
    for (int i = 0; i < n; i++)
        failed |= a->info(&f, &all);
    return (now() - t) / n;
}
static double pool_pairs(const struct api *a, int n) {
    u64 p;
    double t = now();
    for (int i = 0; i < n; i++) {
        failed |= a->alloc_async(&p, 4096, NULL);
        failed |= a->free_async(p, NULL);
    }
    return (now() - t) / n;
}
static double synchronizations(const struct api *a, int n) {
    double t = now();
    for (int i = 0; i < n; i++)
        failed |= a->synchronize(NULL);
    return (now() - t) / n;
}

static int order(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

static void compare(const char *name, double (*what)(const struct api *, int), const struct api *bare,
                    const struct api *ours, int rounds, int calls) {
    double *b = calloc((size_t)rounds, sizeof *b), *o = calloc((size_t)rounds, sizeof *o);
    what(ours, calls);
    for (int i = 0; i < rounds; i++) {
        b[i] = what(bare, calls);
        o[i] = what(ours, calls);
    }
    qsort(b, (size_t)rounds, sizeof *b, order);
    qsort(o, (size_t)rounds, sizeof *o, order);
    /* The lower decile: what a call costs; the rest is what else the machine does. */
    printf("%s %.2f %.2f\n", name, b[rounds / 10], o[rounds / 10]);
    free(b);
    free(o);
}

static long long clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* The mean, not a decile: the pairs that met another process are what is asked for. */
static int crowd(void) {
    enum { AT_ONCE = 200 };
    struct api ours = load("libcuda.so.1"), bare = load("/run/gpu-hook/driver/cuda");
    char which[8];
    long long begin, end;
    ours.init(0);
    pairs(&ours, AT_ONCE);
    printf("ready\n");
    for (fflush(stdout); scanf("%7s %lld %lld", which, &begin, &end) == 3; fflush(stdout)) {
        const struct api *api = strcmp(which, "ours") ? &bare : &ours;
        struct timespec t = {begin / 1000000000, begin % 1000000000};
        long done = 0;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
        double from = now();
        for (; clock_ns() < end; done += AT_ONCE)
            pairs(api, AT_ONCE);
        printf("%ld %.0f\n", done, now() - from);
    }
    return failed;
}

/* With memory in the pool all the time, as programs have. */
static int streams(int rounds, int calls) {
    struct api ours = load("libcuda.so.1"), bare;
    int (*retain)(void **, int), (*set_current)(void *);
    void *context, *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    u64 p;
    *(void **)&retain = dlsym(h, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(h, "cuCtxSetCurrent");
    if (ours.init(0) || retain(&context, 0) || set_current(context) || ours.alloc_async(&p, 4096, NULL))
        return 1;
    bare = load("/run/gpu-hook/driver/cuda");
    compare("pool", pool_pairs, &bare, &ours, rounds, calls);
    ours.synchronize(NULL);
    compare("synchronize", synchronizations, &bare, &ours, rounds, calls);
    return failed;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "crowd"))
        return crowd();
    if (argc > 3 && !strcmp(argv[1], "streams"))
        return streams(atoi(argv[2]), atoi(argv[3]));
    int rounds = argc > 1 ? atoi(argv[1]) : 11, calls = argc > 2 ? atoi(argv[2]) : 20000;
    int live = argc > 3 ? atoi(argv[3]) : 1;
    u64 p;
    double start = now();
    struct api ours = load("libcuda.so.1");
    ours.init(0);
    double loaded = now();
    failed |= ours.alloc(&p, 512);
    double first = now() - loaded;
    struct api bare = load("/run/gpu-hook/driver/cuda");
    for (int i = 1; i < live; i++)
        failed |= ours.alloc(&p, 512);
    printf("load %.0f %.0f\n", 0.0, loaded - start);
    printf("first %.0f %.0f\n", 0.0, first);
    compare("launch", launches, &bare, &ours, rounds, calls);
    compare("alloc_free", pairs, &bare, &ours, rounds, calls);
    compare("meminfo", infos, &bare, &ours, rounds, calls);
    return failed;
}
