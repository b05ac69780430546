/* Programs of a container, many and short or few and busy.
 * worker short N: N children, at most 8 at once, each allocates and frees a little; prints how many failed.
 * worker busy SEED: allocates and frees at random, by every route, until killed.
 * worker churn SEED: allocates and frees a little all the time, and sometimes nearly all there is, until killed.
 * worker race N: N processes whose threads make their first calls at once, while another one forks; prints how many failed.
 * worker threads SEED STEPS: the same in four threads, STEPS each; then frees all and prints the bytes still in use. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long u64;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, size_t);
int cuMemAllocManaged(u64 *, size_t, unsigned);
int cuMemAllocPitch_v2(u64 *, size_t *, size_t, size_t, unsigned);
int cuMemFree_v2(u64);
int cuMemAllocAsync(u64 *, size_t, void *);
int cuMemAllocAsync_ptsz(u64 *, size_t, void *);
int cuMemAllocFromPoolAsync(u64 *, size_t, void *, void *);
int cuMemFreeAsync(u64, void *);
int cuMemPoolCreate(void **, const int *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
int cuMemCreate(u64 *, size_t, const int *, u64);
int cuMemRelease(u64);
int cuMemMap(u64, size_t, size_t, u64, u64);
int cuMemUnmap(u64, size_t);
int cuArray3DCreate_v2(u64 *, const void *);
int cuArrayDestroy(u64);
int cuMipmappedArrayCreate(u64 *, const void *, unsigned);
int cuMipmappedArrayDestroy(u64);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuDevicePrimaryCtxRelease_v2(int);

#define MIB (1ull << 20)
enum { PLAIN, MANAGED, PITCH, ASYNC, ASYNC_PTSZ, POOL, CREATED, MAPPED, ARRAY, MIPMAP, ROUTES };

static const int device_memory[32] = {1, 0, 1, 0};
static void *pool;

static void start(void) {
    void *ctx;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
        _exit(9);
}

static int little(void) {
    u64 p, q;
    start();
    if (cuMemAlloc_v2(&p, 10 << 20) || cuMemAlloc_v2(&q, 1000))
        return 1;
    return cuMemFree_v2(p); /* q is left to its end */
}

struct held {
    u64 at, where, size;
    int route;
};

static int take(struct held *h, int route, size_t n) {
    struct {
        size_t w, h, d;
        unsigned format, channels, flags;
    } shape = {1024, n / 16384, 0, 0x20, 4, 0};
    size_t pitch;
    static _Atomic u64 address = 0x600000000000ull;
    int r;
    *h = (struct held){0, 0, n, route};
    switch (route) {
    case MANAGED: return cuMemAllocManaged(&h->at, n, 1);
    case PITCH: return cuMemAllocPitch_v2(&h->at, &pitch, 1000, n / 1000, 4);
    case ASYNC: return cuMemAllocAsync(&h->at, n, NULL);
    case ASYNC_PTSZ: return cuMemAllocAsync_ptsz(&h->at, n, NULL);
    case POOL: return cuMemAllocFromPoolAsync(&h->at, n, pool, NULL);
    case CREATED:
    case MAPPED:
        h->size = n = (n + 2 * MIB - 1) & ~(2 * MIB - 1);
        if ((r = cuMemCreate(&h->at, n, device_memory, 0)) || route == CREATED)
            return r;
        h->where = address += 64 * MIB;
        return (r = cuMemMap(h->where, n, 0, h->at, 0)) ? r : cuMemRelease(h->at);
    case ARRAY: return cuArray3DCreate_v2(&h->at, &shape);
    case MIPMAP: return cuMipmappedArrayCreate(&h->at, &shape, 4);
    default: return cuMemAlloc_v2(&h->at, n);
    }
}

static int give(struct held *h) {
    u64 at = h->at;
    h->at = 0;
    switch (h->route) {
    case ASYNC:
    case ASYNC_PTSZ:
    case POOL: return cuMemFreeAsync(at, NULL);
    case CREATED: return cuMemRelease(at);
    case MAPPED: return cuMemUnmap(h->where, h->size);
    case ARRAY: return cuArrayDestroy(at);
    case MIPMAP: return cuMipmappedArrayDestroy(at);
    default: return cuMemFree_v2(at);
    }
}

