/* ask LIBRARY < names: what cuGetProcAddress and its second version answer for each name, of which only its letters up to
 * an ending (_v2, _ptsz, ...) count, each CUDA version, and each kind of default stream. Prints codes, no addresses. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    static const int versions[] = {0, 2000, 3020, 4000, 7000, 10000, 11020, 11040, 12000, 12050, 13000};
    char name[128];
    void *h = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!h) {
        printf("%s\n", dlerror());
        return 1;
    }
    int (*one)(const char *, void **, int, unsigned long long) = dlsym(h, "cuGetProcAddress");
    int (*two)(const char *, void **, int, unsigned long long, int *) = dlsym(h, "cuGetProcAddress_v2");
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        for (size_t v = 0; v < sizeof versions / sizeof *versions; v++)
            for (unsigned flags = 0; flags < 4; flags++) {
                void *p = NULL;
                int status = -1;
                printf("%s %d %u:", name, versions[v], flags);
                if (one) {
                    int r = one(name, &p, versions[v], flags);
                    printf(" %d %d", r, p != NULL);
                }
                p = NULL;
                if (two) {
                    int r = two(name, &p, versions[v], flags, &status);
                    printf(" %d %d %d", r, p != NULL, status);
                }
                printf("\n");
            }
    }
    return 0;
}
