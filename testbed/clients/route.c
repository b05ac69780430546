/* Takes all the memory it gets, through functions that it finds in one of the ways that programs have.
 *
 * usage: route ROUTE FUNCTION       e.g. route dlvsym cuMemAlloc_v2
 * Built as route (knows no libcuda), route-linked (-DLINKED, against libcuda) and route-library (against plugin.so). */
#define _GNU_SOURCE
#ifdef LINKED
#define DIRECT
#endif
#include <dlfcn.h>
#include <stdlib.h>

#include "fill.h"

#ifndef RTLD_DEEPBIND /* musl has neither this nor dlvsym and dlmopen */
#define RTLD_DEEPBIND 0
#define NO_NAMESPACES
#endif

static void *library;

static void *by_handle(const char *symbol) { return dlsym(library, symbol); }
static void *by_next(const char *symbol) { return dlsym(RTLD_NEXT, symbol); }
static void *by_default(const char *symbol) { return dlsym(RTLD_DEFAULT, symbol); }

#ifndef NO_NAMESPACES
static void *by_version(const char *symbol) {
    static const char *const versions[] = {"libcuda.so.1", "GLIBC_2.2.5", "GLIBC_2.17", "CUDA_12", NULL};
    void *at = NULL;
    for (int i = 0; !at && versions[i]; i++)
        at = dlvsym(library, symbol, versions[i]);
    return at;
}
#endif

/* cuGetProcAddress, asked as CUDA's runtime library asks: base name, version of the API, kind of default stream. */
static int api, flags, is_v2;
static void *ask;

static void *by_driver(const char *symbol) {
    char base[64];
    void *at = NULL;
    snprintf(base, sizeof base, "%s", symbol);
    char *tail = strrchr(base, '_');
    if (tail && (!strcmp(tail, "_v2") || !strcmp(tail, "_ptsz")))
        *tail = 0;
    if (is_v2) {
        int status = -1;
        ((CUresult (*)(const char *, void **, int, uint64_t, int *))(uintptr_t)ask)(base, &at, api, flags, &status);
    } else {
        ((CUresult (*)(const char *, void **, int, uint64_t))(uintptr_t)ask)(base, &at, api, flags);
    }
    return at;
}

static int open_it(const char *name, int how) {
    library = dlopen(name, how);
    if (!library)
        printf("unopened=%s\n", dlerror());
    return library != NULL;
}

/* getproc-V-FLAGS, getproc2-V-FLAGS; with an r: the function itself is asked of cuGetProcAddress once more. */
static int by_proc_address(const char *route, const char *how) {
    is_v2 = route[7] == '2';
    int again = strchr(route, 'r') != NULL;
    const char *numbers = strchr(route, '-');
    if (!numbers || sscanf(numbers, "-%d-%d", &api, &flags) != 2 || !open_it("libcuda.so.1", RTLD_NOW))
        return 2;
    ask = dlsym(library, is_v2 ? "cuGetProcAddress_v2" : "cuGetProcAddress");
    if (again && !(ask = by_driver("cuGetProcAddress")))
        return 2;
    return fill(by_driver, how);
}

#ifdef LIBRARY
int run(const char *how);
#endif

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    const char *route = argv[1], *how = argv[2];
#ifdef LINKED
    if (!strcmp(route, "direct"))
        return fill(direct, how);
#endif
#ifdef LIBRARY
    if (!strcmp(route, "library"))
        return run(how);
#endif
    if (!strcmp(route, "next"))
        return fill(by_next, how);
    if (!strcmp(route, "default"))
        return open_it("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) ? fill(by_default, how) : 2;
#ifndef NO_NAMESPACES
    if (!strcmp(route, "dlvsym"))
        return open_it("libcuda.so.1", RTLD_NOW) ? fill(by_version, how) : 2;
    if (!strcmp(route, "dlmopen")) {
        library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
        if (!library)
            printf("unopened=%s\n", dlerror());
        return library ? fill(by_handle, how) : 2;
    }
#endif
    if (!strcmp(route, "deepbind") || !strcmp(route, "plugin")) {
        if (!open_it("/bin/plugin.so", RTLD_NOW | (*route == 'd' ? RTLD_DEEPBIND : 0)))
            return 2;
        return ((int (*)(const char *))(uintptr_t)dlsym(library, "run"))(how);
    }
    if (!strcmp(route, "triton")) { /* TRITON_LIBCUDA_PATH names the folder */
        char path[4096];
        const char *folder = getenv("TRITON_LIBCUDA_PATH");
        snprintf(path, sizeof path, "%s/libcuda.so.1", folder ? folder : "/nowhere");
        return open_it(path, RTLD_NOW) ? fill(by_handle, how) : 2;
    }
    if (!strncmp(route, "getproc", 7))
        return by_proc_address(route, how);
    return open_it(route, RTLD_NOW) ? fill(by_handle, how) : 2; /* the name of a file */
}
