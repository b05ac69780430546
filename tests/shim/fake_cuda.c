/* A driver for the tests of the shim: without a GPU, but it counts memory as a driver does. The file $FAKE_GPU says how
 * much each process has; a record lock tells which processes still run, and the others have nothing. `peak` is the most
 * that all running processes ever had at once: the tests compare it with the limit.
 *
 * What matters to the shim: a pool grows in chunks and keeps them until a synchronisation (if its release threshold
 * allows), graph memory has a pool of its own, created memory exists while it has a handle or a mapping, arrays are
 * padded, and destroying a context frees its memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long u64;
enum { OK = 0, INVALID = 1, OOM = 2, NOT_INIT = 3, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

#define DEVICES 4
#define SLOTS 256
#define CHUNK (32ull << 20)
#define BLOCK (2ull << 20)
#define PITCH 512ull

struct gpu_file {
    u64 total[DEVICES], peak[DEVICES];
    struct {
        u64 used[DEVICES];
    } slot[SLOTS];
};

enum what { LINEAR = 1, POOLED, ARRAY, MIPMAP, HANDLE, IMPORTED, EXTERNAL };

struct piece {
    u64 key, size, want;
    int device, live, maps, refs;
    enum what what;
    void *owner; /* context or pool */
    struct piece *next;
};

struct pool {
    int device;
    u64 used, reserved, threshold;
    int dying;
    struct pool *next;
};

struct context {
    int device, attached;
} __attribute__((aligned(64)));

struct mapping {
    u64 at, size;
    struct piece *of;
    struct mapping *next;
};

struct graph {
    u64 bytes, out; /* out: taken by the last launch and not freed */
    int keeps;      /* instantiated with AUTO_FREE_ON_LAUNCH: frees at the next launch, not at its end */
    u64 at;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_file *gpu;
static int gpu_fd = -1, my_slot = -1, initialised;
static pid_t owner;
static struct piece *pieces;
static struct mapping *mappings;
static struct pool default_pool[DEVICES], graph_pool[DEVICES];
static struct pool *current_pool[DEVICES];
static struct pool *pools;
static struct context lasting[DEVICES], *primary[DEVICES], *spare;
static int primary_refs[DEVICES];
static __thread struct context *stack[16];
static __thread int depth;
static u64 next_pointer = 0x700010000000ull, next_handle = 1;

static int lock(int byte, short type, int wait) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(gpu_fd, wait ? F_SETLKW : F_SETLK, &l);
}

