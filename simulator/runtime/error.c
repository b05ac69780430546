/* The simulator's CUDA runtime: names and texts of errors, and the driver's functions by name. */
#define _GNU_SOURCE
#include "runtime.h"

static const struct {
    int error;
    const char *name;
} known[] = {
#define ERROR(name, number) {number, #name},
#include "errors.def"
};

/* Errors that the runtime alone has; the driver has a text for those of its own. */
static const struct {
    int error;
    const char *text;
} own[] = {
    {cudaErrorInvalidSymbol, "invalid device symbol"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorMissingConfiguration, "missing kernel configuration"},
    {cudaErrorInvalidDeviceFunction, "invalid device function"},
};

static const char *name_of(int error) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].error == error)
            return known[i].name;
    return NULL;
}

API const char *cudaGetErrorName(cudaError_t error) {
    const char *name = name_of(error);
    return name ? name : "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error) {
    const char *text;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i].error == error)
            return own[i].text;
    if (driver.cuGetErrorString && !driver.cuGetErrorString(error, &text) && text)
        return text;
    return cudaGetErrorName(error);
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                                 unsigned long long flags, int *status) {
    int found = 0;
    TRY(started());
    int r = driver.cuGetProcAddress(symbol, out, (int)version, flags, &found);
    if (status)
        *status = found;                           /* cudaDriverEntryPointQueryResult has the driver's numbers */
    return end(status && found ? cudaSuccess : r); /* who asks for the status is told there */
}

API cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **out, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(symbol, out, RUNTIME_VERSION, flags, status);
}
