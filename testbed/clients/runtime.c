/* A program of CUDA's runtime library, linked statically or dynamically: what it gets, and which libcuda it loaded. */
#include <stdio.h>
#include <string.h>

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **at, size_t bytes);

int main(void) {
    char line[4096], last[4096] = "";
    int count = 0;
    void *at;
    int counted = cudaGetDeviceCount(&count);
    printf("cudaGetDeviceCount %d\n", counted);
    printf("cudaMalloc %d\n", counted ? -1 : cudaMalloc(&at, (size_t)2 << 30));
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (path && strstr(path, "cuda") && !strstr(path, "cudart") && strcmp(path, last) != 0) {
            printf("loaded %s", path);
            strcpy(last, path);
        }
    }
    fflush(stdout);
    return 0;
}