static int held_by_other(int byte) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(gpu_fd, F_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

static u64 living(int device) {
    u64 sum = 0;
    for (int i = 0; i < SLOTS; i++)
        if (gpu->slot[i].used[device] && (i == my_slot || held_by_other(100 + i)))
            sum += gpu->slot[i].used[device];
    return sum;
}

static int open_gpu(void) {
    const char *path = getenv("FAKE_GPU");
    gpu_fd = open(path ? path : "/run/gpu-hook/gpu", O_RDWR | O_CLOEXEC);
    if (gpu_fd < 0)
        return NOT_INIT;
    gpu = mmap(NULL, sizeof *gpu, PROT_READ | PROT_WRITE, MAP_SHARED, gpu_fd, 0);
    if (gpu == MAP_FAILED)
        return NOT_INIT;
    lock(0, F_WRLCK, 1);
    for (int i = 0; i < SLOTS && my_slot < 0; i++)
        if (lock(100 + i, F_WRLCK, 0) == 0) {
            my_slot = i;
            memset(&gpu->slot[i], 0, sizeof gpu->slot[i]);
        }
    lock(0, F_UNLCK, 1);
    owner = getpid();
    return my_slot < 0 ? NOT_INIT : OK;
}

/* Under `mutex`: bytes on the GPU itself. */
static int take(int device, u64 bytes) {
    int r = OK;
    lock(0, F_WRLCK, 1);
    u64 sum = living(device) + bytes;
    if (sum > gpu->total[device] || sum < bytes)
        r = OOM;
    else {
        gpu->slot[my_slot].used[device] += bytes;
        if (sum > gpu->peak[device])
            gpu->peak[device] = sum;
    }
    lock(0, F_UNLCK, 1);
    return r;
}

/* Why there is no room. A driver might take an amount that no GPU has for a wrong argument. */
static int no_room(u64 bytes) { return bytes >> 60 && getenv("FAKE_AMOUNTS_CAN_BE_WRONG") ? INVALID : OOM; }

static void give(int device, u64 bytes) {
    lock(0, F_WRLCK, 1);
    gpu->slot[my_slot].used[device] -= bytes;
    lock(0, F_UNLCK, 1);
}

static u64 up(u64 n, u64 to) { return (n + to - 1) / to * to; }

static struct piece *add(u64 key, u64 size, int device, enum what what, void *of) {
    struct piece *p = calloc(1, sizeof *p);
    *p = (struct piece){.key = key, .size = size, .device = device, .live = 1, .refs = 1, .what = what, .owner = of};
    p->next = pieces;
    return pieces = p;
}

static struct piece *find(u64 key, int a, int b) {
    for (struct piece *p = pieces; p; p = p->next)
        if (p->live && p->key == key && ((int)p->what == a || (int)p->what == b))
            return p;
    return NULL;
}

#define CONTEXT()                           \
    if (!initialised || owner != getpid())  \
        return NOT_INIT;                    \
    if (!depth || !stack[depth - 1])        \
        return NO_CONTEXT;                  \
    struct context *ctx = stack[depth - 1]; \
    int device = ctx->device;               \
    (void)device
#define LOCKED pthread_mutex_lock(&mutex)
#define DONE(r)                       \
    do {                              \
        int done_ = (r);              \
        pthread_mutex_unlock(&mutex); \
        return done_;                 \
    } while (0)

/* ---- devices and contexts ---- */

CUresult cuInit(unsigned flags) {
    (void)flags;
    LOCKED;
    int r = initialised ? OK : open_gpu();
    if (!r && !initialised) {
        for (int i = 0; i < DEVICES; i++) {
            default_pool[i].device = graph_pool[i].device = lasting[i].device = i;
            current_pool[i] = &default_pool[i];
        }
        initialised = 1;
    }
    DONE(r);
}
CUresult cuDriverGetVersion(int *v) { return *v = 12040, OK; }
/* Devices as CUDA_VISIBLE_DEVICES orders them; the numbers below are of GPUs. */
static int visible(int device) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (; list && *list && device; list++)
        device -= *list == ',';
    return list ? (*list ? atoi(list) : -1) : device;
}
CUresult cuDeviceGetCount(int *n) {
    for (*n = 0; *n < DEVICES && visible(*n) >= 0; ++*n) {}
    return initialised ? OK : NOT_INIT;
}
CUresult cuDeviceGet(int *device, int ordinal) {
    if (visible(ordinal) < 0)
        return 101;
    return *device = ordinal, initialised ? OK : NOT_INIT;
}
CUresult cuDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0xa0 + visible(device), 16);
    return initialised ? OK : NOT_INIT;
}
CUresult cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }
CUresult cuDeviceTotalMem_v2(size_t *n, int device) { return *n = gpu->total[visible(device)], OK; }
CUresult cuDeviceTotalMem(unsigned *n, int device) { return *n = (unsigned)gpu->total[visible(device)], OK; }

static CUresult push(struct context *ctx) { return stack[depth++] = ctx, OK; }
static struct context *new_context(int device) {
    struct context *ctx = spare ? spare : aligned_alloc(64, sizeof *ctx);
    spare = NULL;
    *ctx = (struct context){.device = device};
    return ctx;
}
CUresult cuCtxCreate_v2(void **out, unsigned flags, int device) {
    (void)flags;
    if (!initialised)
        return NOT_INIT;
    struct context *ctx = new_context(visible(device));
    *out = ctx;
    return push(ctx);
}
static void drop_context(struct context *ctx) {
    for (struct piece *p = pieces; p; p = p->next)
        if (p->live && p->owner == ctx && p->what != HANDLE) {
            p->live = 0;
            give(p->device, p->size);
        }
}
CUresult cuCtxDestroy_v2(void *ctx) {
    if (getenv("FAKE_REFUSE"))
        return 999;
    LOCKED;
    drop_context(ctx);
    if (depth && stack[depth - 1] == ctx)
        depth--;
    free(ctx); /* the next context has the same handle, as with real drivers */
    DONE(OK);
}
CUresult cuCtxAttach(void **out, unsigned flags) {
    CONTEXT();
    if (!out || flags)
        return INVALID;
    ctx->attached++;
    return *out = ctx, OK;
}
CUresult cuCtxDetach(struct context *ctx) { return ctx->attached ? ctx->attached--, OK : cuCtxDestroy_v2(ctx); }
/* With FAKE_PRIMARY_ENDS, a primary context ends with its last release or a reset, and the next context has its handle.
 * fake_retained is called after the next retain, as if the thread were held up then. */
