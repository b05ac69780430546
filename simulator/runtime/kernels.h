/* Kernels and variables that programs register as they load. */
#ifndef GPU_HOOK_SIM_KERNELS_H
#define GPU_HOOK_SIM_KERNELS_H

#include "runtime.h"

/* What a host address stands for. */
struct symbol {
    const void *host;
    const char *name;          /* the program's own string */
    size_t bytes;              /* 0: a kernel */
    struct symbol *next;       /* of the same library */
    struct on_device *devices; /* MAX_DEVICES of them; NULL: not used yet */
};

struct symbol *symbol_of(const void *host); /* NULL: nobody registered it */
int function_of(const void *host, CUfunction *out);
int variable_of(const void *host, CUdeviceptr *out, size_t *bytes);

#endif
