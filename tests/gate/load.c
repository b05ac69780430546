/* A program with one habit, for the gate's tests:
 *
 *   load WAY MICROSECONDS [BURST GAP_MICROSECONDS]
 *
 * launches kernels of that length for ever by the named route, or copies or fills a megabyte each time; with BURST, so
 * many at a time, then it synchronises and rests. Every 20 ms it prints "NANOSECONDS LAUNCHES": the clock, and how many
 * kernels it has launched. It ends when its input does. Some ways are special:
 *
 *   brief            launches three kernels, waits for the end of its input, launches three more and ends
 *   gpus             launches on the second GPU as well
 *   elsewhere        launches a library's kernel into a stream of the second GPU, while the first one's context is current
 *   beside           the same, into a stream of the first GPU, while another context of it is current
 *   nowhere          the same, while none is
 *   contexts, reset  destroys the context every 20 launches, with work in flight
 *   retains, green   retains the primary context after each launch, and releases it; the runtime, or a green context, holds it
 *   refused          after each launch and in another thread, it tries to destroy the primary context
 *   child            forks every 200 launches, and ends with 4 if its child gets through a launch
 *   silent           launches 900 at once; the first system call among the last 800 kills it
 *   shapes           each launch has another grid
 *   modules, jitted  each launch has another handle of a kernel of the same name, or of another name
 *   graphs           each launch has a graph of one kernel that was just instantiated
 *   grows            its first fifty kernels are a quarter as long
 *   leaves           launches one kernel, and exits 150 ms later
 *   eager            never waits for its kernels, from the first one on
 *   paced            rests after each launch for twice as long as its kernel takes on a GPU that is slowed down ten
 *                    times, and never looks whether the kernel is done
 *   rare             the same, for sixty times as long */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

struct config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream, *attributes;
    unsigned n;
};

#define PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD */
static void *function, *stream, *graph, *captured;
static unsigned long microseconds;
static uint64_t there, here; /* memory of the GPU */
static char host[1 << 20];

enum { MEGABYTE = 1 << 20, LITTLE = 4096 };

struct side {
    size_t x, y;
    unsigned type;
    void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};

struct solid { /* of a CUDA_MEMCPY3D_PEER */
    size_t x, y, z, level;
    unsigned type;
    void *host;
    uint64_t device;
    void *array, *context;
    size_t pitch, height;
};
struct operand { /* CUmemcpy3DOperand */
    unsigned type;
    uint64_t at;
    size_t row, layer, hint;
};
struct op { /* CUDA_MEMCPY3D_BATCH_OP */
    struct operand from, to;
    size_t width, height, depth;
    unsigned order, flags;
};

static void *context, *array[2];

static struct solid solid(uint64_t at) {
    return (struct solid){.type = 2, .device = at, .context = context, .pitch = 1024, .height = 64};
}

static char image[200], name[64];
#ifdef THREAD_LOCAL
static _Thread_local volatile char thread_local_data[THREAD_LOCAL];
#endif

/* A kernel whose handle the driver never gave before, of the same name or of another one. They are loaded some at a time,
 * since loading waits for the GPU. */
static void *fresh(const char *way) {
    static void *ready[256];
    static unsigned left, number;
    for (bool empty = !left; empty && left < 256; left++) {
        char text[200], called[64];
        void *module;
        snprintf(called, sizeof called, "jit%u_%luus", strcmp(way, "jitted") ? 0 : number++, microseconds);
        snprintf(text, sizeof text, "// %s", called);
        MUST("cuModuleLoadData", &module, text);
        MUST("cuModuleGetFunction", &ready[left], module, called);
    }
    return ready[--left];
}