void (*fake_retained)(void);
CUresult cuDevicePrimaryCtxRetain(void **out, int device) {
    int d = visible(device);
    void (*held_up)(void) = fake_retained;
    if (!initialised)
        return NOT_INIT;
    LOCKED;
    if (!primary[d])
        primary[d] = getenv("FAKE_PRIMARY_ENDS") ? new_context(d) : &lasting[d];
    primary_refs[d]++;
    *out = primary[d];
    pthread_mutex_unlock(&mutex);
    fake_retained = NULL;
    if (held_up)
        held_up();
    return OK;
}
static void drop_primary(int d) {
    if (primary[d])
        drop_context(primary[d]);
    if (!primary[d] || primary[d] == &lasting[d])
        return;
    spare = primary[d];
    primary[d] = NULL;
    primary_refs[d] = 0;
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    LOCKED;
    if (!primary_refs[visible(device)])
        DONE(NO_CONTEXT);
    if (!--primary_refs[visible(device)])
        drop_primary(visible(device));
    DONE(OK);
}
CUresult cuDevicePrimaryCtxReset_v2(int device) {
    LOCKED;
    drop_primary(visible(device));
    DONE(OK);
}
CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = primary_refs[visible(device)] > 0;
    return OK;
}
CUresult cuCtxSetCurrent(void *ctx) {
    if (!depth)
        depth = 1;
    stack[depth - 1] = ctx;
    return OK;
}
CUresult cuCtxPushCurrent_v2(void *ctx) { return push(ctx); }
CUresult cuCtxPopCurrent_v2(void **out) {
    if (!depth)
        return NO_CONTEXT;
    struct context *ctx = stack[--depth];
    if (out)
        *out = ctx;
    return OK;
}
CUresult cuCtxGetCurrent(void **out) { return *out = depth ? stack[depth - 1] : NULL, initialised ? OK : NOT_INIT; }
CUresult cuCtxGetDevice(int *out) {
    CONTEXT();
    for (int i = 0; i < DEVICES; i++)
        if (visible(i) == device)
            return *out = i, OK;
    return NO_CONTEXT;
}

/* ---- linear memory ---- */

static CUresult linear(u64 *out, u64 bytes, struct context *ctx) {
    if (!out || !bytes)
        return INVALID;
    LOCKED;
    u64 size = up(bytes, 512);
    if (take(ctx->device, size))
        DONE(no_room(size));
    *out = next_pointer;
    next_pointer += up(size, 4096);
    add(*out, size, ctx->device, LINEAR, ctx);
    DONE(OK);
}
CUresult cuMemAlloc_v2(u64 *out, size_t bytes) {
    CONTEXT();
    return linear(out, bytes, ctx);
}
CUresult cuMemAlloc(unsigned *out, unsigned bytes) {
    CONTEXT();
    u64 p = 0;
    CUresult r = linear(out ? &p : NULL, bytes, ctx);
    if (!r)
        *out = (unsigned)(pieces->key = (unsigned)p);
    return r;
}
CUresult cuMemAllocManaged(u64 *out, size_t bytes, unsigned flags) {
    (void)flags;
    CONTEXT();
    return linear(out, bytes, ctx);
}
CUresult cuMemAllocPitch_v2(u64 *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    CONTEXT();
    if (!pitch || !height || (element != 4 && element != 8 && element != 16))
        return INVALID;
    *pitch = up(width, PITCH);
    return linear(out, *pitch * height, ctx);
}
CUresult cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    u64 p;
    size_t wide;
    CUresult r = cuMemAllocPitch_v2(&p, &wide, width, height, element);
    if (!r) {
        *out = (unsigned)(pieces->key = (unsigned)p);
        *pitch = (unsigned)wide;
    }
    return r;
}
static void pool_trim(struct pool *pool, u64 keep);
CUresult cuMemFree_v2(u64 pointer) {
    CONTEXT();
    LOCKED;
    struct piece *p = find(pointer, LINEAR, POOLED);
    if (!p)
        DONE(pointer ? INVALID : OK);
    p->live = 0;
    if (p->what == POOLED) {
        struct pool *pool = p->owner;
        pool->used -= p->size;
        if (pool->dying)
            pool_trim(pool, 0);
    } else
        give(p->device, p->size);
    DONE(OK);
}
CUresult cuMemFree(unsigned pointer) { return cuMemFree_v2(pointer); }
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    CONTEXT();
    LOCKED;
    lock(0, F_WRLCK, 1);
    if (free)
        *free = gpu->total[device] - living(device);
    if (total)
        *total = gpu->total[device];
    lock(0, F_UNLCK, 1);
    DONE(OK);
}
CUresult cuMemGetInfo(unsigned *free, unsigned *total) {
    size_t f, t;
    CUresult r = cuMemGetInfo_v2(&f, &t);
    *free = (unsigned)f;
    *total = (unsigned)t;
    return r;
}
CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return (void)p, (void)n, (void)flags, OK; }
CUresult cuMemAllocHost_v2(void **p, size_t n) { return (*p = malloc(n)) ? OK : OOM; }

