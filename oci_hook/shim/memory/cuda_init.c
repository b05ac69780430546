/* The first call of every CUDA program, in which the driver opens its files. */
#include "account/account.h"
#include "driver/cuda.h"
#include "driver/real.h"

GH_EXPORT CUresult cuInit(unsigned flags) {
    struct gh_state *st = gh_here();
    if (st)
        gh_account_before_driver(st);
    return REAL(cuInit)(flags);
}
