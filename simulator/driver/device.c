/* Simulated libcuda: initialisation, devices, contexts, errors. */
#define _GNU_SOURCE
#include "heap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CONTEXT_MAGIC 0x6374782d73696d21ull
#define STACK_FIRST 64 /* a deeper stack takes memory */

struct gpu sim_gpu[GPU_MAX];
int sim_gpus;
_Atomic bool sim_shares;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t *alive; /* in a page that the kernel clears in a forked child, where the driver is not initialised */
static struct context *contexts;
static struct {
    struct context *ctx;
    unsigned retained, flags;
} primary[GPU_MAX];
static __thread struct {
    CUcontext first[STACK_FIRST], *more;
    int depth, room; /* room: of `more` */
} current;
static __thread bool in_host_function;

/* --- initialisation --- */

/* CUDA_VISIBLE_DEVICES: indices or UUID prefixes. The first entry that names no GPU ends the list. */
static void narrow(const char *list) {
    struct gpu kept[GPU_MAX];
    int count = 0;
    while (*list && count < GPU_MAX) {
        size_t n = strcspn(list, ",");
        int hit = -1;
        char *end;
        long index = strtol(list, &end, 10);
        for (int i = 0; hit < 0 && i < sim_gpus; i++)
            if (n && (end == list + n ? index == i : !strncmp(sim_gpu[i].file->head.uuid, list, n)))
                hit = i;
        if (hit < 0)
            break;
        kept[count++] = sim_gpu[hit];
        list += n + (list[n] == ',');
    }
    memcpy(sim_gpu, kept, sizeof kept[0] * (size_t)count);
    sim_gpus = count;
}

API CUresult cuInit(unsigned flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (!alive) {
        int all = gpus_open(sim_gpu, GPU_MAX, true);
        sim_gpus = 0;
        for (int i = 0; i < all; i++) /* a GPU in MIG mode is not a device itself */
            if (sim_gpu[i].file->head.mig != GPU_SPLIT)
                sim_gpu[sim_gpus++] = sim_gpu[i];
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        if (visible)
            narrow(visible);
        if (sim_gpus) {
            uint32_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (page != MAP_FAILED) {
                madvise(page, 4096, 18 /* MADV_WIPEONFORK, Linux 4.14 */);
                *page = 1;
                alive = page;
            }
        }
        if (!alive)
            result = sim_gpus ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NO_DEVICE;
    } else if (!*alive)
        result = CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_unlock(&mutex);
    return result;
}

static bool checkpointed(void) {
    for (int i = 0; i < sim_gpus; i++)
        if (sim_gpu[i].slot >= 0 && atomic_load(&sim_gpu[i].file->slot[sim_gpu[i].slot].checkpoint))
            return true;
    return false;
}

CUresult sim_ready(void) {
    if (!alive || !*alive)
        return CUDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < sim_gpus && atomic_load_explicit(&sim_shares, memory_order_relaxed); i++)
        gpu_lock_pid(&sim_gpu[i]);
    while (checkpointed()) /* the real driver's calls wait, too */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return fault();
}