static void launch(const char *way) {
    struct config c = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    if (!strcmp(way, "ex"))
        MUST("cuLaunchKernelEx", &c, function, NULL, NULL);
    else if (!strcmp(way, "cooperative"))
        MUST("cuLaunchCooperativeKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
    else if (!strcmp(way, "ptsz"))
        MUST("cuLaunchKernel_ptsz", function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    else if (!strcmp(way, "graph"))
        MUST("cuGraphLaunch", graph, stream);
    else if (!strcmp(way, "graphs")) { /* none repeats */
        void *exec;
        MUST("cuGraphInstantiateWithFlags", &exec, captured, (uint64_t)0);
        MUST("cuGraphLaunch", exec, stream);
    } else if (!strcmp(way, "modules") || !strcmp(way, "jitted"))
        MUST("cuLaunchKernel", fresh(way), 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    else if (!strcmp(way, "grows")) {
        static unsigned launched;
        uint64_t ns = launched++ < 50 ? microseconds * 250 : microseconds * 1000;
        void *parameters[] = {&ns};
        MUST("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
    } else if (!strcmp(way, "copy"))
        MUST("cuMemcpyDtoDAsync_v2", there, here, (size_t)MEGABYTE, stream);
    else if (!strcmp(way, "copy any"))
        MUST("cuMemcpyAsync", there, here, (size_t)MEGABYTE, stream);
    else if (!strcmp(way, "copy now"))
        MUST("cuMemcpyDtoD_v2", there, here, (size_t)MEGABYTE);
    else if (!strcmp(way, "copy rows")) {
        struct {
            struct side from, to;
            size_t width, height;
        } c = {{.type = 2, .device = here, .pitch = 1024}, {.type = 2, .device = there, .pitch = 1024}, 1024, 1024};
        MUST("cuMemcpy2DAsync_v2", &c, stream);
    } else if (!strcmp(way, "copy peer box")) {
        struct {
            struct solid from, to;
            size_t width, height, depth;
        } c = {solid(here), solid(there), 1024, 64, 16};
        MUST("cuMemcpy3DPeerAsync", &c, stream);
    } else if (!strncmp(way, "copy batch", 10)) {
        uint64_t to[2] = {there, there + MEGABYTE / 2}, from[2] = {here, here + MEGABYTE / 2};
        size_t half[2] = {MEGABYTE / 2, MEGABYTE / 2};
        if (!strcmp(way, "copy batch 12.8"))
            MUST("cuMemcpyBatchAsync", to, from, half, (size_t)2, NULL, NULL, (size_t)0, NULL, stream);
        else
            MUST("cuMemcpyBatchAsync_v2", to, from, half, (size_t)2, NULL, NULL, (size_t)0, stream);
    } else if (!strncmp(way, "copy box", 8)) {
        struct op c[2] = {
            {.from = {.type = 1, .at = here}, .to = {.type = 1, .at = there}, .width = 1024, .height = 512, .depth = 1},
            {.from = {.type = 1, .at = here}, .to = {.type = 1, .at = there}, .width = 512, .height = 64, .depth = 16}};
        if (!strcmp(way, "copy boxes 12.8"))
            MUST("cuMemcpy3DBatchAsync", (size_t)2, c, NULL, 0ull, stream);
        else if (!strcmp(way, "copy boxes"))
            MUST("cuMemcpy3DBatchAsync_v2", (size_t)2, c, 0ull, stream);
        else {
            c->height = 1024;
            MUST("cuMemcpy3DWithAttributesAsync", c, 0ull, stream);
        }
    } else if (!strcmp(way, "copy attributed"))
        MUST("cuMemcpyWithAttributesAsync", there, here, (size_t)MEGABYTE, NULL, stream);
    else if (!strcmp(way, "fill"))
        MUST("cuMemsetD32Async", there, 7, (size_t)MEGABYTE / 4, stream);
    else if (!strcmp(way, "fill rows"))
        MUST("cuMemsetD2D8_v2", there, (size_t)1024, 7, (size_t)1024, (size_t)1024);
    else if (!strcmp(way, "copy peer"))
        MUST("cuMemcpyPeerAsync", there, context, here, context, (size_t)MEGABYTE, stream);
    else if (!strcmp(way, "copy to array"))
        MUST("cuMemcpyDtoA_v2", array[0], (size_t)0, here, (size_t)MEGABYTE);
    else if (!strcmp(way, "copy from array"))
        MUST("cuMemcpyAtoD_v2", there, array[0], (size_t)0, (size_t)MEGABYTE);
    else if (!strcmp(way, "copy arrays"))
        MUST("cuMemcpyAtoA_v2", array[1], (size_t)0, array[0], (size_t)0, (size_t)MEGABYTE);
    else if (!strcmp(way, "copy into array"))
        MUST("cuMemcpyHtoA_v2", array[0], (size_t)0, host, (size_t)MEGABYTE);
    else if (!strcmp(way, "copy little"))
        MUST("cuMemcpyAsync", there, here, (size_t)LITTLE, stream);
    else if (!strcmp(way, "fill little"))
        MUST("cuMemsetD8Async", there, 1, (size_t)LITTLE, stream);
    else if (!strcmp(way, "copy nothing"))
        MUST("cuMemcpyAsync", there, here, (size_t)0, stream);
    else if (!strcmp(way, "copy in"))
        MUST("cuMemcpyAsync", there, host, (size_t)MEGABYTE, stream);
    else if (!strcmp(way, "copy out"))
        MUST("cuMemcpyDtoHAsync_v2", host, there, (size_t)MEGABYTE, stream);
    else if (!strcmp(way, "shapes")) { /* none repeats */
        static unsigned shape;
        shape++;
        MUST("cuLaunchKernel", function, 1 + shape % 65535, 1 + shape / 65535, 1, 32, 1, 1, 0, stream, NULL, NULL);
    } else
        MUST("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

/* In the current context. */
static void set_up(const char *way) {
    void *module;
    MUST("cuModuleLoadData", &module, image);
    MUST("cuModuleGetFunction", &function, module, name);
    if (strcmp(way, "legacy"))
        MUST("cuStreamCreate", &stream, 1);
    MUST("cuMemAlloc_v2", &here, (size_t)MEGABYTE);
    MUST("cuMemAlloc_v2", &there, (size_t)MEGABYTE);
    struct {
        size_t width, height;
        unsigned format, channels;
    } row = {MEGABYTE / 16, 0, 0x20 /* CU_AD_FORMAT_FLOAT */, 4};
    for (int i = 0; i < 2 && strstr(way, "array"); i++)
        MUST("cuArrayCreate_v2", &array[i], &row);
}

/* A library that holds the primary context only for a moment. */
static void hold_shortly(void) {
    void *same;
    MUST("cuDevicePrimaryCtxRetain", &same, 0);
    MUST("cuDevicePrimaryCtxRelease_v2", 0);
}

/* From now on a green context alone holds the primary one. */
static void leave_to_green(void) {
    unsigned char resource[144];
    void *description, *green;
    MUST("cuDeviceGetDevResource", 0, resource, 1);
    MUST("cuDevResourceGenerateDesc", &description, resource, 1);
    MUST("cuGreenCtxCreate", &green, description, 0, 1);
    MUST("cuDevicePrimaryCtxRelease_v2", 0);
}

/* A primary context cannot be destroyed. */
static void *destroy_in_vain(void *for_ever) {
    do
        if (!CALL("cuCtxDestroy_v2", context))
            exit(6);
    while (for_ever);
    return NULL;
}

static void renew(const char *way) {
    if (!strcmp(way, "contexts")) {
        MUST("cuCtxDestroy_v2", context);
        MUST("cuCtxCreate_v2", &context, 0, 0);
    } else {
        MUST("cuDevicePrimaryCtxReset_v2", 0);
        MUST("cuDevicePrimaryCtxRetain", &context, 0);
        MUST("cuCtxSetCurrent", context);
    }
    set_up(way);
}

/* CUDA does not outlive a fork. */
static void fork_one(void) {
    int status;
    pid_t child = fork();
    if (!child)
        exit(CALL("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) != 3 ||
             CALL("cuCtxSynchronize") != 3 || CALL("cuInit", 0) != 3);
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        exit(4);
}

/* From here on, any other system call kills us. The simulated driver needs those for the time. */
static void forbid(void) {
#define ALLOW(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter list[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), ALLOW(SYS_write), ALLOW(SYS_exit_group),
                                 ALLOW(SYS_clock_gettime), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
    struct sock_fprog filter = {sizeof list / sizeof *list, list};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        exit(5);
}

static void silent(void) {
    for (int i = 0; i < 900; i++) {
        if (i == 100) { /* every function was called once */
            MUST("cuStreamSynchronize", stream);
            forbid();
        }
        MUST("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    }
    _exit(write(1, "1 900\n", 6) != 6);
}

static void *second(void *unused) {
    void *other, *module, *own, *f;
    MUST("cuDevicePrimaryCtxRetain", &other, 1);
    MUST("cuCtxSetCurrent", other);
    MUST("cuModuleLoadData", &module, image);
    MUST("cuModuleGetFunction", &f, module, name);
    MUST("cuStreamCreate", &own, 1);
    for (;;)
        MUST("cuLaunchKernel", f, 1, 1, 1, 32, 1, 1, 0, own, NULL, NULL);
    return unused;
}

static void part_from_stream(const char *way) {
    void *other = NULL, *library;
    MUST("cuLibraryLoadData", &library, image, NULL, NULL, 0, NULL, NULL, 0);
    MUST("cuLibraryGetKernel", &function, library, name);
    if (!strcmp(way, "beside"))
        MUST("cuCtxCreate_v2", &other, 0, 0);
    if (!strcmp(way, "elsewhere")) {
        MUST("cuDevicePrimaryCtxRetain", &other, 1);
        MUST("cuCtxSetCurrent", other);
        MUST("cuStreamCreate", &stream, 1);
        other = context;
    }
    MUST("cuCtxSetCurrent", other);
}

static void *beside(void *unused) {
    void *own;
    MUST("cuCtxSetCurrent", context);
    MUST("cuStreamCreate", &own, 1);
    for (unsigned i = 0;; i++) {
        MUST("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, own, NULL, NULL);
        if (i % 50 == 49) {
            MUST("cuStreamSynchronize", own);
            MUST("cuStreamDestroy_v2", own);
            MUST("cuStreamCreate", &own, 1);
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    const char *way = argv[1];
    unsigned long burst = argc > 4 ? strtoul(argv[3], NULL, 10) : 0, gap = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda)
        return 2;
#ifdef THREAD_LOCAL
    thread_local_data[0] = 1;
#endif
    snprintf(name, sizeof name, "spin_%sus", argv[2]);
    microseconds = strtoul(argv[2], NULL, 10);
    snprintf(image, sizeof image, "// %s%s", name, strcmp(way, "grows") ? "" : " sim_param");
    MUST("cuInit", 0);
    if (strcmp(way, "contexts")) {
        MUST("cuDevicePrimaryCtxRetain", &context, 0);
        MUST("cuCtxSetCurrent", context);
    } else {
        MUST("cuCtxCreate_v2", &context, 0, 0);
    }
    set_up(way);
    if (!strncmp(way, "graph", 5)) {
        MUST("cuStreamBeginCapture_v2", stream, 0);
        for (int i = 0; i < (way[5] ? 1 : 10); i++)
            MUST("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
        MUST("cuStreamEndCapture", stream, &captured);
        MUST("cuGraphInstantiateWithFlags", &graph, captured, (uint64_t)0);
    }
    if (!strcmp(way, "threads"))
        for (int i = 0; i < 3; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, beside, NULL);
        }
    if (!strcmp(way, "green"))
        leave_to_green();
    if (!strcmp(way, "refused")) {
        pthread_t thread;
        pthread_create(&thread, NULL, destroy_in_vain, &thread);
    }
    if (!strcmp(way, "gpus")) {
        pthread_t thread;
        pthread_create(&thread, NULL, second, NULL);
    }
    if (!strcmp(way, "elsewhere") || !strcmp(way, "beside") || !strcmp(way, "nowhere"))
        part_from_stream(way);
    if (!strcmp(way, "fork") || !strcmp(way, "exec")) {
        for (int i = 0; i < 50; i++)
            launch(way);
        argv[1] = "plain";
        pid_t child = strcmp(way, "fork") ? 0 : fork();
        if (!child)
            execv(strcmp(way, "fork") ? argv[0] : "/proc/self/exe", argv);
    }
    for (int i = 0; !strcmp(way, "brief") && i < 6; i++) {
        launch(way);
        if (i == 2) {
            MUST("cuStreamSynchronize", stream);
            puts("1 3");
            fflush(stdout);
            while (read(0, name, sizeof name) > 0)
                ;
        }
        if (i == 5) {
            MUST("cuStreamSynchronize", stream);
            return 0;
        }
    }
    if (!strcmp(way, "silent"))
        silent();
    if (!strcmp(way, "leaves")) {
        launch(way);
        puts("1 1");
        fflush(stdout);
        usleep(150000);
        return 0;
    }
    uint64_t count = 0, said = 0, began = now();
    for (;;) {
        launch(way);
        count++;
        if (count % 20 == 0 && (!strcmp(way, "contexts") || !strcmp(way, "reset")))
            renew(way);
        if (!strcmp(way, "retains") || !strcmp(way, "green"))
            hold_shortly();
        if (!strcmp(way, "refused"))
            destroy_in_vain(NULL);
        if (count % 200 == 0 && !strcmp(way, "child"))
            fork_one();
        if (now() - began < 400000000 &&
            strcmp(way, "eager")) /* until the other programs run, too, so that no queue was filled while alone */
            MUST("cuStreamSynchronize", strcmp(way, "ptsz") ? stream : PER_THREAD);
        if (!strcmp(way, "paced") || !strcmp(way, "rare"))
            usleep((useconds_t)microseconds * (*way == 'p' ? 20 : 600));
        if (burst && count % burst == 0) {
            MUST("cuStreamSynchronize", stream);
            usleep((useconds_t)gap);
        }
        uint64_t t = now();
        if (t - said > 20000000) {
            struct pollfd in = {0, POLLIN, 0};
            said = t;
            printf("%llu %llu\n", (unsigned long long)t, (unsigned long long)count);
            fflush(stdout);
            if (poll(&in, 1, 0) > 0)
                break;
        }
    }
    MUST("cuCtxSynchronize");
    return 0;
}
