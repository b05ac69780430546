/* Setters of one limit that write as fast as they can, and are killed at any instruction, beside a reader: it must find the
 * limit whole at every look. Then what a setter leaves that is killed at the worst moments. Prints what was wrong. */
#include "limits.c"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
static const struct gpu_home ours = {7, {4242, 1}};
static struct gpu gpu;

static void set(struct gpu *to, uint64_t hard_mib) {
    if (!gpu_limit_set(to, &ours, "/ours", hard_mib * MIB / 2, hard_mib * MIB))
        puts("the table is full");
}

static pid_t start_setter(void) {
    pid_t child = fork();
    if (child)
        return child;
    struct gpu mine;
    if (gpus_open(&mine, 1, true) != 1)
        _exit(1);
    for (uint64_t hard = 10;; hard = 30 - hard)
        set(&mine, hard);
}

static int wrong(void) {
    struct gpu_bound b;
    bool any = gpu_limit_of(&gpu, &ours, &b);
    return !any + (b.hard != 10 * MIB && b.hard != 20 * MIB) + (b.soft * 2 != b.hard) + gpu_limits_hold(&gpu, &ours, 0);
}

static unsigned cells(void) {
    unsigned n = 0;
    for (int c = 0; c < GPU_LIMIT_CELLS; c++)
        n += atomic_load(&gpu.file->limit[c].stamp) != 0;
    return n;
}

static int first(void) {
    int c = 0;
    while (c < GPU_LIMIT_CELLS && !atomic_load(&gpu.file->limit[c].stamp))
        c++;
    return c;
}

static uint64_t hard_mib(void) {
    struct gpu_bound b;
    gpu_limit_of(&gpu, &ours, &b);
    return b.hard / MIB;
}

static void at_once(void) {
    int bad = 0;
    for (int round = 0; round < 40; round++) {
        pid_t setters[2] = {start_setter(), start_setter()};
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        for (int64_t end = t.tv_sec * 1000 + t.tv_nsec / 1000000 + 20; t.tv_sec * 1000 + t.tv_nsec / 1000000 < end;) {
            bad += wrong();
            clock_gettime(CLOCK_MONOTONIC, &t);
        }
        for (int i = 0; i < 2; i++) {
            kill(setters[i], SIGKILL);
            waitpid(setters[i], NULL, 0);
        }
        bad += wrong();
    }
    printf("wrong looks: %d\n", bad);
}

static void leftovers(void) {
    struct gpu_limit *cell = gpu.file->limit;
    while (atomic_load(&cell->stamp))
        cell++;
    *cell = (struct gpu_limit){.soft = 1, .hard = 2, .home = ours}; /* killed before it published */
    printf("half written: %d", (int)(hard_mib() != 15));
    set(&gpu, 14);
    printf(" %d %u\n", (int)hard_mib(), cells());
    for (cell = gpu.file->limit; atomic_load(&cell->stamp);)
        cell++;
    *cell = (struct gpu_limit){.soft = MIB, .hard = 13 * MIB, .home = ours}; /* killed before it freed the former one */
    atomic_store(&gpu.file->head.limits, GPU_LIMIT_CELLS);
    atomic_store(&cell->stamp, atomic_fetch_add(&gpu.file->head.limit_stamp, 1) + 1);
    printf("not replaced: %d %u", (int)hard_mib(), cells());
    set(&gpu, 12);
    printf(" %d %u\n", (int)hard_mib(), cells());
    struct gpu stopped;
    gpus_open(&stopped, 1, true);
    for (unsigned c = 0; c < GPU_LIMIT_CELLS - 2; c++) /* stopped setters, each with the cell that it writes */
        lock(stopped.fd, F_WRLCK, c);
    set(&gpu, 11);
    printf("stopped: %d %u, in cell %d\n", (int)hard_mib(), cells(), first());
    gpu_limit_set(&gpu, &ours, "/ours", 0, GPU_UNLIMITED);
    printf("cleared: %d %u\n", (int)(hard_mib() == GPU_UNLIMITED / MIB), cells());
}

int main(void) {
    if (gpus_open(&gpu, 1, true) != 1 || !gpu_claim(&gpu))
        return 1;
    gpu.file->slot_home[gpu.slot] = ours;
    gpu_reserve(&gpu, 100 * MIB);
    set(&gpu, 10);
    at_once();
    set(&gpu, 15);
    printf("the last one: %d %u\n", (int)hard_mib(), cells());
    leftovers();
}
