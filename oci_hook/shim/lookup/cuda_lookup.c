/* cuGetProcAddress: the driver answers, since it knows what version and flags mean. If its answer is a function that we
 * intercept, the program gets ours instead. */
#include "driver/cuda.h"
#include "driver/real.h"
#include "process/state.h"

/* Not sorted: some hundred pointers, compared only when a program looks up a function. */
static const struct {
    unsigned index;
    void *ours;
} taken[] = {
#define GH_CUDA(api, since, symbol) {GH_REAL_##symbol, (void *)&symbol},
#include "intercepts.def"
};

static void *ours(void *theirs) {
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (gh_real(taken[i].index) == theirs)
            return taken[i].ours;
    return theirs;
}

GH_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    CUresult r = REAL(cuGetProcAddress)(symbol, pfn, version, flags);
    if (r == CUDA_SUCCESS && pfn && *pfn)
        *pfn = ours(*pfn);
    return r;
}

#define LOOKUP(name)                                                                                    \
    GH_EXPORT CUresult name(const char *symbol, void **pfn, int version, uint64_t flags, int *status) { \
        CUresult r = REAL(name)(symbol, pfn, version, flags, status);                                   \
        if (r == CUDA_SUCCESS && pfn && *pfn)                                                           \
            *pfn = ours(*pfn);                                                                          \
        return r;                                                                                       \
    }
LOOKUP(cuGetProcAddress_v2)
LOOKUP(cuGetProcAddress_v2_ptsz)
