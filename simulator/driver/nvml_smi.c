/* The simulated libnvidia-ml: what nvidia-smi needs beside the documented queries. nvidia-smi asks for one of NVML's
 * internal tables, whose first word is the table's size in bytes, and does without entries beyond that size. It makes a
 * set of events before it prints; here no event ever happens. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define API __attribute__((visibility("default")))

enum { NVML_SUCCESS = 0, NVML_ERROR_INVALID_ARGUMENT = 2, NVML_ERROR_TIMEOUT = 10, NVML_ERROR_MEMORY = 20 };

API int nvmlInternalGetExportTable(const void **table, const void *id) {
    static const uint64_t empty[1] = {sizeof empty};
    if (!table || !id)
        return NVML_ERROR_INVALID_ARGUMENT;
    *table = empty;
    return NVML_SUCCESS;
}

API int nvmlEventSetCreate(void **set) {
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = malloc(1);
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API int nvmlEventSetFree(void *set) {
    free(set);
    return NVML_SUCCESS;
}

static int wait_in_vain(unsigned ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
    return NVML_ERROR_TIMEOUT;
}

API int nvmlEventSetWait(void *set, void *event, unsigned ms) { return (void)set, (void)event, wait_in_vain(ms); }
API int nvmlEventSetWait_v2(void *set, void *event, unsigned ms) { return (void)set, (void)event, wait_in_vain(ms); }
