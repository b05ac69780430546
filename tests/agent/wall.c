/* For LD_PRELOAD: the wall clock is off by as many seconds as the file $WALL_CLOCK says, from one call to the next. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void) {
    char text[32] = "";
    int fd = open(getenv("WALL_CLOCK"), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        _exit(99);
    close(fd);
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = (int)syscall(SYS_clock_gettime, clock, t);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += off();
    return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return t ? *t = now.tv_sec : now.tv_sec;
}
