/* Simulated libcuda: stream memory operations. The GPU's state says when an operation's turn comes. The memory belongs to
 * this process, so this process must read and write it. Its *front end* does so, in place of the GPU's. The front end is
 * a process of its own within this address space (clone with CLONE_VM, without CLONE_THREAD): like a real GPU, it goes on
 * while SIGSTOP stops the program. It ends with the program. A frozen cgroup freezes it too.
 *
 * The first operation starts the front end; it sleeps while there is none. It shares the table of open files, so that it
 * and the program are one owner of record locks. It takes no lock that a stopped thread may hold, and allocates nothing. */
#define _GNU_SOURCE
#include "heap.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STACK (128u << 10)
#define POLL_NS 10000ull        /* GPU time between two looks at memory, */
#define POLL_LEAST_NS 50000ull  /* but not below so much real time, */
#define POLL_MOST_NS 1000000ull /* nor above so much */
#define START_TRIES 20000
#define MOST_CHANNELS (CHANNELS * 64)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for starting; the front end never takes it */
static struct channel *_Atomic watched[MOST_CHANNELS];
static _Atomic unsigned n_watched;
static _Atomic uint32_t bell; /* a futex: changes when there is work */
static _Atomic int
    running; /* 0 not started; 1 the front end runs; 2 it cannot be started: the program's threads do its work */
static _Atomic int there; /* the front end was seen running */
static pid_t program;

static uint64_t value_at(const struct memop *op) {
    return op->wide ? *(const volatile uint64_t *)(uintptr_t)op->address
                    : *(const volatile uint32_t *)(uintptr_t)op->address;
}

static bool satisfied(const struct memop *op) {
    uint64_t now = value_at(op), mask = op->wide ? ~0ull : 0xffffffffull;
    switch (op->compare) {
    case 0: return op->wide ? (int64_t)(now - op->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)op->value) >= 0;
    case 1: return now == (op->value & mask);
    case 2: return (now & op->value) != 0;
    default: return (~(now | op->value) & mask) != 0;
    }
}

static void write_value(const struct memop *op) {
    if (op->wide)
        atomic_store((_Atomic uint64_t *)(uintptr_t)op->address, op->value);
    else
        atomic_store((_Atomic uint32_t *)(uintptr_t)op->address, (uint32_t)op->value);
}

/* Does the operations whose turn has come, in order. True: there were some. One caller at a time. */
static bool progress(struct channel *ch) {
    const struct gpu_file *f = ch->gpu->file;
    struct gpu_queue *q = &ch->gpu->file->queue[ch->queue];
    bool any = false;
    for (;;) {
        uint64_t at = atomic_load(&ch->ops_head);
        if (at == atomic_load_explicit(&ch->ops_tail, memory_order_acquire))
            return any;
        if (atomic_load(&ch->closed)) {
            atomic_store(&ch->ops_head, at + 1);
            continue;
        }
        const struct memop *op = &ch->op[at % GPU_RING];
        uint64_t head = gpu_head_of(f, ch->queue);
        struct gpu_work *w = &q->ring[op->seq % GPU_RING];
        if (op->kind == WORK_WRITE) {
            if (head <= op->seq)
                return any;
            write_value(op);
        } else if (head <= op->seq) {
            if (head < op->seq || !satisfied(op))
                return any;
            w->met_ns = gpu_now(f);
            atomic_store_explicit(&w->met, 1, memory_order_release);
        }
        atomic_store(&ch->ops_head, at + 1);
        any = true;
    }
}

static void sleep_ns(uint64_t ns) { nanosleep(&(struct timespec){0, (long)ns}, NULL); }

static uint64_t poll_ns(const struct channel *ch) {
    uint64_t ns = POLL_NS * gpu_scale(ch->gpu->file);
    return ns < POLL_LEAST_NS ? POLL_LEAST_NS : ns > POLL_MOST_NS ? POLL_MOST_NS : ns;
}

static void work(void) {
    while (getppid() == program) {
        uint32_t rung = atomic_load(&bell);
        uint64_t pause = 0;
        for (unsigned i = 0; i < atomic_load(&n_watched); i++) {
            struct channel *ch = atomic_load(&watched[i]);
            if (!ch || atomic_load(&ch->ops_head) == atomic_load(&ch->ops_tail))
                continue;
            gpu_advance(ch->gpu, true);
            if (progress(ch))
                gpu_advance(ch->gpu, true);
            if (atomic_load(&ch->ops_head) != atomic_load(&ch->ops_tail) && (!pause || poll_ns(ch) < pause))
                pause = poll_ns(ch);
        }
        if (pause)
            sleep_ns(pause);
        else
            syscall(SYS_futex, &bell, FUTEX_WAIT, rung, &(struct timespec){1, 0}, NULL, 0);
    }
}

static int front_end(void *unused) {
    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "simulated-gpu");
    atomic_store(&there, 1);
    work();
    syscall(SYS_exit, 0);
    return 0;
}

/* The front end uses this thread's thread-local storage, so this thread sleeps while the front end lives, then reaps it. */
static void *keeper(void *stack) {
    for (;;) {
        pid_t pid = clone(front_end, (char *)stack + STACK, CLONE_VM | CLONE_FILES | CLONE_FS, NULL);
        if (pid < 0)
            break;
        while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
            ;
    }
    atomic_store(&running, 2);
    return NULL;
}

