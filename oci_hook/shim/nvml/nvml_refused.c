/* Calls that change a GPU for everybody (clocks, modes, counters, MIG layout) are refused, on whole GPUs as well, since
 * such changes outlive the container. */
#include "driver/nvml.h"
#include "driver/real.h"

#define GH_NVML_REFUSED(symbol)          \
    GH_EXPORT nvmlReturn_t symbol(void); \
    GH_EXPORT nvmlReturn_t symbol(void) { return NVML_ERROR_NO_PERMISSION; }
#include "intercepts.def"
