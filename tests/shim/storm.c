/* Processes that allocate, free and fork at random are killed at random; the account page must equal the simulated GPU.
 *
 * storm KILLS SEED GPU_FILE: prints how many were killed, how many times the figures were compared, and how many of these
 * times forked children kept memory of killed parents. Exits with 1 and a line if the figures differ.
 * storm worker SEED: one of the processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oci_hook/shim/pages/account_page.h"
#include "simulator/driver/gpu.h"

typedef unsigned long long u64;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, size_t);
int cuMemFree_v2(u64);

#define MIB (1ull << 20)
#define LIMIT (1024 * MIB)
#define WORKERS 4
#define EVERY 50 /* kills between two comparisons */
#define PIPE 9   /* workers write the pids of their children there */

static const struct gh_account_page *page;
static const struct gpu_file *gpu;
static int gpu_fd, children[2];
static char *self;

static void fail(const char *what, u64 a, u64 b) {
    fprintf(stderr, "%s: %llu, %llu\n", what, a, b);
    exit(1);
}

static int start(void) {
    void *ctx;
    int r = cuInit(0);
    r = r ? r : cuDevicePrimaryCtxRetain(&ctx, 0);
    return r ? r : cuCtxSetCurrent(ctx);
}

/* ---- the processes ---- */

static void child(unsigned seed) {
    pid_t me = getpid();
    if (write(PIPE, &me, sizeof me) != sizeof me)
        _exit(1);
    switch (seed % 5) {
    case 0: _exit(0);
    case 1:
        for (int fd = 3; fd < 64; fd++)
            close(fd);
        break;
    case 2: usleep(seed % 5000); _exit(0);
    case 3: execl("/bin/sleep", "sleep", "600", NULL); _exit(1);
    default: break;
    }
    for (;;)
        pause();
}

static int work(unsigned seed) {
    u64 held[16] = {0};
    if (start())
        return 0; /* the limit has no room for another context */
    for (;;) {
        u64 *h = &held[rand_r(&seed) % 16], at = *h;
        *h = 0;
        if (at)
            cuMemFree_v2(at);
        else if (cuMemAlloc_v2(h, (size_t)(1 + rand_r(&seed) % (64 << 10)) << 10))
            *h = 0;
        if (rand_r(&seed) % 200 == 0 && !fork())
            child((unsigned)rand_r(&seed));
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
}

/* ---- the storm ---- */

static pid_t spawn(unsigned seed) {
    char number[16];
    snprintf(number, sizeof number, "%u", seed);
    pid_t pid = fork();
    if (pid)
        return pid;
    dup2(children[1], PIPE);
    execl(self, self, "worker", number, NULL);
    _exit(127);
}

static u64 counted(void) {
    u64 sum = 0;
    for (int slot = 0; slot < GPU_SLOTS; slot++) {
        struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_SLOT + slot, .l_len = 1};
        u64 used = atomic_load(&gpu->slot[slot].used);
        if (used && (fcntl(gpu_fd, F_GETLK, &l) || l.l_type != F_UNLCK))
            sum += used;
    }
    return sum;
}

static u64 swept_total(void) {
    u64 p;
    if (!cuMemAlloc_v2(&p, LIMIT)) /* is refused, and so sweeps */
        fail("the whole limit was granted", 0, 0);
    return gh_word_value(atomic_load(&page->gpu[0].total)) << GH_UNIT_SHIFT;
}

/* Kills all that were ever forked; they are our children once their parents have gone. */
static void end_all(const pid_t *worker) {
    pid_t pid;
    for (int i = 0; i < WORKERS; i++)
        kill(worker[i], SIGKILL);
    for (;;) {
        while (read(children[0], &pid, sizeof pid) == sizeof pid)
            kill(pid, SIGKILL);
        pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD)
            return;
        if (!pid)
            usleep(200);
    }
}

/* All workers are dead: with children that keep memory, then without. Returns whether there were some. */
static int compare(pid_t *worker, u64 own) {
    for (int i = 0; i < WORKERS; i++) {
        kill(worker[i], SIGKILL);
        waitpid(worker[i], NULL, 0);
    }
    u64 used = counted(), total = swept_total();
    if (used > total || total > LIMIT) /* what a process had charged and not allocated yet counts, too */
        fail("GPU and account page, with children", used, total);
    end_all(worker);
    u64 now = counted(), left = swept_total();
    if (now != own || left != own)
        fail("GPU and account page", now, left);
    for (unsigned slot = 1, n = 0; slot < GH_ACCOUNT_SLOTS; slot++)
        if (atomic_load(&page->owner[slot]) && n++)
            fail("slots in use", n, slot);
    return used > own;
}

int main(int argc, char **argv) {
    if (argc == 3)
        return work((unsigned)atoi(argv[2]));
    if (argc != 4)
        return 2;
    unsigned kills = (unsigned)atoi(argv[1]), seed = (unsigned)atoi(argv[2]), done = 0, compared = 0, kept = 0;
    pid_t worker[WORKERS];
    self = argv[0];
    int fd = open("/run/gpu-hook/account/page", O_RDONLY | O_CLOEXEC);
    gpu_fd = open(argv[3], O_RDWR | O_CLOEXEC); /* before the driver: see gpu.h, record locks */
    gpu = mmap(NULL, sizeof *gpu, PROT_READ, MAP_SHARED, gpu_fd, 0);
    if (start() || pipe2(children, O_CLOEXEC | O_NONBLOCK) || prctl(PR_SET_CHILD_SUBREAPER, 1))
        return 3;
    fd = fd < 0 ? open("/run/gpu-hook/account/page", O_RDONLY | O_CLOEXEC) : fd;
    page = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED || gpu == MAP_FAILED)
        return 4;
    u64 own = counted();
    while (done < kills) {
        for (int i = 0; i < WORKERS; i++)
            worker[i] = spawn((unsigned)rand_r(&seed));
        for (int n = 0; n < EVERY && done < kills; n++, done++) {
            int i = rand_r(&seed) % WORKERS;
            usleep((unsigned)rand_r(&seed) % 8000);
            kill(worker[i], SIGKILL);
            waitpid(worker[i], NULL, 0);
            worker[i] = spawn((unsigned)rand_r(&seed));
        }
        compared++;
        kept += (unsigned)compare(worker, own);
    }
    printf("%u %u %u\n", done, compared, kept);
    return 0;
}