/* ---- pools ---- */

static u64 chunk(const struct pool *pool);
static CUresult pool_take(struct pool *pool, u64 bytes) {
    u64 size = up(bytes, 512);
    if (pool->used + size > pool->reserved) {
        u64 more = up(pool->used + size - pool->reserved, chunk(pool));
        if (take(pool->device, more))
            return OOM;
        pool->reserved += more;
    }
    pool->used += size;
    return OK;
}
static u64 chunk(const struct pool *pool) {
    const char *mib = getenv("FAKE_CHUNK_MIB"); /* a driver whose pools grow by larger pieces */
    return pool->dying ? 512 : mib ? (u64)atoi(mib) << 20 : CHUNK;
}
static void pool_trim(struct pool *pool, u64 keep) {
    u64 want = keep < pool->reserved ? up(pool->used > keep ? pool->used : keep, chunk(pool)) : keep;
    if (want < pool->reserved) {
        give(pool->device, pool->reserved - want);
        pool->reserved = want;
    }
}
static CUresult pool_alloc(u64 *out, u64 bytes, struct pool *pool) {
    if (!out || !bytes)
        return INVALID;
    LOCKED;
    if (pool_take(pool, bytes))
        DONE(no_room(bytes));
    *out = next_pointer;
    next_pointer += up(bytes, 4096);
    add(*out, up(bytes, 512), pool->device, POOLED, pool);
    DONE(OK);
}
CUresult cuStreamGetCtx(void *stream, void **out) {
    (void)stream;
    CONTEXT();
    return *out = ctx, OK;
}
CUresult cuStreamIsCapturing(void *stream, int *status) { return *status = stream == (void *)0x99 ? 1 : 0, OK; }
CUresult cuMemAllocAsync(u64 *out, size_t bytes, void *stream) {
    CONTEXT();
    if (stream == (void *)0x99) /* captured: a node */
        return *out = next_pointer += 1 << 20, OK;
    return pool_alloc(out, bytes, current_pool[device]);
}
CUresult cuMemAllocAsync_ptsz(u64 *out, size_t bytes, void *stream) { return cuMemAllocAsync(out, bytes, stream); }
CUresult cuMemAllocFromPoolAsync(u64 *out, size_t bytes, void *pool, void *stream) {
    (void)stream;
    return pool_alloc(out, bytes, pool);
}
CUresult cuMemAllocFromPoolAsync_ptsz(u64 *out, size_t bytes, void *pool, void *stream) {
    return cuMemAllocFromPoolAsync(out, bytes, pool, stream);
}
static struct { /* what stream 0x77 does when it is next synchronised */
    u64 pointer;
    void (*call)(void *), *with;
} late[1024];
static int lates;
CUresult cuStreamQuery(void *stream) { return stream == (void *)0x77 && lates ? NOT_READY : OK; }
static void do_late(void) {
    for (int i = 0; i < lates; i++)
        late[i].call ? late[i].call(late[i].with) : (void)cuMemFree_v2(late[i].pointer);
    lates = 0;
}
CUresult cuLaunchHostFunc(void *stream, void (*call)(void *), void *with) {
    if (stream != (void *)0x77)
        return call(with), OK;
    late[lates].call = call;
    late[lates++].with = with;
    return OK;
}
static _Atomic int captures_ended;
CUresult cuMemFreeAsync(u64 pointer, void *stream) {
    for (int ms = 0; stream == (void *)0x66 && !captures_ended; ms++)
        if (usleep(1000), ms == 3000) /* a thread that is kept waiting by this call */
            return INVALID;
    if (stream != (void *)0x77)
        return stream == (void *)0x99 ? OK : cuMemFree_v2(pointer); /* captured: a node */
    late[lates].call = NULL;
    late[lates++].pointer = pointer;
    return OK;
}
CUresult cuStreamEndCapture(void *stream, void **graph) { return (void)stream, (void)graph, captures_ended = 1, OK; }
CUresult cuMemFreeAsync_ptsz(u64 pointer, void *stream) { return cuMemFreeAsync(pointer, stream); }
CUresult cuMemPoolCreate(void **out, const int *props) {
    struct pool *pool = calloc(1, sizeof *pool);
    pool->device = visible(props[3]); /* type, handle types, location {type, id} */
    pool->next = pools;
    return *out = pools = pool, OK;
}
CUresult cuMemPoolDestroy(void *pool) {
    LOCKED;
    ((struct pool *)pool)->dying = 1; /* allocated pieces exist until they are freed */
    pool_trim(pool, 0);
    DONE(OK);
}
CUresult cuMemGetAddressRange_v2(u64 *base, size_t *size, u64 pointer) {
    LOCKED;
    struct piece *p = pieces;
    while (p && (!p->live || (p->what != LINEAR && p->what != POOLED) || pointer - p->key >= p->size))
        p = p->next;
    if (p)
        *base = p->key, *size = p->size;
    DONE(p ? OK : INVALID);
}
CUresult cuMemPoolTrimTo(void *pool, size_t keep) {
    LOCKED;
    pool_trim(pool, keep);
    DONE(OK);
}
CUresult cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    struct pool *p = pool;
    LOCKED;
    *(u64 *)value = attribute == 4 ? p->threshold : attribute == 5 ? p->reserved : attribute == 7 ? p->used : 0;
    DONE(OK);
}
CUresult cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
    if (attribute == 4)
        ((struct pool *)pool)->threshold = *(u64 *)value;
    return OK;
}
CUresult cuDeviceGetMemPool(void **out, int device) { return *out = current_pool[visible(device)], OK; }
CUresult cuDeviceGetDefaultMemPool(void **out, int device) { return *out = &default_pool[visible(device)], OK; }
CUresult cuDeviceSetMemPool(int device, void *pool) { return current_pool[visible(device)] = pool, OK; }
CUresult cuCtxSynchronize(void) {
    CONTEXT();
    do_late();
    LOCKED;
    for (struct pool *p = pools; p; p = p->next)
        pool_trim(p, p->threshold);
    for (int i = 0; i < DEVICES; i++)
        pool_trim(&default_pool[i], default_pool[i].threshold);
    DONE(OK);
}
CUresult cuStreamSynchronize(void *stream) { return (void)stream, cuCtxSynchronize(); }
CUresult cuStreamSynchronize_ptsz(void *stream) { return cuStreamSynchronize(stream); }

