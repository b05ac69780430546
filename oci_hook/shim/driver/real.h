/* The functions of the real driver library, by index. build.py generates real_names.h for each shim: every name that
 * is forwarded or called, first those that C code calls. */
#ifndef GPU_HOOK_REAL_H
#define GPU_HOOK_REAL_H

#include <stddef.h>

#include "real_names.h" /* generated: enum gh_real_index { GH_REAL_<symbol>..., GH_REALS }; GH_MISSING */

extern void *gh_real_pointer[GH_REALS] __attribute__((visibility("hidden")));
/* The function; if the driver has none, one that returns GH_MISSING. */
void *gh_real_resolve(unsigned index) __attribute__((visibility("hidden")));
/* The function; NULL if the driver has none. */
void *gh_real_find(const char *name);

static inline void *gh_real(unsigned index) {
    void *p = __atomic_load_n(&gh_real_pointer[index], __ATOMIC_RELAXED);
    return __builtin_expect(p != NULL, 1) ? p : gh_real_resolve(index);
}
#define REAL(symbol) ((__typeof__(&symbol))gh_real(GH_REAL_##symbol))
/* The function, or NULL if REAL has not found it yet. */
#define REAL_FOUND(symbol) ((__typeof__(&symbol))__atomic_load_n(&gh_real_pointer[GH_REAL_##symbol], __ATOMIC_RELAXED))

#define GH_EXPORT __attribute__((visibility("default")))

#endif
