/* What kernels' names tell: which kernels belong to collectives, and which have one name under several handles. A cache, since
 * the driver takes long to tell a name. */
#ifndef GPU_HOOK_NAMES_H
#define GPU_HOOK_NAMES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver/cuda.h"

#define NAMES 1024u

/* Two kernels may take turns in one place. */
struct names {
    _Atomic uint64_t known[NAMES];
};

struct name {
    uint64_t hash; /* 0: the driver tells no name */
    bool collective;
};

/* Without the gate's lock. f: NULL if it is no kernel. */
struct name name_of(struct names *n, CUfunction f);

#endif