/* ---- virtual memory ---- */

static void handle_gone(struct piece *p) {
    if (p->refs || p->maps)
        return;
    p->live = 0;
    if (p->what == HANDLE)
        give(p->device, p->size);
}
CUresult cuMemCreate(u64 *out, size_t bytes, const int *prop, u64 flags) {
    (void)flags;
    if (!out || !bytes || bytes % BLOCK)
        return INVALID;
    LOCKED;
    int device = prop[2] == 1 ? visible(prop[3]) : -1;
    if (device >= 0 && take(device, bytes))
        DONE(no_room(bytes));
    *out = next_handle++;
    add(*out, bytes, device, device >= 0 ? HANDLE : IMPORTED, NULL);
    DONE(OK);
}
CUresult cuMemRelease(u64 handle) {
    LOCKED;
    struct piece *p = find(handle, HANDLE, IMPORTED);
    if (!p || !p->refs)
        DONE(INVALID);
    p->refs--;
    handle_gone(p);
    DONE(OK);
}
CUresult cuMemMap(u64 at, size_t size, size_t offset, u64 handle, u64 flags) {
    (void)offset, (void)flags;
    LOCKED;
    struct piece *p = find(handle, HANDLE, IMPORTED);
    if (!p || !p->refs)
        DONE(INVALID);
    struct mapping *m = calloc(1, sizeof *m);
    *m = (struct mapping){at, size, p, mappings};
    mappings = m;
    p->maps++;
    DONE(OK);
}
CUresult cuMemUnmap(u64 at, size_t size) {
    LOCKED;
    int found = 0;
    for (struct mapping **m = &mappings; *m;)
        if ((*m)->at >= at && (*m)->at + (*m)->size <= at + size) {
            struct mapping *gone = *m;
            *m = gone->next;
            gone->of->maps--;
            handle_gone(gone->of);
            free(gone);
            found = 1;
        } else
            m = &(*m)->next;
    DONE(found ? OK : INVALID);
}
CUresult cuMemRetainAllocationHandle(u64 *out, void *address) {
    LOCKED;
    for (struct mapping *m = mappings; m; m = m->next)
        if ((u64)address - m->at < m->size) {
            m->of->refs++;
            *out = m->of->key;
            DONE(OK);
        }
    DONE(INVALID);
}
/* Each export is an open file of its own, as with real drivers: of one device if FAKE_ONE_INODE is set, else a file that
 * tells the size. */
