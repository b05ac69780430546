/* The first call of every CUDA program, in which the driver opens its files. So do we: later the program may be in a
 * chroot, or under a filter of system calls. */
#include "account/account.h"
#include "driver/cuda.h"
#include "driver/real.h"
#include "gate/gate.h"

GH_EXPORT CUresult cuInit(unsigned flags) {
    struct gh_state *st = gh_here();
    if (st) {
        gh_account_before_driver(st);
        gates_here();
    }
    return REAL(cuInit)(flags);
}