CUresult sim_device(CUdevice dev) {
    TRY(sim_ready());
    return dev >= 0 && dev < sim_gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = gpu_cuda_version(sim_gpu, sim_gpus);
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **text) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    switch (error) {
#define E(number, name, string) \
    case number: *text = #name; return CUDA_SUCCESS;
#include "errors.def"
#undef E
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    switch (error) {
#define E(number, name, string) \
    case number: *text = string; return CUDA_SUCCESS;
#include "errors.def"
#undef E
    }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    (void)id;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* --- devices --- */

API CUresult cuDeviceGetCount(int *count) {
    TRY(sim_ready());
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim_gpus;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
    TRY(sim_device(ordinal));
    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    *dev = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice dev) {
    TRY(sim_device(dev));
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", sim_gpu[dev].file->head.name);
    return CUDA_SUCCESS;
}

CUresult sim_uuid(CUuuid *uuid, CUdevice dev, bool instance) {
    const struct gpu_head *h = &sim_gpu[dev].file->head;
    const char *p = (instance || h->mig != GPU_PART ? h->uuid : h->parent) + 4; /* after "GPU-" */
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        while (*p == '-')
            p++;
        if (sscanf(p, "%2x", &byte) != 1)
            return CUDA_ERROR_UNKNOWN;
        uuid->bytes[i] = (unsigned char)byte;
        p += 2;
    }
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev, bool instance) {
    TRY(sim_device(dev));
    return uuid ? sim_uuid(uuid, dev, instance) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) { return get_uuid(uuid, dev, false); }
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) { return get_uuid(uuid, dev, true); }

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    TRY(sim_device(dev));
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = sim_gpu[dev].file->head.memory_total;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev) {
    size_t all;
    TRY(cuDeviceTotalMem_v2(&all, dev));
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = all > 0xffffffffu ? 0xffffffffu : (unsigned)all;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    TRY(sim_device(dev));
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = (int)sim_gpu[dev].file->head.capability / 10;
    *minor = (int)sim_gpu[dev].file->head.capability % 10;
    return CUDA_SUCCESS;
}