CUresult cuMemExportToShareableHandle(void *out, u64 handle, int type, u64 flags) {
    (void)flags;
    LOCKED;
    struct piece *p = find(handle, HANDLE, IMPORTED);
    if (!p)
        DONE(INVALID);
    if (type != 1) {
        memset(out, 7, 64); /* CUmemFabricHandle */
        DONE(OK);
    }
    int fd =
        getenv("FAKE_ONE_INODE") ? open("/dev/null", O_RDWR | O_CLOEXEC) : (int)syscall(SYS_memfd_create, "export", 1);
    if (fd >= 0 && !getenv("FAKE_ONE_INODE") && ftruncate(fd, (off_t)p->size))
        DONE(INVALID);
    *(int *)out = fd;
    DONE(fd < 0 ? 304 : OK);
}
CUresult cuMemImportFromShareableHandle(u64 *out, void *os, int type) {
    int fd = (int)(u64)os;
    if (type != 1 || fcntl(fd, F_GETFD) < 0)
        return INVALID;
    off_t size = lseek(fd, 0, SEEK_END);
    LOCKED;
    *out = next_handle++;
    add(*out, size > 0 ? (u64)size : BLOCK, 0, IMPORTED, NULL);
    DONE(OK);
}

/* In place of a DMA-BUF: like that, a file that can be polled and not be opened again. */
CUresult cuMemGetHandleForAddressRange(void *out, u64 at, size_t size, int type, u64 flags) {
    (void)at, (void)size, (void)flags;
    if (type != 1)
        return INVALID;
    return *(int *)out = eventfd(0, EFD_CLOEXEC), OK;
}

/* ---- arrays ---- */

