/* gpu-hook-probe: takes memory of GPU 0 in pieces of 64 MiB until the driver refuses one, and says what it got. It is mounted into
 * a container to see its limit. Exit status: 0 if memory was refused as a limit refuses it, 1 if not, 2 usage, 3 without
 * driver or GPU. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define PIECE (64ull << 20)
#define MOST (1ull << 24) /* pieces; no GPU has as many */

static int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set)(void *);
static int (*take)(unsigned long long *, size_t), (*error)(int, const char **);

static const char *name_of(int code) {
    const char *name = NULL;
    return error && !error(code, &name) && name ? name : "an error";
}

static int failed(const char *function, int code) {
    if (code)
        fprintf(stderr, "gpu-hook-probe: %s: %s (%d)\n", function, name_of(code), code);
    return code;
}

static int help(const char *word) {
    int asked = !strcmp(word, "-h") || !strcmp(word, "--help");
    fprintf(asked ? stdout : stderr,
            "usage: gpu-hook-probe\n\n"
            "Takes memory of GPU 0 until it is refused, and says how much it got. Mounted into a container, it\n"
            "shows its limit: `gpu-hook probe` prints its path. It takes no arguments.\n");
    return asked ? 0 : 2;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return help(argv[1]);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "gpu-hook-probe: %s: does this container have a GPU?\n", dlerror());
        return 3;
    }
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&get = dlsym(driver, "cuDeviceGet");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&take = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&error = dlsym(driver, "cuGetErrorName");
    if (!init || !get || !retain || !set || !take) {
        fprintf(stderr, "gpu-hook-probe: libcuda.so.1 is no CUDA driver\n");
        return 3;
    }
    void *context = NULL;
    int device, code = 0;
    if (failed("cuInit", init(0)) || failed("cuDeviceGet", get(&device, 0)) ||
        failed("cuDevicePrimaryCtxRetain", retain(&context, device)) || failed("cuCtxSetCurrent", set(context)))
        return 3;
    unsigned long long pieces = 0, address;
    while (pieces < MOST && !(code = take(&address, PIECE)))
        pieces++;
    printf("%llu MiB, then %s\n", pieces * (PIECE >> 20), name_of(code));
    return strcmp(name_of(code), "CUDA_ERROR_OUT_OF_MEMORY") ? 1 : 0;
}
