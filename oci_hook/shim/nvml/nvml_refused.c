/* Calls that change a GPU for everybody (clocks, modes, counters, MIG layout) are refused, on whole GPUs as well, since
 * such changes outlive the container. */
#include "driver/nvml.h"
#include "driver/real.h"

static nvmlReturn_t refused(void) {
    unsigned n;
    nvmlReturn_t r = REAL(nvmlDeviceGetCount_v2)(&n);
    return r == NVML_ERROR_UNINITIALIZED ? r : NVML_ERROR_NO_PERMISSION;
}

#define GH_NVML_REFUSED(symbol)          \
    GH_EXPORT nvmlReturn_t symbol(void); \
    GH_EXPORT nvmlReturn_t symbol(void) { return refused(); }
#include "intercepts.def"
