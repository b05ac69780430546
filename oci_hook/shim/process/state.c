#define _GNU_SOURCE
#include "process/state.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "process/identity.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#define GIVE_UP_SECONDS 5
#define SPINS 64u
#define YIELDS 128u
#define NAP_NS 50000

struct gh_state *_Atomic gh_state_page;

/* Of LeakSanitizer, in programs that are built with it: it looks for pointers in mapped memory only where it is told. */
__attribute__((weak)) void __lsan_register_root_region(const void *begin, size_t size);

bool gh_wait(unsigned step, int64_t *until) {
    if (step < SPINS) {
        gh_relax();
        return true;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!*until)
        *until = now.tv_sec + GIVE_UP_SECONDS + 1;
    /* A real-time thread yields to no thread of a lower priority, which may hold the lock and need this processor. */
    if (step < SPINS + YIELDS)
        syscall(SYS_sched_yield);
    else
        syscall(SYS_nanosleep, &(struct timespec){0, NAP_NS}, NULL);
    return now.tv_sec < *until;
}

bool gh_lock_wait(struct gh_lock *lock) {
    int64_t until = 0;
    for (unsigned step = 0; atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire); step++)
        if (!gh_wait(step, &until))
            return false;
    return true;
}

/* For kernels before 4.14, which have no MADV_WIPEONFORK. */
static void wipe_in_child(void) {
    struct gh_state *st = atomic_load(&gh_state_page);
    if (st)
        memset(st, 0, sizeof *st);
}

static struct gh_state *make(void) {
    struct gh_state *none = NULL;
    struct gh_state *st = mmap(NULL, sizeof *st, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (st == MAP_FAILED)
        return NULL;
    if (!atomic_compare_exchange_strong(&gh_state_page, &none, st)) {
        munmap(st, sizeof *st);
        return none;
    }
    if (__lsan_register_root_region)
        __lsan_register_root_region(st, sizeof *st);
    if (madvise(st, sizeof *st, MADV_WIPEONFORK))
        pthread_atfork(NULL, NULL, wipe_in_child);
    return st;
}

static struct gh_state *set_up(struct gh_state *st) {
    int64_t until = 0;
    uint32_t fresh = 0;
    if (atomic_compare_exchange_strong(&st->phase, &fresh, 1)) {
        st->me = gh_identify();
        atomic_store_explicit(&st->phase, 2, memory_order_release);
        return st;
    }
    for (unsigned step = 0; atomic_load_explicit(&st->phase, memory_order_acquire) != 2; step++)
        if (!gh_wait(step, &until))
            return NULL;
    return st;
}

struct gh_state *gh_state_make(void) {
    struct gh_state *st = atomic_load_explicit(&gh_state_page, memory_order_acquire);
    return st || (st = make()) ? set_up(st) : NULL;
}

/* Signals that a write can bring on its thread: nobody reads the pipe, or the file is as large as it may be. Raw system
 * calls, since sigtimedwait(2) of the C library is a cancellation point. */
#define OF_WRITES (1ull << (SIGPIPE - 1) | 1ull << (SIGXFSZ - 1))

/* One write, so that lines of several processes do not mix. If it fails, its signal is taken, and that is all. */
static void write_line(const char *line) {
    uint64_t block = OF_WRITES, before = 0, pending = 0;
    if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, &block, &before, sizeof before))
        return;
    syscall(SYS_rt_sigpending, &pending, sizeof pending);
    uint64_t ours = block & ~pending;
    if (syscall(SYS_write, 2, line, strlen(line)) < 0)
        syscall(SYS_rt_sigtimedwait, &ours, NULL, &(struct timespec){0}, sizeof ours);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
}

void gh_say(enum gh_said what, const char *line) {
    struct gh_state *st = gh_here();
    if (st && atomic_fetch_or(&st->said, 1u << what) & 1u << what)
        return;
    write_line(line);
}