static u64 element_bits(unsigned format, unsigned channels) {
    static const unsigned char bits[] = {
        [0x01] = 8, [0x02] = 16, [0x03] = 32, [0x08] = 8, [0x09] = 16, [0x0a] = 32, [0x10] = 16, [0x20] = 32};
    return format < sizeof bits ? bits[format] * (u64)channels : 8ull * channels;
}
static u64 level_size(u64 w, u64 h, u64 d, unsigned format, unsigned channels) {
    return up(up(w * element_bits(format, channels) / 8, 64) * (h ? up(h, 8) : 1) * (d ? d : 1), 512);
}
/* An array with deferred mapping has no memory of its own; it tells what it would need. */
static CUresult array_new(void **out, u64 size, unsigned flags, enum what what) {
    CONTEXT();
    if (!out || (flags & 0x80 && getenv("FAKE_NO_DEFERRED")))
        return INVALID;
    LOCKED;
    u64 own = flags & 0xc0 ? 0 : size;
    if (own && take(device, own))
        DONE(OOM);
    *out = malloc(16);
    add((u64)*out, own, device, what, ctx)->want = size;
    DONE(OK);
}
struct d2 {
    size_t w, h;
    unsigned format, channels;
};
struct d3 {
    size_t w, h, d;
    unsigned format, channels, flags;
};
CUresult cuArrayCreate_v2(void **out, const struct d2 *d) {
    return array_new(out, level_size(d->w, d->h, 1, d->format, d->channels), 0, ARRAY);
}
CUresult cuArray3DCreate_v2(void **out, const struct d3 *d) {
    return array_new(out, level_size(d->w, d->h, d->d, d->format, d->channels), d->flags, ARRAY);
}
CUresult cuMipmappedArrayCreate(void **out, const struct d3 *d, unsigned levels) {
    u64 size = 0, w = d->w, h = d->h, depth = d->d;
    for (unsigned i = 0; i < levels; i++) {
        size += level_size(w, h, depth, d->format, d->channels);
        w = w > 1 ? w / 2 : 1;
        h = h > 1 ? h / 2 : h;
        depth = depth > 1 && !(d->flags & 1) ? depth / 2 : depth;
    }
    return array_new(out, size, d->flags, MIPMAP);
}
static CUresult array_needs(u64 *out, void *array, enum what what) {
    LOCKED;
    struct piece *p = find((u64)array, what, what);
    if (!p || p->size)
        DONE(INVALID);
    out[0] = p->want;
    out[1] = 512;
    DONE(OK);
}
CUresult cuArrayGetMemoryRequirements(u64 *out, void *array, int device) {
    return (void)device, array_needs(out, array, ARRAY);
}
CUresult cuMipmappedArrayGetMemoryRequirements(u64 *out, void *array, int device) {
    return (void)device, array_needs(out, array, MIPMAP);
}
static CUresult array_drop(void *array, enum what what) {
    LOCKED;
    struct piece *p = find((u64)array, what, what);
    if (!p)
        DONE(INVALID);
    p->live = 0;
    give(p->device, p->size);
    DONE(OK);
}
CUresult cuArrayDestroy(void *array) { return array_drop(array, ARRAY); }
CUresult cuMipmappedArrayDestroy(void *array) { return array_drop(array, MIPMAP); }

/* ---- graphs: memory nodes only ---- */

CUresult cuGraphCreate(struct graph **out, unsigned flags) { return (void)flags, *out = calloc(1, sizeof **out), OK; }
CUresult cuGraphAddMemAllocNode(void **node, struct graph *g, const void *deps, size_t n, u64 *params) {
    (void)deps, (void)n;
    /* pool properties: 88 bytes; then access list, its length, bytes, pointer */
    u64 bytes = params[13];
    g->bytes += up(bytes, 512);
    *node = g; /* one is enough here */
    params[14] = g->at = next_pointer += 1 << 20;
    return OK;
}
CUresult cuGraphGetNodes(struct graph *g, void **nodes, size_t *n) {
    if (nodes && *n)
        nodes[0] = g;
    *n = g->bytes ? 1 : 0;
    return OK;
}
CUresult cuGraphNodeGetType(void *node, int *type) { return (void)node, *type = 10, OK; }
CUresult cuGraphMemAllocNodeGetParams(struct graph *g, u64 *params) {
    memset(params, 0, 120);
    params[13] = g->bytes;
    params[14] = g->at;
    return OK;
}
CUresult cuGraphInstantiateWithFlags(struct graph **out, struct graph *g, u64 flags) {
    *out = calloc(1, sizeof **out);
    **out = *g;
    (*out)->keeps = flags & 1;
    return OK;
}
CUresult cuGraphLaunch(struct graph *g, void *stream) {
    (void)stream;
    CONTEXT();
    LOCKED;
    struct pool *pool = &graph_pool[device];
    pool->used -= g->out;
    g->out = 0;
    CUresult r = g->bytes ? pool_take(pool, g->bytes) : OK;
    if (!r && g->keeps)
        g->out = g->bytes;
    else if (!r)
        pool->used -= g->bytes; /* freed within the graph; the pool keeps what it has */
    DONE(r);
}
CUresult cuGraphLaunch_ptsz(struct graph *g, void *stream) { return cuGraphLaunch(g, stream); }
CUresult cuGraphExecDestroy(struct graph *g) {
    if (depth)
        graph_pool[stack[depth - 1]->device].used -= g->out;
    return free(g), OK;
}
CUresult cuDeviceGetGraphMemAttribute(int device, int attribute, u64 *value) {
    struct pool *p = &graph_pool[visible(device)];
    return *value = attribute == 2 ? p->reserved : p->used, OK;
}
CUresult cuDeviceGraphMemTrim(int device) {
    LOCKED;
    pool_trim(&graph_pool[visible(device)], 0);
    DONE(OK);
}

