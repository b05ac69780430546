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
    void *theirs = NULL;
    CUresult r = REAL(cuGetProcAddress)(symbol, pfn ? &theirs : NULL, version, flags);
    if (pfn)
        *pfn = theirs ? ours(theirs) : NULL;
    return r;
}

typedef CUresult lookup_call(const char *, void **, int, uint64_t, int *);

static CUresult look_up(const char *symbol, void **pfn, int version, uint64_t flags, int *status, lookup_call *call) {
    void *theirs = NULL;
    CUresult r = call(symbol, pfn ? &theirs : NULL, version, flags, status);
    if (pfn)
        *pfn = theirs ? ours(theirs) : NULL;
    return r;
}

GH_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    return look_up(symbol, pfn, version, flags, status, REAL(cuGetProcAddress_v2));
}
GH_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    return look_up(symbol, pfn, version, flags, status, REAL(cuGetProcAddress_v2_ptsz));
}
