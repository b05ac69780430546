/* Programs whose kernels wait for others' kernels, for the gate's tests:
 *
 *   wait peer FILE ME STEPS     a collective of two processes: a kernel, the word that it has begun, and one that spins
 *                               until the other's has; synchronised every STEPS rounds
 *   wait unnamed FILE ME STEPS  the same, by a kernel whose name does not tell
 *   wait self [KEYS]            a kernel that spins until another one of this process, on another stream, is done: that
 *                               has never run before, as its key is a new one each round, or one of KEYS
 *   wait fill                   a kernel that spins until a fill of four bytes, on another stream, has been asked for
 *   wait resident               a kernel that never ends, and others of always new keys beside it
 *
 * for ever. Every 20 ms it prints "NANOSECONDS ROUNDS". */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

enum { ROUNDS = 1 << 20 };

static void *brief, *spin, *stream, *beside;
static const char image[] =
    ".entry brief() .entry ncclDevKernel_AllReduce() .entry other() // sim_us brief=20 sim_spin=1 sim_spin brief=0";

static void launch(void *function, unsigned key, void *in, uint64_t word) {
    void *parameters[] = {&word};
    MUST("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, key, in, parameters, NULL);
}

static void say(uint64_t count) {
    static uint64_t said;
    uint64_t t = now();
    if (t - said > 20000000 || count < 2) {
        said = t;
        printf("%llu %llu\n", (unsigned long long)t, (unsigned long long)count);
        fflush(stdout);
    }
}

static void peer(const char *file, unsigned me, unsigned steps) {
    size_t bytes = 2 * ROUNDS * sizeof(uint32_t);
    int fd = open(file, O_RDWR);
    uint32_t *word = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (word == MAP_FAILED)
        exit(3);
    MUST("cuMemHostRegister_v2", word, bytes, 0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        launch(brief, 1, stream, 0);
        MUST("cuStreamWriteValue32_v2", stream, (uint64_t)(uintptr_t)&word[me * ROUNDS + i], 1, 0);
        launch(spin, 1, stream, (uint64_t)(uintptr_t)&word[(1 - me) * ROUNDS + i]);
        if ((i + 1) % steps == 0)
            MUST("cuStreamSynchronize", stream);
        say(i);
    }
}

static void self(unsigned keys) {
    static uint32_t word[ROUNDS];
    MUST("cuMemHostRegister_v2", word, sizeof word, 0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        launch(spin, 1, stream, (uint64_t)(uintptr_t)&word[i]);
        launch(brief, keys ? 1 + i % keys : 1 + i, beside, 0);
        MUST("cuStreamWriteValue32_v2", beside, (uint64_t)(uintptr_t)&word[i], 1, 0);
        MUST("cuCtxSynchronize");
        say(i);
    }
}

static void fill(void) {
    static uint32_t word[ROUNDS];
    uint64_t memory;
    MUST("cuMemHostRegister_v2", word, sizeof word, 0);
    MUST("cuMemAlloc_v2", &memory, (size_t)4096);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        launch(spin, 1, stream, (uint64_t)(uintptr_t)&word[i]);
        MUST("cuMemsetD32Async", memory, 1, (size_t)1, beside);
        *(volatile uint32_t *)&word[i] = 1;
        MUST("cuCtxSynchronize");
        say(i);
    }
}

static void resident(void) {
    static uint32_t never;
    MUST("cuMemHostRegister_v2", &never, sizeof never, 0);
    launch(spin, 1, stream, (uint64_t)(uintptr_t)&never);
    for (uint64_t i = 0;; i++) {
        launch(brief, 1 + i, beside, 0);
        MUST("cuStreamSynchronize", beside);
        say(i);
    }
}

int main(int argc, char **argv) {
    void *context, *module;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || argc < 2)
        return 2;
    MUST("cuInit", 0);
    MUST("cuDevicePrimaryCtxRetain", &context, 0);
    MUST("cuCtxSetCurrent", context);
    MUST("cuModuleLoadData", &module, image);
    MUST("cuModuleGetFunction", &brief, module, "brief");
    MUST("cuModuleGetFunction", &spin, module, strcmp(argv[1], "unnamed") ? "ncclDevKernel_AllReduce" : "other");
    MUST("cuStreamCreate", &stream, 1);
    MUST("cuStreamCreate", &beside, 1);
    if (argc == 5)
        peer(argv[2], (unsigned)atoi(argv[3]), (unsigned)atoi(argv[4]));
    else if (!strcmp(argv[1], "self"))
        self(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
    else if (!strcmp(argv[1], "fill"))
        fill();
    else
        resident();
    return 0;
}
