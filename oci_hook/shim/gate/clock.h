/* The gate's clock: CLOCK_MONOTONIC in ns, divided by the time scale of a slowed-down simulated GPU. */
#ifndef GPU_HOOK_CLOCK_H
#define GPU_HOOK_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read(clockid_t of) {
    struct timespec t;
    clock_gettime(of, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t clock_ns(void) { return clock_read(CLOCK_MONOTONIC); }
/* Processor time of this thread. */
static inline uint64_t clock_cpu(void) { return clock_read(CLOCK_THREAD_CPUTIME_ID); }

static inline uint64_t clock_scaled(uint32_t scale) { return clock_ns() / scale; }

#endif
