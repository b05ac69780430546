/* A driver whose chosen calls return late: GH_SLOW="NAME=MICROSECONDS,..." sleeps after the driver's own call and before
 * its caller goes on. So a test has the time to do something else in between, which otherwise takes luck. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
typedef long call(long, long, long, long, long, long);

static call *next(const char *name) {
    void *driver = dlopen(getenv("GH_SLOW_DRIVER"), RTLD_LAZY | RTLD_NOLOAD);
    return driver ? (call *)dlsym(driver, name) : NULL;
}

static void pause_after(const char *name) {
    const char *list = getenv("GH_SLOW");
    size_t n = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ',') && at[n] == '=') {
            long us = atol(at + n + 1);
            nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
            return;
        }
}

#define SLOW(name)                                                 \
    API int name(long a, long b, long c, long d, long e, long f) { \
        static call *real;                                         \
        if (!real && !(real = next(#name)))                        \
            return 999;                                            \
        int result = (int)real(a, b, c, d, e, f);                  \
        pause_after(#name);                                        \
        return result;                                             \
    }
SLOW(cuMemMap)
SLOW(cuMemRelease)
SLOW(cuMemRetainAllocationHandle)
SLOW(cuMemExportToShareableHandle)
SLOW(cuMemMapArrayAsync)
SLOW(cuMulticastBindMem)
SLOW(cuMemCreate)
SLOW(cuMemAlloc_v2)
SLOW(cuMemFree_v2)
SLOW(cuDevicePrimaryCtxGetState)
SLOW(cuDevicePrimaryCtxRetain)
SLOW(cuStreamIsCapturing)
SLOW(cuStreamGetCaptureInfo_v2)
SLOW(cuDeviceGetMemPool)
SLOW(cuGraphGetNodes)
SLOW(cuGraphNodeGetType)
SLOW(cuMemAllocAsync)
SLOW(cuMemAllocFromPoolAsync)
SLOW(cuStreamGetCtx)
