/* What the programs of the gate's tests have in common: calls by name, and the clock. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *cuda;
#define FIND(library, name) ((int (*)())dlsym(library, name))
#define CALL(name, ...) FIND(cuda, name)(__VA_ARGS__)
#define MUST(name, ...)                            \
    do {                                           \
        int r_ = CALL(name, __VA_ARGS__);          \
        if (r_) {                                  \
            fprintf(stderr, "%s: %d\n", name, r_); \
            exit(1);                               \
        }                                          \
    } while (0)

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
