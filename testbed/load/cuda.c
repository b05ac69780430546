/* libcuda by dlopen, the clock, and the kernel. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define F(name, parameters) CUresult(*name) parameters;
FUNCTIONS
OPTIONAL
#undef F

void check(CUresult result, const char *what) {
    const char *name = "?";
    if (!result)
        return;
    if (cuGetErrorName)
        cuGetErrorName(result, &name);
    fprintf(stderr, "load: %s: %s (%d)\n", what, name, result);
    exit(1);
}

/* 0, or 3 when there is no driver. */
int open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "load: %s\n", dlerror());
        return 3;
    }
#define F(name, parameters)                                       \
    *(void **)&name = dlsym(library, #name);                      \
    if (!name) {                                                  \
        fprintf(stderr, "load: libcuda.so.1 has no %s\n", #name); \
        return 3;                                                 \
    }
    FUNCTIONS
#undef F
#define F(name, parameters) *(void **)&name = dlsym(library, #name);
    OPTIONAL
#undef F
    return 0;
}

uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_until(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* A chain of multiplications that no compiler can shorten. Work, not time: a kernel that waited for a clock would end
 * while another context has the GPU. */
static const char SPIN[] =
    ".version 6.3\n.target %s\n.address_size 64\n// sim_param\n"
    ".visible .entry %s(.param .u64 steps, .param .u64 state, .param .u64 number) {\n"
    ".reg .u64 %%a<8>;\n.reg .u32 %%b<4>;\n.reg .pred %%p<4>;\n"
    "ld.param.u64 %%a0, [steps];\nld.param.u64 %%a1, [state];\nld.param.u64 %%a2, [number];\n"
    "mov.u64 %%a3, 0;\nmov.u64 %%a4, %%a2;\n"
    "again: setp.ge.u64 %%p0, %%a3, %%a0;\n@%%p0 bra over;\n"
    "mad.lo.u64 %%a4, %%a4, 6364136223846793005, 1442695040888963407;\n"
    "add.u64 %%a3, %%a3, 1;\nbra again;\n"
    "over: setp.eq.u64 %%p1, %%a1, 0;\n@%%p1 bra done;\n"
    "mov.u32 %%b0, %%ctaid.x;\nmov.u32 %%b1, %%tid.x;\nor.b32 %%b2, %%b0, %%b1;\n"
    "setp.ne.u32 %%p2, %%b2, 0;\n@%%p2 bra odd;\n"
    "ld.global.u64 %%a5, [%%a1];\nxor.b64 %%a5, %%a5, %%a2;\nmul.lo.u64 %%a5, %%a5, 1099511628211;\n"
    "st.global.u64 [%%a1], %%a5;\n"
    "odd: setp.ne.u64 %%p3, %%a4, 12345;\n@%%p3 bra done;\nst.global.u64 [%%a1+8], %%a4;\n" /* keeps the chain */
    "done: ret;\n}\n";

void *spin_kernel(const char *name) {
    /* CUDA 13 dropped what is older than sm_75. */
    static const char *const targets[] = {"sm_75", "sm_50"};
    char image[2048];
    void *module, *function = NULL;
    CUresult r = 0;
    for (unsigned i = 0; !function && i < sizeof targets / sizeof *targets; i++) {
        snprintf(image, sizeof image, SPIN, targets[i], name);
        if (!(r = cuModuleLoadData(&module, image)))
            r = cuModuleGetFunction(&function, module, name);
    }
    check(r, "the kernel");
    return function;
}

CUresult spin_shaped(void *function, uint64_t steps, CUdeviceptr state, uint64_t number, unsigned blocks,
                     unsigned shared, void *stream) {
    void *params[] = {&steps, &state, &number};
    return cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, shared, stream, params, NULL);
}