static int work(unsigned seed, long steps) {
    struct held held[48];
    memset(held, 0, sizeof held);
    start();
    for (long n = 0; n != steps; n++) {
        struct held *h = &held[rand_r(&seed) % 48];
        int r;
        if (h->at)
            r = give(h);
        else if ((r = take(h, rand_r(&seed) % ROUTES, (size_t)(1 + rand_r(&seed) % 40) << 20)) == 2)
            r = h->at = 0; /* refused: out of memory is the only way to be */
        if (r)
            return 10 + h->route;
        if (rand_r(&seed) % 100 == 0)
            cuStreamSynchronize(NULL);
    }
    for (int i = 0; i < 48; i++)
        if (held[i].at && give(&held[i]))
            return 7;
    return 0;
}

static int churn(unsigned seed) {
    u64 held[8] = {0}, most;
    start();
    for (;;) {
        for (int n = 0; n < 3000; n++) {
            u64 *h = &held[rand_r(&seed) % 8], at = *h;
            *h = 0;
            int r = at ? cuMemFree_v2(at) : cuMemAlloc_v2(h, (size_t)(1 + rand_r(&seed) % 4096) << 10);
            if (r && r != 2)
                return 8;
        }
        if (!cuMemAlloc_v2(&most, (size_t)(850 + rand_r(&seed) % 150) << 20) && cuMemFree_v2(most))
            return 8;
    }
}

static _Atomic int failures;

static void *first_calls(void *unused) {
    u64 p;
    start();
    failures += cuMemAlloc_v2(&p, MIB) != 0;
    return unused;
}

/* A process with four threads; it forks children in the middle of their first calls, which use the GPU as well. */
static int race(unsigned seed) {
    pthread_t id[4];
    int status;
    for (int i = 0; i < 4; i++)
        pthread_create(&id[i], NULL, first_calls, NULL);
    for (int i = 0; i < 3; i++) {
        usleep((useconds_t)rand_r(&seed) % 300);
        if (!fork())
            _exit(i ? little() : 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(id[i], NULL);
    while (wait(&status) > 0)
        failures += WIFSIGNALED(status);
    if (seed % 2)
        kill(getpid(), SIGKILL);
    return failures;
}

struct job {
    unsigned seed;
    long steps;
    int result;
};
static void *thread(void *with) {
    struct job *j = with;
    j->result = work(j->seed, j->steps);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "short") || !strcmp(argv[1], "race")) {
        int failed = 0, status, running = 0, racing = argv[1][0] == 'r';
        for (int i = 0; i < atoi(argv[2]); i++) {
            if (running == 8 && wait(&status) > 0) {
                failed += WIFEXITED(status) ? WEXITSTATUS(status) != 0 : !racing;
                running--;
            }
            if (!fork())
                _exit(racing ? race((unsigned)i) : little());
            running++;
        }
        while (wait(&status) > 0)
            failed += WIFEXITED(status) ? WEXITSTATUS(status) != 0 : !racing;
        printf("%d\n", failed);
        return failed != 0;
    }
    start();
    if (cuMemPoolCreate(&pool, device_memory))
        return 3;
    if (!strcmp(argv[1], "busy"))
        return work((unsigned)atoi(argv[2]), -1);
    if (!strcmp(argv[1], "churn"))
        return churn((unsigned)atoi(argv[2]));
    pthread_t id[4];
    struct job job[4];
    for (unsigned i = 0; i < 4; i++) {
        job[i] = (struct job){(unsigned)atoi(argv[2]) + i, atol(argv[3]), 0};
        pthread_create(&id[i], NULL, thread, &job[i]);
    }
    int result = 0;
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        result |= job[i].result;
    }
    size_t f, t;
    cuCtxSynchronize();
    if (result || cuMemGetInfo_v2(&f, &t))
        return result | 1;
    printf("%zu\n", t - f);
    return 0;
}
