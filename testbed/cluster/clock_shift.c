/* For LD_PRELOAD into one program of the lab: its clocks differ from the computer's by what the file CLOCK_SHIFT says,
 * three numbers of 64 bits in nanoseconds: CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME. Only programs that ask the C library see it,
 * so Python's do, and Go's do not. Waits (poll, futex) keep the kernel's time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none[3];
static const volatile int64_t *shift = none;

__attribute__((constructor)) static void read_shift(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        shift = page;
    close(fd);
}

static int64_t shift_of(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE: return shift[0];
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW: return shift[1];
    case CLOCK_BOOTTIME: return shift[2];
    default: return 0;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now))
        return -1;
    int64_t ns = now->tv_nsec + shift_of(clock);
    int64_t seconds = ns / 1000000000;
    ns %= 1000000000;
    if (ns < 0) {
        ns += 1000000000;
        seconds--;
    }
    now->tv_sec += seconds;
    now->tv_nsec = ns;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out)
        *out = exact.tv_sec;
    return exact.tv_sec;
}
