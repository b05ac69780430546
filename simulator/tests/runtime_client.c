/* A program of the CUDA runtime API, compiled with NVIDIA's own headers: so structures and names are the true ones.
 * The end of the file stands for what nvcc puts into a program with kernels. Prints a line for each thing; an error ends it. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaUnregisterFatBinary(void **);
extern void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, dim3 *, dim3 *,
                                   int *);
extern void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
extern unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t);
extern cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);

#define OK(call)                                                                              \
    do {                                                                                      \
        cudaError_t error = (call);                                                           \
        if (error) {                                                                          \
            printf("%s: %s %s\n", #call, cudaGetErrorName(error), cudaGetErrorString(error)); \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)
#define MIB (1ul << 20)

static char variable[4096]; /* stands for a __device__ variable */
static void kernel(int *x) {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    void *arguments[] = {&x};
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    OK(cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream));
}

static size_t free_mib(void) {
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    return free / MIB;
}

static void devices(void) {
    int n, runtime, driver, value;
    struct cudaDeviceProp p;
    OK(cudaGetDeviceCount(&n));
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    OK(cudaGetDeviceProperties(&p, 1));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1));
    printf("devices %d, runtime %d of headers %d, driver %d\n", n, runtime, CUDART_VERSION, driver);
    printf("%s, %zu MiB, %d.%d, warp %d, threads %d, grid %d, bus %x, pools %d\n", p.name, p.totalGlobalMem / MIB,
           p.major, p.minor, p.warpSize, p.maxThreadsPerBlock, p.maxGridSize[0], p.pciBusID, p.memoryPoolsSupported);
    printf("multiprocessors %d\n", p.multiProcessorCount - value);
    printf("device 2: %s\n", cudaGetErrorName(cudaSetDevice(2)));
    printf("last error: %s, then %s\n", cudaGetErrorName(cudaGetLastError()), cudaGetErrorName(cudaGetLastError()));
}

static void memory(void) {
    void *none = (void *)1, *p, *host;
    struct cudaPointerAttributes a;
    char there[8] = "runtime", back[8] = "";
    size_t before = free_mib();
    OK(cudaMalloc(&none, 0));
    OK(cudaFree(NULL));
    OK(cudaMalloc(&p, 100 * MIB));
    printf("0 bytes: %p; 100 MiB took %zu\n", none, before - free_mib());
    printf("64 GiB: %s\n", cudaGetErrorString(cudaMalloc(&none, 65536 * MIB)));
    OK(cudaPointerGetAttributes(&a, p));
    printf("device memory: type %d, device %d, %d\n", a.type, a.device, a.devicePointer == p);
    OK(cudaPointerGetAttributes(&a, back));
    printf("a variable: type %d, device %d, %d\n", a.type, a.device, a.hostPointer == back);
    OK(cudaMemcpy(p, there, 8, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(back, 4, p, 4, 4, 2, cudaMemcpyDeviceToHost));
    printf("copied: %s\n", back);
    printf("direction 7: %s\n", cudaGetErrorName(cudaMemcpy(p, there, 8, (enum cudaMemcpyKind)7)));
    OK(cudaMemset(p, 65, 7));
    OK(cudaMemcpy(back, p, 7, cudaMemcpyDefault));
    printf("set: %s\n", back);
    OK(cudaMallocHost(&host, MIB));
    OK(cudaMemcpyAsync(host, p, 7, cudaMemcpyDeviceToHost, 0));
    OK(cudaStreamSynchronize(0));
    printf("pinned: %.7s\n", (char *)host);
    OK(cudaFreeHost(host));
    OK(cudaFree(p));
    printf("left %zu\n", before - free_mib());
}

static void kernels(void) {
    struct cudaFuncAttributes f;
    int blocks, *x;
    size_t size;
    void *at;
    char back[8] = "";
    cudaLaunchConfig_t config = {.gridDim = {2, 1, 1}, .blockDim = {32, 1, 1}};
    OK(cudaMalloc((void **)&x, 4));
    for (int i = 0; i < 3; i++) {
        __cudaPushCallConfiguration((dim3){4, 1, 1}, (dim3){128, 1, 1}, 0, 0);
        kernel(x);
    }
    void *arguments[] = {&x};
    OK(cudaLaunchKernelExC(&config, (const void *)kernel, arguments));
    OK(cudaDeviceSynchronize());
    OK(cudaFuncGetAttributes(&f, (const void *)kernel));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)kernel, 128, 0));
    printf("kernel: %d threads at most, %s\n", f.maxThreadsPerBlock, blocks > 0 ? "fits" : "does not fit");
    printf("no kernel: %s\n",
           cudaGetErrorName(cudaLaunchKernel((const void *)free_mib, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, 0)));
    dim3 unused;
    printf("no configuration: %s\n", cudaGetErrorName(__cudaPopCallConfiguration(&unused, &unused, &size, &at)));
    OK(cudaMemcpyToSymbol(variable, "symbol", 7, 4096 - 7, cudaMemcpyHostToDevice));
    OK(cudaMemcpyFromSymbol(back, variable, 7, 4096 - 7, cudaMemcpyDeviceToHost));
    OK(cudaGetSymbolSize(&size, variable));
    OK(cudaGetSymbolAddress(&at, variable));
    printf("variable: %s, %zu bytes, %s\n", back, size, at ? "somewhere" : "nowhere");
    printf("beyond it: %s\n",
           cudaGetErrorName(cudaMemcpyToSymbol(variable, "symbol", 8, 4096 - 7, cudaMemcpyHostToDevice)));
    OK(cudaFree(x));
}