static void start(void) {
    pthread_mutex_lock(&mutex);
    if (!atomic_load(&running)) {
        program = getpid();
        void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        sigset_t all, old;
        pthread_t thread;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        bool ok = stack != MAP_FAILED && !pthread_create(&thread, NULL, keeper, stack);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (ok)
            pthread_detach(thread);
        /* From here on the program may be stopped at any time, with the thread that starts the front end. */
        for (int i = 0; ok && i < START_TRIES && !atomic_load(&there) && atomic_load(&running) != 2; i++)
            sleep_ns(POLL_LEAST_NS);
        int nobody = 0;
        atomic_compare_exchange_strong(&running, &nobody, ok ? 1 : 2);
    }
    pthread_mutex_unlock(&mutex);
}

void memops_start(struct channel *ch) {
    if (!ch->watched) {
        pthread_mutex_lock(&mutex);
        unsigned n = atomic_load(&n_watched);
        if (!ch->watched && n < MOST_CHANNELS) {
            atomic_store(&watched[n], ch);
            atomic_store(&n_watched, n + 1);
            ch->watched = true;
        }
        pthread_mutex_unlock(&mutex);
    }
    if (!atomic_load(&running))
        start();
    atomic_fetch_add(&bell, 1);
    syscall(SYS_futex, &bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void memops_run(struct channel *ch) {
    if (atomic_load(&running) == 2) {
        pthread_mutex_lock(&mutex);
        progress(ch);
        pthread_mutex_unlock(&mutex);
    }
    sleep_ns(POLL_LEAST_NS);
}

/* --- the API --- */

static CUresult check(const struct memop *op) {
    struct piece p;
    uint64_t bytes = op->wide ? 8 : 4;
    if (!op->address || op->address % bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (heap_holding(op->address, &p))
        return p.kind == MANAGED ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    return host_holding(op->address, bytes, op->kind == WORK_WRITE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult memops_submit(struct stream *s, const struct memop *ops, unsigned n) {
    CUresult r;
    if (capture_memops(s, ops, n, &r))
        return r;
    for (unsigned i = 0; i < n; i++)
        TRY(channel_submit(s, (struct gpu_work){.kind = ops[i].kind}, NULL, &ops[i]));
    return CUDA_SUCCESS;
}

static CUresult single(CUstream handle, CUdeviceptr at, uint64_t value, unsigned flags, uint32_t kind, bool wide) {
    struct stream *s;
    struct memop op = {.address = at, .value = value, .kind = kind, .wide = wide, .compare = flags & 3};
    TRY(sim_stream(handle, &s));
    if (flags &
        ~(kind == WORK_WAIT ? 3u | 1u << 30 : 1u)) /* CU_STREAM_WAIT_VALUE_FLUSH; WRITE_VALUE_NO_MEMORY_BARRIER */
        return CUDA_ERROR_INVALID_VALUE;
    TRY(check(&op));
    return memops_submit(s, &op, 1);
}

union batch_params { /* CUstreamBatchMemOpParams */
    uint64_t room[6];
    struct {
        int operation, pad;
        CUdeviceptr address;
        uint64_t value;
        unsigned flags;
    };
};

CUresult memops_of(const void *list, unsigned n, struct memop *out) {
    const union batch_params *p = list;
    for (unsigned i = 0; i < n; i++, p++) {
        bool wide = p->operation == 4 || p->operation == 5;
        out[i] = (struct memop){.address = p->address, .value = wide ? p->value : (uint32_t)p->value, .wide = wide};
        switch (p->operation) { /* CU_STREAM_MEM_OP_... */
        case 1:
        case 4:
            out[i].kind = WORK_WAIT;
            out[i].compare = p->flags & 3;
            break;
        case 2:
        case 5: out[i].kind = WORK_WRITE; break;
        case 3:
        case 6: /* flush and barrier: operations are in order here anyway */
            out[i] = (struct memop){.kind = WORK_MARK};
            continue;
        default: return CUDA_ERROR_INVALID_VALUE;
        }
        TRY(check(&out[i]));
    }
    return CUDA_SUCCESS;
}

static CUresult batch(CUstream handle, unsigned n, const void *list, unsigned flags) {
    struct stream *s;
    struct memop ops[256]; /* the most that the real driver takes */
    TRY(sim_stream(handle, &s));
    if (flags || (n && !list) || n > 256)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(memops_of(list, n, ops));
    unsigned kept = 0;
    for (unsigned i = 0; i < n; i++)
        if (ops[i].kind != WORK_MARK)
            ops[kept++] = ops[i];
    return memops_submit(s, ops, kept);
}

#define ONE(name, type, kind, wide)                                                    \
    API CUresult name(CUstream s, CUdeviceptr at, type value, unsigned flags) {        \
        return single(s, at, value, flags, kind, wide);                                \
    }                                                                                  \
    API CUresult name##_ptsz(CUstream s, CUdeviceptr at, type value, unsigned flags) { \
        return single(PER_THREAD(s), at, value, flags, kind, wide);                    \
    }
ONE(cuStreamWaitValue32, uint32_t, WORK_WAIT, false)
ONE(cuStreamWaitValue32_v2, uint32_t, WORK_WAIT, false)
ONE(cuStreamWaitValue64, uint64_t, WORK_WAIT, true)
ONE(cuStreamWaitValue64_v2, uint64_t, WORK_WAIT, true)
ONE(cuStreamWriteValue32, uint32_t, WORK_WRITE, false)
ONE(cuStreamWriteValue32_v2, uint32_t, WORK_WRITE, false)
ONE(cuStreamWriteValue64, uint64_t, WORK_WRITE, true)
ONE(cuStreamWriteValue64_v2, uint64_t, WORK_WRITE, true)

#define BATCH(name)                                                                                                  \
    API CUresult name(CUstream s, unsigned n, const void *list, unsigned flags) { return batch(s, n, list, flags); } \
    API CUresult name##_ptsz(CUstream s, unsigned n, const void *list, unsigned flags) {                             \
        return batch(PER_THREAD(s), n, list, flags);                                                                 \
    }
BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)