/* ---- launches do nothing ---- */

CUresult cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                        void *s, void **p, void **x) {
    return (void)f, (void)s, (void)p, (void)x, (int)(a + b + c + d + e + g + h) == 28 ? OK : INVALID;
}
CUresult cuParamSetf(void *f, int at, float value) { return (void)f, at == 3 && value == 2.5f ? OK : INVALID; }

/* ---- looking functions up ---- */

static CUresult lookup(const char *symbol, void **pfn, int version, u64 flags, int *status) {
    const char *log = getenv("FAKE_LOOKUPS"); /* what programs ask for */
    FILE *f = log ? fopen(log, "a") : NULL;
    if (f) {
        fprintf(f, "%s %d %llu\n", symbol, version, flags);
        fclose(f);
    }
    static const char *const newest[] = {"%s_v3", "%s_v2", "%s"};
    char name[128];
    *pfn = NULL;
    for (int i = version >= 3020 ? 1 : 2; i < 3 && !*pfn; i++) {
        snprintf(name, sizeof name, newest[i], symbol);
        if (flags & 2) {
            size_t n = strlen(name);
            snprintf(name + n, sizeof name - n, "_ptsz");
            void *self = dlopen("/run/gpu-hook/driver/cuda", RTLD_NOLOAD | RTLD_LAZY);
            *pfn = dlsym(self, name);
            if (*pfn)
                break;
            name[n] = 0;
        }
        void *self = dlopen("/run/gpu-hook/driver/cuda", RTLD_NOLOAD | RTLD_LAZY);
        *pfn = dlsym(self, name);
    }
    if (status)
        *status = *pfn ? 0 : 1;
    return *pfn ? OK : NOT_FOUND;
}
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, u64 flags) {
    return lookup(symbol, pfn, version, flags, NULL);
}
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, u64 flags, int *status) {
    return lookup(symbol, pfn, version, flags, status);
}
CUresult cuGetExportTable(const void **out, const void *id) { return (void)id, *out = NULL, NOT_FOUND; }

CUresult cuImportExternalMemory(void **out, const u64 *d) {
    CONTEXT();
    LOCKED;
    if (take(device, d[3]))
        DONE(OOM);
    *out = malloc(16);
    add((u64)*out, d[3], device, EXTERNAL, ctx);
    DONE(OK);
}
/* These keep nothing here; the shim must know by itself what stays charged. */
CUresult cuMulticastBindMem(u64 object, size_t offset, u64 memory, size_t from, size_t size, u64 flags) {
    return (void)object, (void)offset, (void)memory, (void)from, (void)size, (void)flags, OK;
}
CUresult cuMulticastBindAddr(u64 object, size_t offset, u64 at, size_t size, u64 flags) {
    return (void)object, (void)offset, (void)at, (void)size, (void)flags, OK;
}
CUresult cuLogicalEndpointBindMem(unsigned id, int device, u64 offset, u64 memory, u64 from, u64 size, u64 flags) {
    return (void)id, (void)device, (void)offset, (void)memory, (void)from, (void)size, (void)flags, OK;
}
CUresult cuLogicalEndpointBindAddr(unsigned id, int device, u64 offset, u64 at, u64 size, u64 flags) {
    return (void)id, (void)device, (void)offset, (void)at, (void)size, (void)flags, OK;
}
CUresult cuLogicalEndpointUnbind(unsigned id, int device, u64 offset, u64 size) {
    return (void)id, (void)device, (void)offset, (void)size, OK;
}
CUresult cuDestroyExternalMemory(void *memory) { return array_drop(memory, EXTERNAL); }
CUresult cuCtxSetLimit(int limit, size_t value) { return (void)limit, (void)value, OK; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    return (void)device, *value = attribute == 16 ? 100 : attribute == 39 ? 2048 : 0, OK;
}
