/* A tenant that goes past the stand-in: opens the real driver's library from its private path and takes memory there.
 * usage: bypass MIB [own]     own: also some through the stand-in, so that there are books to forge */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int take(const char *library, size_t bytes)
{
    void *cuda = dlopen(library, RTLD_NOW), *ctx;
    unsigned long long at;
    if (!cuda)
        return 1;
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    return init(0) || retain(&ctx, 0) || current(ctx) || alloc(&at, bytes);
}

int main(int argc, char **argv)
{
    if (argc > 2 && take("libcuda.so.1", 16 << 20))
        return 2;
    if (argc < 2 || take("/run/gpu-hook/driver/cuda", strtoull(argv[1], NULL, 10) << 20))
        return 3;
    puts("cheating");
    fflush(stdout);
    for (;;)
        pause();
}
