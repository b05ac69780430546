/* Modules and their functions. Here a library is a module that needs no context, and a kernel is a function. */
#ifndef GPU_HOOK_SIM_MODULE_H
#define GPU_HOOK_SIM_MODULE_H

#include "heap.h"

struct function {
    char *name;           /* in one piece of memory with the function; compilers make names of hundreds of characters */
    uint64_t duration_ns; /* 0: the GPU's default */
    const double *spread;
    uint64_t seed;
    bool by_parameter, spins;
    unsigned threads;   /* for launches older than cuLaunchKernel: block shape, */
    uint64_t parameter; /* and the first parameter */
    int set[16];        /* attributes that a program may set, by number */
    struct module *module;
    struct function *next;
};

struct module {
    char *text; /* NULL: not text */
    struct function *functions;
    CUcontext ctx;
    bool library;          /* its kernels run in any context */
    CUdeviceptr variables; /* their memory, one behind the other; 0: not loaded, or there are none */
};

/* The kernels and variables of a cubin in the words of PTX, to be freed; NULL: the image is none, or has no names. */
char *cubin_text(const void *image);

#endif
