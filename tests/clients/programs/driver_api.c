/* The driver API from C, compiled against the toolkit's cuda.h and linked with libcuda: one line of JSON for each step. */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define STEP(call) answer(#call, call)

static const char *name_of(CUresult r) {
    const char *name = NULL;
    if (cuGetErrorName(r, &name) != CUDA_SUCCESS)
        name = "(no name)";
    return name;
}

static CUresult answer(const char *step, CUresult r) {
    char plain[200];
    size_t n = 0;
    for (const char *c = step; *c && n < sizeof plain - 1; c++)
        plain[n++] = *c == '"' || *c == '\\' ? '\'' : *c;
    plain[n] = 0;
    static unsigned number; /* the same call may come twice */
    printf("{\"step\": \"%u %s\", \"is\": \"%s%s\"}\n", ++number, plain, r ? "failed: " : "", name_of(r));
    fflush(stdout);
    return r;
}

static void number(const char *step, unsigned long long value) {
    printf("{\"step\": \"%s\", \"is\": %llu}\n", step, value);
    fflush(stdout);
}

static void room(const char *when) {
    size_t free = 0, total = 0;
    char step[100];
    cuMemGetInfo(&free, &total);
    snprintf(step, sizeof step, "%s: free MiB", when);
    number(step, free / MIB);
    snprintf(step, sizeof step, "%s: total MiB", when);
    number(step, total / MIB);
}

/* The largest allocation that succeeds at once, to 1 MiB; a MiB more is refused, and a GPU more. */
static void largest(void) {
    size_t low = 0, high = 1 << 20; /* MiB */
    CUdeviceptr at;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (cuMemAlloc(&at, middle * MIB) == CUDA_SUCCESS) {
            cuMemFree(at);
            low = middle;
        } else
            high = middle;
    }
    number("largest cuMemAlloc, MiB", low);
    number("one MiB more", cuMemAlloc(&at, (low + 1) * MIB));
    number("all bits", cuMemAlloc(&at, SIZE_MAX));
    room("after the largest");
}