static void pci_parts(CUdevice dev, unsigned *domain, unsigned *bus, unsigned *device) {
    *domain = *bus = *device = 0;
    sscanf(sim_gpu[dev].file->head.pci, "%x:%x:%x", domain, bus, device);
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice dev) {
    TRY(sim_device(dev));
    if (!value || attribute < 1 || attribute > 200)
        return CUDA_ERROR_INVALID_VALUE;
    const struct gpu_head *h = &sim_gpu[dev].file->head;
    unsigned domain, bus, device;
    pci_parts(dev, &domain, &bus, &device);
    switch (attribute) {          /* CU_DEVICE_ATTRIBUTE_... */
    case 1: *value = 1024; break; /* MAX_THREADS_PER_BLOCK */
    case 2:
    case 3: *value = 1024; break;       /* MAX_BLOCK_DIM_X, _Y */
    case 4: *value = 64; break;         /* MAX_BLOCK_DIM_Z */
    case 5: *value = 2147483647; break; /* MAX_GRID_DIM_X */
    case 6:
    case 7: *value = 65535; break;                    /* MAX_GRID_DIM_Y, _Z */
    case 8: *value = 49152; break;                    /* MAX_SHARED_MEMORY_PER_BLOCK */
    case 9: *value = 65536; break;                    /* TOTAL_CONSTANT_MEMORY */
    case 10: *value = 32; break;                      /* WARP_SIZE */
    case 11: *value = 2147483647; break;              /* MAX_PITCH */
    case 12: *value = 65536; break;                   /* MAX_REGISTERS_PER_BLOCK */
    case 13: *value = 1000000; break;                 /* CLOCK_RATE, kHz */
    case 14: *value = 512; break;                     /* TEXTURE_ALIGNMENT */
    case 15: *value = 1; break;                       /* GPU_OVERLAP */
    case 16: *value = (int)h->sm_count; break;        /* MULTIPROCESSOR_COUNT */
    case 19: *value = 1; break;                       /* CAN_MAP_HOST_MEMORY */
    case 31: *value = 1; break;                       /* CONCURRENT_KERNELS */
    case 33: *value = (int)bus; break;                /* PCI_BUS_ID */
    case 34: *value = (int)device; break;             /* PCI_DEVICE_ID */
    case 36: *value = 1000000; break;                 /* MEMORY_CLOCK_RATE, kHz */
    case 37: *value = 1024; break;                    /* GLOBAL_MEMORY_BUS_WIDTH */
    case 38: *value = 33554432; break;                /* L2_CACHE_SIZE */
    case 39: *value = 2048; break;                    /* MAX_THREADS_PER_MULTIPROCESSOR */
    case 40: *value = 2; break;                       /* ASYNC_ENGINE_COUNT */
    case 41: *value = 1; break;                       /* UNIFIED_ADDRESSING */
    case 50: *value = (int)domain; break;             /* PCI_DOMAIN_ID */
    case 75: *value = (int)h->capability / 10; break; /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = (int)h->capability % 10; break; /* COMPUTE_CAPABILITY_MINOR */
    case 78: *value = 1; break;                       /* STREAM_PRIORITIES_SUPPORTED */
    case 91: *value = 1; break;                       /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    case 92:
    case 93:
    case 94: *value = 1; break; /* CAN_USE_STREAM_MEM_OPS_V1, 64_BIT_..., STREAM_WAIT_VALUE_NOR_V1 */
    case 95:
    case 96: *value = 1; break;  /* COOPERATIVE_LAUNCH, COOPERATIVE_MULTI_DEVICE_LAUNCH */
    case 99: *value = 1; break;  /* HOST_REGISTER_SUPPORTED */
    case 113: *value = 1; break; /* READ_ONLY_HOST_REGISTER_SUPPORTED */
    case 122:
    case 123: *value = 1; break;     /* CAN_USE_64_BIT_STREAM_MEM_OPS, CAN_USE_STREAM_WAIT_VALUE_NOR */
    case 81: *value = 101376; break; /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    case 82: *value = 65536; break;  /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    case 83: *value = 1; break;      /* MANAGED_MEMORY */
    case 89: *value = 1; break;      /* CONCURRENT_MANAGED_ACCESS */
    case 90: *value = 1; break;      /* COMPUTE_PREEMPTION_SUPPORTED */
    case 97: *value = 101376; break; /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    case 102: *value = 1; break;     /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    case 103: *value = 1; break;     /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    case 106: *value = 32; break;    /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    case 115: *value = 1; break;     /* MEMORY_POOLS_SUPPORTED */
    case 119: *value = 1; break;     /* MEMPOOL_SUPPORTED_HANDLE_TYPES: file descriptors */
    case 142:
    case 144: *value = gpu_has_functions_of(13000); break; /* HOST_NUMA_MEMORY_POOLS_..., HOST_MEMORY_POOLS_SUPPORTED */
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice dev) {
    TRY(sim_device(dev));
    if (!text || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned domain, bus, device;
    pci_parts(dev, &domain, &bus, &device);
    return snprintf(text, (size_t)length, "%04x:%02x:%02x.0", domain, bus, device) < length ? CUDA_SUCCESS
                                                                                            : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text) {
    TRY(sim_ready());
    unsigned domain = 0, bus, device, want[3];
    if (!dev || !text ||
        (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3 &&
         (domain = 0, sscanf(text, "%x:%x", &bus, &device) != 2)))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < sim_gpus; i++) {
        pci_parts(i, &want[0], &want[1], &want[2]);
        if (want[0] == domain && want[1] == bus && want[2] == device) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) {
    TRY(sim_device(a));
    TRY(sim_device(b));
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    *can = 0;
    return CUDA_SUCCESS;
}

/* --- contexts --- */

bool sim_context_valid(CUcontext ctx) {
    pthread_mutex_lock(&mutex);
    struct context *c = contexts;
    while (c && c != ctx)
        c = c->next;
    pthread_mutex_unlock(&mutex);
    return c != NULL;
}

static const size_t usual_limit[8] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0}; /* CU_LIMIT_STACK_SIZE, ... */

/* Mutex held. shared: the primary context of a green one, whose memory it uses. */
static CUresult make_context(CUcontext *out, CUdevice dev, unsigned flags, bool is_primary, CUcontext shared) {
    struct gpu *gpu = &sim_gpu[dev];
    uint64_t bytes = shared ? 0 : gpu->file->head.context_bytes;
    if (gpu->slot < 0 && !gpu_claim(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct context *ctx = calloc(1, sizeof *ctx);
    if (!ctx || (ctx->group = gpu_take_group(gpu)) < 0) {
        free(ctx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!gpu_reserve(gpu, bytes)) {
        gpu_release_group(gpu, ctx->group);
        free(ctx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_init(&ctx->mutex, NULL);
    ctx->magic = CONTEXT_MAGIC;
    ctx->device = dev;
    ctx->flags = flags;
    ctx->primary = is_primary;
    ctx->memory = shared ? shared : ctx;
    ctx->bytes = bytes;
    memcpy(ctx->limit, usual_limit, sizeof ctx->limit);
    ctx->null_stream.ctx = ctx;
    ctx->next = contexts;
    contexts = ctx;
    gpu->file->slot[gpu->slot].contexts++;
    *out = ctx;
    return CUDA_SUCCESS;
}

/* Mutex held. The object is kept, so that a stale handle on some thread's context stack is recognised. */
static void destroy_context(CUcontext ctx) {
    struct gpu *gpu = sim_gpu_of(ctx);
    for (struct context **p = &contexts; *p; p = &(*p)->next)
        if (*p == ctx) {
            *p = ctx->next;
            break;
        }
    channel_close(ctx);
    heap_free_all(ctx);
    pool_release(ctx->device, true);
    gpu_release(gpu, ctx->bytes);
    gpu->file->slot[gpu->slot].contexts--;
    ctx->magic = 0;
}

static CUcontext *top(void) {
    int i = current.depth - 1;
    return i < STACK_FIRST ? &current.first[i] : &current.more[i - STACK_FIRST];
}

static CUresult push(CUcontext ctx) {
    int more = current.depth + 1 - STACK_FIRST;
    if (more > current.room) {
        CUcontext *grown = realloc(current.more, 2 * (size_t)more * sizeof *grown);
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        current.more = grown;
        current.room = 2 * more;
    }
    current.depth++;
    *top() = ctx;
    return CUDA_SUCCESS;
}

static CUcontext pop_one(void) {
    CUcontext ctx = *top();
    if (--current.depth == STACK_FIRST) {
        free(current.more);
        current.more = NULL;
        current.room = 0;
    }
    return ctx;
}

void sim_run_host_function(void (*function)(void *), void *data) {
    bool before = in_host_function; /* one may set another going */
    in_host_function = true;
    function(data);
    in_host_function = before;
}

CUresult sim_context(CUcontext *ctx) {
    TRY(sim_ready());
    if (in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    CUcontext c = current.depth ? *top() : NULL;
    if (!c)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (c->magic != CONTEXT_MAGIC)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ctx = c;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult r = make_context(out, dev, flags, false, NULL);
    pthread_mutex_unlock(&mutex);
    return r ? r : push(*out);
}

API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice dev) { return create(out, flags, dev); }
API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice dev) { return create(out, flags, dev); }

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice dev) {
    (void)affinity;
    return count ? CUDA_ERROR_NOT_SUPPORTED : create(out, flags, dev);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice dev) {
    (void)params;
    return create(out, flags, dev);
}

static CUresult destroy(CUcontext ctx) {
    TRY(sim_ready());
    if (!sim_context_valid(ctx) || ctx->primary || ctx->memory != ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth && *top() == ctx)
        pop_one();
    pthread_mutex_lock(&mutex);
    destroy_context(ctx);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy(CUcontext ctx) { return destroy(ctx); }
API CUresult cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx); }

/* Mutex held. */
static CUresult retain(CUdevice dev) {
    CUresult r = CUDA_SUCCESS;
    if (!primary[dev].ctx)
        r = make_context(&primary[dev].ctx, dev, primary[dev].flags, true, NULL);
    if (!r)
        primary[dev].retained++;
    return r;
}

static CUresult primary_release(CUdevice dev, bool all);

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev) {
    TRY(sim_device(dev));
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult r = retain(dev);
    if (!r)
        *out = primary[dev].ctx;
    pthread_mutex_unlock(&mutex);
    return r;
}

CUresult context_green(CUcontext *out, CUdevice dev) {
    pthread_mutex_lock(&mutex);
    CUresult r = retain(dev);
    if (!r && (r = make_context(out, dev, 0, false, primary[dev].ctx)))
        primary[dev].retained--;
    pthread_mutex_unlock(&mutex);
    return r;
}

void context_green_destroy(CUcontext ctx) {
    pthread_mutex_lock(&mutex);
    CUdevice dev = ctx->device;
    if (ctx->magic == CONTEXT_MAGIC)
        destroy_context(ctx);
    pthread_mutex_unlock(&mutex);
    primary_release(dev, false);
}

static CUresult primary_release(CUdevice dev, bool all) {
    TRY(sim_device(dev));
    pthread_mutex_lock(&mutex);
    CUresult r = primary[dev].ctx || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (primary[dev].ctx && (all || !--primary[dev].retained)) {
        destroy_context(primary[dev].ctx);
        primary[dev].ctx = NULL;
        primary[dev].retained = 0;
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return primary_release(dev, false); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return primary_release(dev, false); }
API CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return primary_release(dev, true); }
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) { return primary_release(dev, true); }

static CUresult primary_flags(CUdevice dev, unsigned flags) {
    TRY(sim_device(dev));
    primary[dev].flags = flags;
    if (primary[dev].ctx)
        primary[dev].ctx->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned flags) { return primary_flags(dev, flags); }
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) { return primary_flags(dev, flags); }

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active) {
    TRY(sim_device(dev));
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = primary[dev].flags;
    *active = primary[dev].ctx != NULL;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext ctx) {
    TRY(sim_ready());
    if (ctx && !sim_context_valid(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx) {
        if (current.depth)
            pop_one();
        return CUDA_SUCCESS;
    }
    if (!current.depth)
        return push(ctx);
    *top() = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *ctx) {
    TRY(sim_ready());
    if (!ctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    *ctx = current.depth ? *top() : NULL;
    return CUDA_SUCCESS;
}

static CUresult push_checked(CUcontext ctx) {
    TRY(sim_ready());
    return sim_context_valid(ctx) ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult pop(CUcontext *ctx) {
    TRY(sim_ready());
    if (!current.depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext popped = pop_one();
    if (ctx)
        *ctx = popped;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent(CUcontext ctx) { return push_checked(ctx); }
API CUresult cuCtxPushCurrent_v2(CUcontext ctx) { return push_checked(ctx); }
API CUresult cuCtxPopCurrent(CUcontext *ctx) { return pop(ctx); }
API CUresult cuCtxPopCurrent_v2(CUcontext *ctx) { return pop(ctx); }

API CUresult cuCtxGetDevice(CUdevice *dev) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    *dev = ctx->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx) {
    if (!ctx)
        return cuCtxGetDevice(dev);
    TRY(sim_ready());
    if (!dev || !sim_context_valid(ctx))
        return dev ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *dev = ctx->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetFlags(unsigned *flags) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned *version) {
    TRY(sim_ready());
    if (ctx && !sim_context_valid(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id) {
    if (!ctx)
        TRY(sim_context(&ctx));
    if (!sim_context_valid(ctx))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned long long)(uintptr_t)ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

/* Bytes that a limit takes beyond its default: a stack for each thread that can run at once, the buffer of printf, the heap,
 * and what a level of device-side synchronisation saves ("up to ~150 MB", CUDA C++ Programming Guide, dynamic parallelism). */
static uint64_t limit_takes(const struct gpu *gpu, int limit, size_t value) {
    uint64_t more = value > usual_limit[limit] ? value - usual_limit[limit] : 0;
    switch (limit) {
    case 0: return more > 512 << 10 ? UINT64_MAX / 4 : more * gpu->file->head.sm_count * 2048;
    case 1:
    case 2: return more;
    case 3: return more > 24 ? UINT64_MAX / 4 : more * 150000000;
    default: return 0;
    }
}

API CUresult cuCtxGetLimit(size_t *value, int limit) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (limit < 0 || limit >= 8)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    *value = ctx->limit[limit];
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(int limit, size_t value) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (limit < 0 || limit >= 8)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    struct gpu *gpu = sim_gpu_of(ctx);
    pthread_mutex_lock(&mutex);
    uint64_t before = limit_takes(gpu, limit, ctx->limit[limit]), now = limit_takes(gpu, limit, value);
    bool ok = now <= before || (now <= gpu->file->head.memory_total && gpu_reserve(gpu, now - before));
    if (ok) {
        if (now < before)
            gpu_release(gpu, before - now);
        ctx->bytes += now - before;
        ctx->limit[limit] = value;
    }
    pthread_mutex_unlock(&mutex);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
