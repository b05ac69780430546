#include "gate/names.h"

#include "driver/real.h"
#include "gate/cost.h"

/* One word, which threads write without a lock: 33 bits of the handle's hash, 30 of the name's; 1 for a collective. */
#define HANDLE (~0ull << 31)
#define HASH (~HANDLE & ~1ull)

static uint64_t hash_of(const char *name) { /* FNV-1a */
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3ull;
    return (hash ^ hash >> 32) & HASH;
}

struct name name_of(struct names *n, CUfunction f) {
    uint64_t spread = cost_key(f, 0, 0, 0), tag = spread & HANDLE;
    _Atomic uint64_t *known = &n->known[spread % NAMES];
    uint64_t word = atomic_load_explicit(known, memory_order_relaxed);
    const char *name = NULL;
    if (!f)
        return (struct name){0};
    if (!word || (word & HANDLE) != tag) {
        if ((REAL(cuFuncGetName)(&name, f) && REAL(cuKernelGetName)(&name, f)) || !name)
            name = ""; /* drivers before 12.3 have neither */
        word = tag | (*name ? hash_of(name) : 0) | cost_is_collective(name);
        atomic_store_explicit(known, word, memory_order_relaxed);
    }
    return (struct name){.hash = word & HASH, .collective = word & 1};
}
