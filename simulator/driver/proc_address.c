/* Simulated libcuda: both versions of cuGetProcAddress, which find a symbol by base name, CUDA version and stream flag. */
#include "driver.h"

#include <string.h>

/* Each symbol is declared in C under another name, so that one plain type serves all. */
#define F(base, version, symbol) extern void at_##symbol(void) __asm__(#symbol);
#define P F
#include "names.def"
#undef F

static const struct {
    const char *base;
    int version;
    bool per_thread;
    void (*symbol)(void);
} name[] = {
#define F(base, version, symbol) {#base, version, false, at_##symbol},
#undef P
#define P(base, version, symbol) {#base, version, true, at_##symbol},
#include "names.def"
#undef F
#undef P
};

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 }; /* CUdriverProcAddressQueryResult */

static CUresult find(const char *symbol, void **out, int version, unsigned long long flags, int *status) {
    if (!symbol || !out || flags > 2) /* default 0, legacy 1, per-thread default stream 2 */
        return CUDA_ERROR_INVALID_VALUE;
    int best = -1, state = SYMBOL_NOT_FOUND;
    for (int i = 0; i < (int)(sizeof name / sizeof *name); i++) {
        if (strcmp(name[i].base, symbol) || !gpu_has_functions_of(name[i].version))
            continue;
        if (state != FOUND)
            state = VERSION_NOT_SUFFICIENT;
        if (name[i].version > version || (name[i].per_thread && flags != 2))
            continue;
        if (best >= 0 && name[best].per_thread && !name[i].per_thread)
            continue;
        if (best < 0 || name[i].per_thread > name[best].per_thread || name[i].version >= name[best].version) {
            best = i;
            state = FOUND;
        }
    }
    *out = best < 0 ? NULL : (void *)name[best].symbol;
    if (status)
        *status = state;
    return best < 0 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

API CUresult cuGetProcAddress(const char *symbol, void **out, int version, unsigned long long flags) {
    return find(symbol, out, version, flags, NULL);
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status) {
    return find(symbol, out, version, flags, status);
}
