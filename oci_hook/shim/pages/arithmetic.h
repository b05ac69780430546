/* Integer arithmetic that saturates instead of wrapping, so that any bytes in a page give a bounded result. */
#ifndef GPU_HOOK_ARITHMETIC_H
#define GPU_HOOK_ARITHMETIC_H

#include <stdint.h>

static inline uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t clamp64(uint64_t x, uint64_t low, uint64_t high) { return x < low ? low : x > high ? high : x; }
static inline uint64_t add64(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static inline uint64_t mul64(uint64_t a, uint64_t b) {
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* Age of a published time. A time in the future counts as now: forging it gains no more than being active does. */
static inline uint64_t age64(uint64_t now, uint64_t then) { return then < now ? now - then : 0; }

#endif
