/* Programs of a container, many and short or few and busy.
 * worker short N: N children, at most 8 at once, each allocates and frees a little; prints how many failed.
 * worker busy SEED: allocates and frees at random until killed. */
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
int cuMemFree_v2(u64);
int cuMemAllocAsync(u64 *, size_t, void *);
int cuMemFreeAsync(u64, void *);
int cuStreamSynchronize(void *);

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

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "short")) {
        int failed = 0, status, running = 0;
        for (int i = 0; i < atoi(argv[2]); i++) {
            if (running == 8 && wait(&status) > 0) {
                failed += status != 0;
                running--;
            }
            if (!fork())
                _exit(little());
            running++;
        }
        while (wait(&status) > 0)
            failed += status != 0;
        printf("%d\n", failed);
        return failed != 0;
    }
    srand((unsigned)atoi(argv[2]));
    start();
    struct {
        u64 at;
        int pooled;
    } held[64] = {{0, 0}};
    for (;;) {
        int i = rand() % 64;
        if (held[i].at) {
            if (held[i].pooled ? cuMemFreeAsync(held[i].at, NULL) : cuMemFree_v2(held[i].at))
                return 5;
            held[i].at = 0;
        } else {
            size_t n = (size_t)(1 + rand() % 40) << 20;
            held[i].pooled = rand() % 4 == 0;
            int r = held[i].pooled ? cuMemAllocAsync(&held[i].at, n, NULL) : cuMemAlloc_v2(&held[i].at, n);
            if (r == 2)
                held[i].at = 0;
            else if (r)
                return 6;
        }
        if (rand() % 100 == 0)
            cuStreamSynchronize(NULL);
    }
}
