/* Where does a program land that looks a function up, by every route? Prints "route symbol file" per address found.
 * Built as a program and, with -DPLUGIN, as a library that is opened with RTLD_DEEPBIND. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GH_CUDA(api, since, symbol) extern int symbol();
#include "intercepts.def"

static const struct {
    const char *api;
    int since;
    const char *symbol;
    void *linked;
} function[] = {
#define GH_CUDA(api, since, symbol) {#api, since, #symbol, (void *)&symbol},
#include "intercepts.def"
};
#define FUNCTIONS (sizeof function / sizeof *function)

static void say(const char *route, const char *symbol, void *address) {
    Dl_info info;
    if (address)
        printf("%s %s %s\n", route, symbol, dladdr(address, &info) ? info.dli_fname : "?");
}

#ifdef PLUGIN
void report(void) {
    for (size_t i = 0; i < FUNCTIONS; i++)
        say("deepbind-link", function[i].symbol, function[i].linked);
    void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        say("deepbind-dlsym", function[i].symbol, dlsym(h, function[i].symbol));
        say("deepbind-default", function[i].symbol, dlsym(RTLD_DEFAULT, function[i].symbol));
    }
}
#else
static void by_handle(const char *route, void *h) {
    if (!h && strcmp(route, "default")) { /* RTLD_DEFAULT is NULL */
        printf("%s - %s\n", route, dlerror());
        return;
    }
    for (size_t i = 0; i < FUNCTIONS; i++) {
        char name[64];
        say(route, function[i].symbol, dlsym(h, function[i].symbol));
        snprintf(name, sizeof name, "%s-dlvsym", route);
        say(name, function[i].symbol, dlvsym(h, function[i].symbol, "libcuda.so.1"));
    }
}

int main(int argc, char **argv) {
    static const int versions[] = {2000, 3020, 4000, 7000, 10000, 11020, 11040, 12000, 12050, 13000};
    for (size_t i = 0; i < FUNCTIONS; i++)
        say("link", function[i].symbol, function[i].linked);
    by_handle("default", RTLD_DEFAULT);
    by_handle("next", RTLD_NEXT);
    by_handle("libcuda.so.1", dlopen("libcuda.so.1", RTLD_LAZY));
    by_handle("libcuda.so", dlopen("libcuda.so", RTLD_NOW | RTLD_GLOBAL));
    for (int i = 2; i < argc; i++)
        by_handle(argv[i], dlopen(argv[i], RTLD_NOW));
    by_handle("dlmopen", dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW));

    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    ((void (*)(void))dlsym(plugin, "report"))();

    void *h = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*one)(const char *, void **, int, unsigned long long) = dlsym(h, "cuGetProcAddress");
    int (*two)(const char *, void **, int, unsigned long long, int *) = dlsym(h, "cuGetProcAddress_v2");
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
        for (unsigned flags = 0; flags < 3; flags++) /* 0 default, 1 legacy, 2 per-thread default stream */
            for (size_t i = 0; i < FUNCTIONS; i++) {
                char route[64];
                void *p = NULL;
                int status;
                snprintf(route, sizeof route, "cuGetProcAddress-%d-%u", versions[v], flags);
                if (!one(function[i].api, &p, versions[v], flags))
                    say(route, function[i].api, p);
                p = NULL;
                snprintf(route, sizeof route, "cuGetProcAddress_v2-%d-%u", versions[v], flags);
                if (!two(function[i].api, &p, versions[v], flags, &status))
                    say(route, function[i].api, p);
                /* and through what cuGetProcAddress says cuGetProcAddress is */
                if (!two("cuGetProcAddress", &p, versions[v], flags, &status) && versions[v] >= 12000) {
                    int (*again)(const char *, void **, int, unsigned long long, int *) = p;
                    if (!again(function[i].api, &p, versions[v], flags, &status))
                        say("cuGetProcAddress-twice", function[i].api, p);
                }
            }
    return 0;
}
#endif
