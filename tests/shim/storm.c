/* Processes that allocate and free at random, with threads or with forked children, are killed at random; the account page
 * must equal the simulated GPU, and after each kill the GPU must have no more than the limit.
 *
 * storm KILLS SEED GPU_FILE: prints how many were killed, how many times the figures were compared, and how many of these
 * times forked children kept memory of killed parents. Exits with 1 and a line if the figures differ.
 * storm worker SEED: one of the processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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
#define THREADS 3 /* of a worker, besides its first one */
#define SLOW (16 * MIB)
#define EVERY 50 /* kills between two comparisons */
#define PIPE 9   /* workers write the pids of their children there */

static const struct gh_account_page *page;
static const struct gpu_file *gpu;
static int gpu_fd, children[2];
static char *self;
static pid_t worker[WORKERS];

static void end_all(void);

static void fail(const char *what, u64 a, u64 b) {
    fprintf(stderr, "%s: %llu, %llu\n", what, a, b);
    end_all();
    exit(1);
}

static void *context;

static int start(void) {
    int r = cuInit(0);
    r = r ? r : cuDevicePrimaryCtxRetain(&context, 0);
    return r ? r : cuCtxSetCurrent(context);
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

static bool has_threads;

static void *work(void *given) {
    unsigned seed = *(unsigned *)given;
    u64 held[16] = {0};
    cuCtxSetCurrent(context);
    for (;;) {
        u64 *h = &held[rand_r(&seed) % 16], at = *h;
        *h = 0;
        if (at)
            cuMemFree_v2(at);
        else if (cuMemAlloc_v2(h, (size_t)(1 + rand_r(&seed) % (64 << 10)) << 10))
            *h = 0;
        if (!has_threads && rand_r(&seed) % 200 == 0 && !fork())
            child((unsigned)rand_r(&seed));
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    return NULL;
}

/* By a file that is closed after the driver's. */
static void take_long_to_release(void) {
    int fd = (int)syscall(SYS_memfd_create, "slow", 1 /* MFD_CLOEXEC */);
    if (fd < 0 || ftruncate(fd, SLOW))
        exit(5);
    munmap(mmap(NULL, SLOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0), SLOW);
}

static int work_in_threads(unsigned seed) {
    static unsigned seeds[1 + THREADS];
    pthread_t thread;
    if (start())
        return 0; /* the limit has no room for another context */
    take_long_to_release();
    has_threads = seed % 2;
    for (unsigned i = 0; i <= (has_threads ? THREADS : 0); i++) {
        seeds[i] = seed * (1 + THREADS) + i;
        if (i)
            pthread_create(&thread, NULL, work, &seeds[i]);
    }
    work(&seeds[0]);
    return 1;
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
static void end_all(void) {
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
static int compare(u64 own) {
    for (int i = 0; i < WORKERS; i++) {
        kill(worker[i], SIGKILL);
        waitpid(worker[i], NULL, 0);
    }
    u64 used = counted(), total = swept_total();
    if (used > total || total > LIMIT) /* what a process had charged and not allocated yet counts, too */
        fail("GPU and account page, with children", used, total);
    end_all();
    u64 now = counted(), left = swept_total();
    if (now != own || left != own)
        fail("GPU and account page", now, left);
    for (unsigned slot = 1, n = 0; slot < GH_ACCOUNT_SLOTS; slot++)
        if (atomic_load(&page->owner[slot]) && n++)
            fail("slots in use", n, slot);
    return used > own;
}

/* True once a process has its place on the GPU; until then that may show what another one had there. */
static int has_begun(pid_t pid) {
    for (int slot = 0; slot < GPU_SLOTS; slot++)
        if (gpu->slot[slot].pid == pid)
            return 1;
    return 0;
}

/* Worker i is dying, and no other one moves meanwhile: what dies can only become less. */
static void look(int i) {
    int status, all = 1;
    for (int k = 0; k < WORKERS; k++)
        if (k != i && !kill(worker[k], SIGSTOP) && waitpid(worker[k], &status, WUNTRACED) > 0 && WIFSTOPPED(status))
            all &= has_begun(worker[k]);
    u64 used = counted();
    if (all && used > LIMIT)
        fail("above the limit", used, LIMIT);
    for (int k = 0; k < WORKERS; k++)
        if (k != i)
            kill(worker[k], SIGCONT);
}

int main(int argc, char **argv) {
    if (argc == 3)
        return work_in_threads((unsigned)atoi(argv[2]));
    if (argc != 4)
        return 2;
    unsigned kills = (unsigned)atoi(argv[1]), seed = (unsigned)atoi(argv[2]), done = 0, compared = 0, kept = 0;
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
            usleep((unsigned)rand_r(&seed) % 2000);
            look(i);
            waitpid(worker[i], NULL, 0);
            worker[i] = spawn((unsigned)rand_r(&seed));
        }
        compared++;
        kept += (unsigned)compare(own);
    }
    printf("%u %u %u\n", done, compared, kept);
    return 0;
}