static void graphs(void) {
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaEvent_t from, to;
    enum cudaStreamCaptureStatus status;
    unsigned long long id;
    float ms = 0;
    size_t n = 0;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaEventCreate(&from));
    OK(cudaEventCreate(&to));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    __cudaPushCallConfiguration((dim3){4, 1, 1}, (dim3){128, 1, 1}, 0, s);
    kernel(NULL);
#if CUDART_VERSION >= 13000
    OK(cudaStreamGetCaptureInfo(s, &status, &id, NULL, NULL, NULL, NULL));
#else
    OK(cudaStreamGetCaptureInfo(s, &status, &id, NULL, NULL, NULL));
#endif
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphGetNodes(g, NULL, &n));
    OK(cudaGraphInstantiate(&e, g, 0));
    OK(cudaEventRecord(from, s));
    OK(cudaGraphLaunch(e, s));
    OK(cudaEventRecord(to, s));
    OK(cudaEventSynchronize(to));
    OK(cudaEventElapsedTime(&ms, from, to));
    printf("graph: capture %d, %zu node, it took %s\n", status, n, ms > 0 ? "time" : "none");
    OK(cudaGraphExecDestroy(e));
    OK(cudaGraphDestroy(g));
    OK(cudaStreamDestroy(s));
}

static void *thread(void *out) {
    void *p;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&p, MIB));
    __cudaPushCallConfiguration((dim3){1, 1, 1}, (dim3){32, 1, 1}, 0, 0);
    kernel(p);
    OK(cudaDeviceSynchronize());
    struct cudaPointerAttributes a;
    OK(cudaPointerGetAttributes(&a, p));
    *(int *)out = a.device;
    return NULL;
}

static void threads(void) {
    pthread_t t;
    int there = -1, here;
    void *entry;
    enum cudaDriverEntryPointQueryResult status;
    pthread_create(&t, NULL, thread, &there);
    pthread_join(t, NULL);
    OK(cudaGetDevice(&here));
    printf("another thread uses device %d, this one %d\n", there, here);
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 12000, cudaEnableDefault, &status));
    printf("driver's cuMemAlloc: %d, %s\n", status, entry ? "found" : "missing");
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &entry, 12000, cudaEnableDefault, &status));
    printf("driver's cuNothing: %d, %s\n", status, entry ? "found" : "missing");
    OK(cudaDeviceReset());
    __cudaPushCallConfiguration((dim3){1, 1, 1}, (dim3){32, 1, 1}, 0, 0);
    kernel(NULL);
    printf("kernel after a reset: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}

int main(void) {
    static char image[16];
    int n;
    if (cudaGetDeviceCount(&n)) {
        printf("%s\n", cudaGetErrorName(cudaPeekAtLastError()));
        return 3;
    }
    void **library = __cudaRegisterFatBinary(image);
    __cudaRegisterFunction(library, (const char *)kernel, "kernel", "_Z6kernelPi", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(library, variable, variable, "variable", 0, sizeof variable, 0, 0);
    __cudaRegisterFatBinaryEnd(library);
    devices();
    memory();
    kernels();
    graphs();
    threads();
    __cudaUnregisterFatBinary(library);
    printf("kernel of an unloaded library: %s\n",
           cudaGetErrorName(cudaLaunchKernel((const void *)kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, 0)));
    return 0;
}