static void memory(void) {
    CUdeviceptr at = 0, base = 0;
    size_t pitch = 0, size = 0;
    void *host = NULL;
    unsigned char back[64] = {0};
    unsigned flags = 99;
    STEP(cuMemAllocPitch(&at, &pitch, 1000, 100, 4));
    number("pitch", pitch);
    STEP(cuMemGetAddressRange(&base, &size, at + 10));
    number("size of the range", size);
    STEP(cuMemsetD2D8(at, pitch, 7, 1000, 100));
    STEP(cuMemcpyDtoH(back, at + pitch, sizeof back));
    number("byte", back[63]);
    STEP(cuMemFree(at));
    STEP(cuMemFree(at));
    STEP(cuMemHostAlloc(&host, MIB, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    STEP(cuMemHostGetFlags(&flags, host));
    STEP(cuMemHostGetDevicePointer(&at, host, 0));
    STEP(cuMemsetD8(at, 5, MIB));
    STEP(cuCtxSynchronize());
    number("host byte", ((unsigned char *)host)[MIB - 1]);
    STEP(cuMemFreeHost(host));
    host = aligned_alloc(4096, MIB);
    STEP(cuMemHostRegister(host, MIB, 0));
    STEP(cuMemHostRegister(host, MIB, 0));
    STEP(cuMemHostUnregister(host));
    free(host);
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 1024, .Height = 1024, .Depth = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    STEP(cuArray3DCreate(&array, &shape));
    room("with an array");
    STEP(cuArray3DGetDescriptor(&shape, array));
    STEP(cuArrayDestroy(array));
    CUmipmappedArray mipmap;
    STEP(cuMipmappedArrayCreate(&mipmap, &shape, 3));
    STEP(cuMipmappedArrayDestroy(mipmap));
    STEP(cuMemAllocManaged(&at, 64 * MIB, CU_MEM_ATTACH_GLOBAL));
    room("with managed memory");
    STEP(cuMemFree(at));
    room("after all of it");
}

static void virtual_memory(CUdevice device) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle[2];
    CUdeviceptr at = 0;
    size_t grain = 0;
    unsigned word = 0;
    STEP(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    number("granularity", grain);
    STEP(cuMemAddressReserve(&at, 1024 * grain, 0, 0, 0));
    STEP(cuMemCreate(&handle[0], grain, &prop, 0));
    STEP(cuMemCreate(&handle[1], 7 * grain, &prop, 0));
    STEP(cuMemMap(at, grain, 0, handle[0], 0));
    STEP(cuMemMap(at + grain, 7 * grain, 0, handle[1], 0));
    STEP(cuMemMap(at, grain, 0, handle[0], 0));
    STEP(cuMemSetAccess(at, 8 * grain, &access, 1));
    STEP(cuMemsetD32(at, 0x01020304, 2 * grain));
    STEP(cuMemcpyDtoH(&word, at + grain, sizeof word));
    number("word", word);
    STEP(cuMemRelease(handle[1]));
    room("released but mapped");
    STEP(cuMemUnmap(at, 8 * grain));
    room("unmapped");
    STEP(cuMemRelease(handle[0]));
    STEP(cuMemAddressFree(at, 1024 * grain));
    STEP(cuMemCreate(&handle[0], grain + 1, &prop, 0));
    room("after virtual memory");
}

static void pools(CUdevice device) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool pool, standard;
    CUdeviceptr at = 0;
    CUstream stream;
    cuuint64_t value = 0;
    STEP(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1));
    STEP(cuMemPoolCreate(&pool, &props));
    STEP(cuMemAllocFromPoolAsync(&at, 100 * MIB, pool, stream));
    STEP(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    number("used of the pool", value);
    STEP(cuMemFreeAsync(at, stream));
    STEP(cuStreamSynchronize(stream));
    STEP(cuMemPoolTrimTo(pool, 0));
    room("after a pool was trimmed");
    STEP(cuDeviceGetDefaultMemPool(&standard, device));
    value = UINT64_MAX;
    STEP(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    STEP(cuMemAllocAsync(&at, 200 * MIB, stream));
    STEP(cuMemFreeAsync(at, stream));
    STEP(cuStreamSynchronize(stream));
    room("a pool keeps 200 MiB");
    STEP(cuMemPoolTrimTo(standard, 0));
    room("trimmed");
    STEP(cuMemPoolDestroy(pool));
    STEP(cuStreamDestroy(stream));
}

static void graphs(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node[3];
    CUcontext context = NULL;
    CUdeviceptr at;
    unsigned char byte = 0;
    size_t count = 0;
    cuCtxGetCurrent(&context);
    STEP(cuMemAlloc(&at, MIB));
    STEP(cuGraphCreate(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS set = {.dst = at, .value = 9, .elementSize = 1, .width = MIB, .height = 1};
    STEP(cuGraphAddMemsetNode(&node[0], graph, NULL, 0, &set, context));
    STEP(cuGraphAddEmptyNode(&node[1], graph, &node[0], 1));
    STEP(cuGraphGetNodes(graph, NULL, &count));
    number("nodes", count);
    STEP(cuGraphInstantiate(&exec, graph, 0));
    STEP(cuGraphLaunch(exec, 0));
    STEP(cuStreamSynchronize(0));
    STEP(cuMemcpyDtoH(&byte, at + MIB - 1, 1));
    number("byte of the graph", byte);
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphDestroy(graph));
    STEP(cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS take = {0};
    take.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    take.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    take.bytesize = 100 * MIB;
    STEP(cuGraphAddMemAllocNode(&node[0], graph, NULL, 0, &take));
    STEP(cuGraphAddMemFreeNode(&node[1], graph, &node[0], 1, take.dptr));
    STEP(cuGraphInstantiate(&exec, graph, 0));
    STEP(cuGraphLaunch(exec, 0));
    STEP(cuStreamSynchronize(0));
    STEP(cuGraphExecDestroy(exec));
    STEP(cuGraphDestroy(graph));
    STEP(cuDeviceGraphMemTrim(0));
    STEP(cuMemFree(at));
    room("after graphs");
}

static void *in_thread(void *context) {
    CUdeviceptr at;
    cuCtxSetCurrent(context);
    for (int i = 0; i < 200; i++) {
        if (cuMemAlloc(&at, (size_t)(i % 7 + 1) << 16) != CUDA_SUCCESS || cuMemFree(at) != CUDA_SUCCESS)
            return (void *)1;
    }
    return NULL;
}

static void threads(void) {
    CUcontext context = NULL;
    pthread_t thread[8];
    unsigned long long failed = 0;
    void *result;
    cuCtxGetCurrent(&context);
    for (int i = 0; i < 8; i++)
        pthread_create(&thread[i], NULL, in_thread, context);
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], &result);
        failed += result != NULL;
    }
    number("threads that failed", failed);
    room("after threads");
}

static void contexts(CUdevice device) {
    CUcontext made, popped = NULL;
    CUdeviceptr at;
    unsigned flags = 0;
    int active = 0;
    STEP(cuCtxCreate(&made, CU_CTX_SCHED_BLOCKING_SYNC, device));
    STEP(cuMemAlloc(&at, 100 * MIB));
    room("in a second context");
    STEP(cuCtxGetFlags(&flags));
    STEP(cuCtxPopCurrent(&popped));
    STEP(cuCtxDestroy(made)); /* with what was allocated in it */
    room("after the context");
    STEP(cuCtxDestroy(made));
    STEP(cuDevicePrimaryCtxGetState(device, &flags, &active));
    number("primary context is active", (unsigned)active);
}

static void shared(const char *self) {
    CUipcMemHandle handle;
    CUdeviceptr at;
    STEP(cuMemAlloc(&at, 4 * MIB));
    STEP(cuMemsetD8(at, 42, 4 * MIB));
    STEP(cuIpcGetMemHandle(&handle, at));
    FILE *file = fopen("/tmp/handle", "w");
    fwrite(&handle, sizeof handle, 1, file);
    fclose(file);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        execl(self, self, "child", (char *)NULL);
    int status = -1;
    waitpid(pid, &status, 0);
    number("status of the child", (unsigned)status);
    STEP(cuMemFree(at));
    room("after the child");
}

static int child(void) {
    CUipcMemHandle handle;
    CUcontext context;
    CUdeviceptr at;
    unsigned char byte = 0;
    FILE *file = fopen("/tmp/handle", "r");
    if (!file || fread(&handle, sizeof handle, 1, file) != 1)
        return 1;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 2;
    if (cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) || cuMemcpyDtoH(&byte, at, 1))
        return 3;
    number("byte that the child sees", byte);
    return cuIpcCloseMemHandle(at) ? 4 : 0;
}

