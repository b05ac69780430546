/* Functions that a newer driver has. This library exports them above an older driver, too, so a program that looks for the
 * name finds it and calls it in place of the older function; it must then get what the older function says. */
#include <stddef.h>

#include "driver/nvml.h"
#include "driver/real.h"

/* Since driver 560. nvitop takes it wherever it is exported. */
GH_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature) {
    nvmlReturn_t r = REAL(nvmlDeviceGetTemperatureV)(device, temperature);
    if (r != NVML_ERROR_FUNCTION_NOT_FOUND || !temperature || temperature->version != NVML_TEMPERATURE_V1)
        return r;
    unsigned celsius = 0;
    r = REAL(nvmlDeviceGetTemperature)(device, temperature->sensor, &celsius);
    if (r == NVML_SUCCESS)
        temperature->celsius = (int)celsius;
    return r;
}
