/* Which kernels belong to collectives, by their names: a cache, since the driver takes long to tell a name. */
#ifndef GPU_HOOK_COLLECTIVES_H
#define GPU_HOOK_COLLECTIVES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/cuda.h"

#define COLLECTIVES 1024u

/* Two kernels may take turns in one place. */
struct collectives {
    _Atomic uint64_t known[COLLECTIVES]; /* keys of kernels; the lowest bit is 1 for a collective */
};

/* Without the gate's lock. key: of the kernel's cost. f: NULL if it is no kernel. */
bool collective_is(struct collectives *c, uint64_t key, CUfunction f);

#endif