/* A fork's child may not use the parent's context; it may end without harm to the parent. */
static void forked(void) {
    fflush(stdout);
    CUdeviceptr at;
    pid_t pid = fork();
    if (pid == 0)
        _exit(cuMemAlloc(&at, MIB) == CUDA_SUCCESS);
    int status = -1;
    waitpid(pid, &status, 0);
    number("a fork's child could allocate", (unsigned)WEXITSTATUS(status));
    STEP(cuMemAlloc(&at, MIB));
    STEP(cuMemFree(at));
}

static void by_name(void) {
    static const char *const names[] = {"cuMemAlloc",  "cuMemGetInfo",   "cuMemAllocAsync",
                                        "cuCtxCreate", "cuLaunchKernel", "cuNoSuchCall"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CUdriverProcAddressQueryResult how = 99;
        void *found = NULL;
        CUresult r = cuGetProcAddress(names[i], &found, 12040, CU_GET_PROC_ADDRESS_DEFAULT, &how);
        char step[80];
        snprintf(step, sizeof step, "cuGetProcAddress of %s: result, found, how", names[i]);
        number(step, (unsigned)r * 100u + (found != NULL) * 10u + (unsigned)how);
    }
}

int main(int argc, char **argv) {
    if (argc > 1)
        return child();
    CUdevice device = 0;
    CUcontext context;
    char text[64] = "";
    size_t total = 0;
    int count = 0, version = 0;
    STEP(cuMemAlloc(&(CUdeviceptr){0}, 1)); /* before cuInit */
    STEP(cuInit(0));
    STEP(cuInit(1));
    STEP(cuDriverGetVersion(&version));
    number("version", (unsigned)version);
    STEP(cuDeviceGetCount(&count));
    number("devices", (unsigned)count);
    STEP(cuDeviceGet(&device, 0));
    STEP(cuDeviceGet(&(CUdevice){0}, count));
    STEP(cuDeviceGetName(text, sizeof text, device));
    STEP(cuDeviceTotalMem(&total, device));
    number("total MiB", total / MIB);
    STEP(cuMemAlloc(&(CUdeviceptr){0}, 1)); /* without a context */
    STEP(cuDevicePrimaryCtxRetain(&context, device));
    STEP(cuCtxSetCurrent(context));
    room("at the start");
    largest();
    memory();
    virtual_memory(device);
    pools(device);
    graphs();
    threads();
    contexts(device);
    shared(argv[0]);
    forked();
    by_name();
    STEP(cuDevicePrimaryCtxRelease(device));
    return 0;
}
