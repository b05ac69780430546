/* The first call of every CUDA program, in which the driver opens its files. So do we: later the program may be in a
 * chroot, or under a filter of system calls. Where no slot is free the driver opens none, so that a later call can have one. */
#include "account/account.h"
#include "driver/cuda.h"
#include "driver/real.h"
#include "gate/gate.h"

GH_EXPORT CUresult cuInit(unsigned flags) {
    struct gh_state *st = gh_here();
    if (st) {
        if (!gh_account_before_driver(st))
            return CUDA_ERROR_OUT_OF_MEMORY;
        gates_here();
    }
    return REAL(cuInit)(flags);
}
