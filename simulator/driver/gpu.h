/* The simulated GPU: one shared-memory file per GPU, mapped by every process that uses it. No server: whoever
 * needs the GPU's time or memory brings the shared state up to date itself.
 *
 * Memory: the truth is the sum over the living slots' `used`. A process owns its slot by a classical record lock
 * (fcntl F_SETLK) on byte LOCK_SLOT + slot: the kernel drops it when the process dies or execs, in whatever pid
 * namespace, and fork does not pass it on. Such a lock is also lost when the process closes any descriptor of the
 * file, so nobody here ever closes one.
 *
 * Time: a context is a group of channels (queues), each a ring of submitted work. Only the owner writes a ring and its
 * tail. How far the GPU is with all of it is a `gpu_state`, computed forward to "now" by whoever looks: it copies the
 * live state, computes (engine.c), and makes its copy the live one by a compare-and-swap of `live`. So there is no
 * lock: a process that is stopped or killed at any instruction hinders nobody, and what it computed late is dropped.
 *
 * GPU time is CLOCK_MONOTONIC divided by the head's time_scale: a GPU with the scale 20 is a twentieth as fast as it
 * says it is, so that a slow machine keeps up with it. What programs are told is GPU time.
 *
 * Whoever may use a GPU may write to its file, as to the registers of a real one: a process that scribbles there
 * spoils the simulation for its neighbours. The library only sees to it that nobody hangs or crashes by it.
 *
 * Python twin of the head: gpu_hook_simulator/driver_root.py (what is before `live`); a test compares the two. */
#ifndef GPU_HOOK_SIM_GPU_H
#define GPU_HOOK_SIM_GPU_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_MAGIC 0x31444143ull << 32 | 0x4d495347ull /* "GSIMCAD1" */
#define GPU_VERSION 4u
#define GPU_SLOTS 128
#define GPU_GROUPS 256
#define GPU_QUEUES 256
#define GPU_RING 1024
#define GPU_LOG 64   /* marks that one step of the state can pass */
#define GPU_STATES 4 /* per slot: two by turns, for its threads and for its front end */
#define GPU_MAX 32
#define GPU_PERIOD_NS 166666667ull /* NVML's sampling period: utilisation is that of the last full period */
#define LOCK_SLOT (1ll << 32)
#define LOCK_ENGINE (1ll << 33)

enum gpu_kind {
    WORK_KERNEL,
    WORK_TO,
    WORK_FROM,  /* a copy between host and GPU, on the copy engine of that direction */
    WORK_MARK,  /* an event: takes no time, leaves a time */
    WORK_AFTER, /* waits for another queue's work */
    WORK_WAIT,  /* waits until its owner has seen a value in memory */
    WORK_WRITE, /* takes no time; its owner then writes a value to memory */
    WORK_SPIN,  /* a kernel that runs until its owner has seen a value in memory */
};

struct gpu_work {
    _Atomic uint64_t seq1; /* 1 + sequence number: tells it from what was in the cell before */
    uint64_t submit_ns;
    uint64_t duration_ns;
    uint64_t done_ns; /* of a mark */
    uint32_t kind;
    uint32_t width;       /* SMs that a kernel fills */
    uint32_t other;       /* AFTER: the queue, and */
    _Atomic uint32_t met; /* WAIT, SPIN: the owner saw the value, at met_ns */
    uint64_t seq;         /*        the number of its work */
    uint64_t met_ns;
};

struct gpu_queue {
    _Atomic uint32_t owner; /* 1 + slot, 0 free */
    uint32_t group;
    int32_t priority; /* smaller goes first, within the group */
    uint32_t reserved;
    _Atomic uint64_t tail; /* works submitted */
    _Atomic uint64_t cut;  /* works below it are void: their process died */
    uint8_t pad[32];
    struct gpu_work ring[GPU_RING];
};

struct gpu_group {          /* a context: what the GPU slices its time between */
    _Atomic uint32_t owner; /* 1 + slot, 0 free */
};

struct gpu_busy {
    uint64_t total_ns;
    uint64_t period; /* the sampling period that `ns` speaks of; `last_ns` is of the one before */
    uint64_t ns, last_ns;
};

struct gpu_progress { /* of a queue */
    uint64_t head;    /* works done */
    uint64_t left_ns; /* of the work at head, once it began */
    uint64_t began;
};

struct gpu_logged { /* a mark's time, on its way to the ring */
    uint32_t queue, reserved;
    uint64_t seq, done_ns;
};

struct gpu_state {
    uint64_t now_ns;        /* computed up to here */
    uint64_t switch_end_ns; /* PHASE_SWITCH */
    uint64_t slice_end_ns;  /* of the current group's turn */
    uint32_t phase;         /* of enum phase */
    uint32_t current;       /* 1 + group, 0 none yet */
    uint32_t copying[2];    /* 1 + queue whose head each copy engine is at, 0 none */
    uint64_t copy_end_ns[2];
    uint32_t logged, reserved;
    uint64_t dead[GPU_SLOTS / 64]; /* slots whose work is left out: by readers, who cannot reap */
    struct gpu_busy busy;
    struct gpu_logged log[GPU_LOG];
    struct gpu_busy slot[GPU_SLOTS];
    struct gpu_progress queue[GPU_QUEUES]; /* last: only those in use are copied */
};

struct gpu_slot {
    _Atomic uint64_t used; /* bytes on the GPU, contexts included */
    uint64_t start_ticks;  /* with pid: tells an owner from a stranger (field 22 of /proc/self/stat) */
    int32_t pid;           /* as the owner sees itself; others learn it from the lock */
    uint32_t contexts;
    char command[16];
    uint8_t reserved[24];
};

/* A MIG device has a file of its own, named GPU_MIG + 8 * minor of its GPU + its number there. */
#define GPU_MIG 100
enum gpu_mig { GPU_PLAIN, GPU_SPLIT, GPU_PART };

struct gpu_head { /* fixed when the GPU is made; all strings NUL-padded */
    uint64_t magic;
    uint32_t version;
    uint32_t file_size;
    char uuid[48];           /* 16 */
    char name[96];           /* 64 */
    char pci[32];            /* 160: "00000000:51:00.0" */
    char driver_version[32]; /* 192 */
    uint64_t memory_total;   /* 224: bytes */
    uint64_t context_bytes;  /* 232: what a context takes */
    uint32_t minor;          /* 240: /dev/nvidiaN */
    int32_t numa;            /* 244 */
    uint32_t cuda_version;   /* 248: 12040 = 12.4 */
    uint32_t sm_count;       /* 252 */
    uint32_t capability;     /* 256: 90 = 9.0 */
    uint32_t time_scale;     /* 260: 1 ns of GPU time is so many of CLOCK_MONOTONIC; 0 as 1 */
    uint64_t slice_ns;       /* 264: a context's turn when others wait */
    uint64_t switch_ns;      /* 272: cost of a turn's change, when both contexts have work */
    uint64_t kernel_ns;      /* 280: duration of a kernel that names none */
    uint64_t switch_idle_ns; /* 288: the same, from a context without work */
    uint64_t wake_ns;        /* 296: from the end of work to the return of a blocking wait for it */
    uint64_t copy_rate[3];   /* 304: bytes per microsecond: to the GPU, from it, within it */
    uint32_t queue_depth;    /* 328: unfinished launches that a channel takes before a launch blocks */
    uint32_t unused;         /* 332 */
    /* Faults, set while the GPU is in use (`gpu-hook sim fault`); 0: none. */
    uint32_t fail_every;       /* 336: every so-manieth driver call fails */
    uint32_t fail_code;        /* 340: with this CUresult */
    uint32_t block_every;      /* 344: every so-manieth driver call blocks */
    uint32_t block_us;         /* 348: for 0 to so long, in real time */
    uint32_t nvml_call_us;     /* 352: an NVML question about load or processes takes so long, in real time */
    uint32_t nvml_without;     /* 356: not supported: bit 0 utilisation, bit 1 utilisation per process */
    uint32_t mig;              /* 360: of enum gpu_mig */
    uint32_t mig_index;        /* 364: a MIG device's number on its GPU */
    uint32_t gpu_instance;     /* 368 */
    uint32_t compute_instance; /* 372 */
    char parent[48];           /* 376: a MIG device's GPU */
    uint32_t nvlink;           /* 424: bit N: an NVLink to GPU N */
    uint32_t lost;             /* 428: a fault: the GPU has fallen off the bus */
    uint8_t reserved[80];      /* 432 */
    _Atomic uint64_t live;     /* 512: commits << 16 | index of the live state; from here on the GPU's */
    _Atomic uint32_t slots, queues, groups; /* how many were ever taken: nothing is beyond */
};

struct gpu_file {
    union {
        struct gpu_head head;
        uint8_t page[4096];
    };
    struct gpu_slot slot[GPU_SLOTS];
    struct gpu_group group[GPU_GROUPS];
    struct gpu_state state[GPU_SLOTS * GPU_STATES];
    struct gpu_queue queue[GPU_QUEUES];
};

_Static_assert(offsetof(struct gpu_head, live) == 512, "head");
_Static_assert(sizeof(struct gpu_head) <= 4096, "head page");
_Static_assert(sizeof(struct gpu_work) == 64, "a cell is a cache line");

/* A process's view of one GPU. */
struct gpu {
    int fd;
    struct gpu_file *file;
    int slot;                  /* ours, or -1 */
    pthread_mutex_t mutex;     /* among this process's threads */
    struct gpu_state *scratch; /* for looks ahead; under the mutex */
    uint64_t reaped_ns;        /* when the dead were last looked for */
};

/* Map every GPU whose file is in $GPU_HOOK_SIM_GPUS or /dev/nvidia-sim, by minor number, skipping those whose
 * device node refuses to be opened (device rules). Returns how many. */
int gpus_open(struct gpu *gpus, int max, bool writable);

/* The GPU's time in nanoseconds, and how long one of them takes. */
uint64_t gpu_now(const struct gpu_file *file);
static inline uint64_t gpu_scale(const struct gpu_file *file) {
    uint32_t scale = file->head.time_scale;
    return scale ? scale : 1;
}

/* The living owner of a slot in our pid namespace: > 0 its pid, 0 alive but not visible from here, -1 dead or free. */
int gpu_owner(const struct gpu *gpu, int slot);

/* How many to look at. */
static inline unsigned gpu_count(const _Atomic uint32_t *counter, unsigned most) {
    uint32_t n = atomic_load_explicit(counter, memory_order_acquire);
    return n < most ? n : most;
}
static inline int gpu_slots(const struct gpu_file *f) { return (int)gpu_count(&f->head.slots, GPU_SLOTS); }
static inline unsigned gpu_queues(const struct gpu_file *f) { return gpu_count(&f->head.queues, GPU_QUEUES); }
static inline unsigned gpu_groups(const struct gpu_file *f) { return gpu_count(&f->head.groups, GPU_GROUPS); }

/* Take a slot for this process. False: all are taken. */
bool gpu_claim(struct gpu *gpu);
/* Book bytes on our slot. False: the GPU's memory does not suffice even after the dead were reaped. */
bool gpu_reserve(struct gpu *gpu, uint64_t bytes);
void gpu_release(struct gpu *gpu, uint64_t bytes);
/* Bytes in use by the living. reap: also clear the slots of the dead (needs a writable mapping). */
uint64_t gpu_used(struct gpu *gpu, bool reap);

/* A context, and a channel of it; -1: all are taken. */
int gpu_take_group(struct gpu *gpu);
void gpu_give_group(struct gpu *gpu, int group);
int gpu_take_queue(struct gpu *gpu, int group, int priority);

/* --- time: engine.c, pure on memory --- */

/* Compute the state up to now. False: the log is full before that; apply it and go on. */
bool engine_run(const struct gpu_file *file, struct gpu_state *state, uint64_t now_ns);
/* The same until that work is done, not beyond now_ns. */
bool engine_run_until(const struct gpu_file *file, struct gpu_state *state, uint64_t now_ns, int queue, uint64_t seq);
/* Per cent busy in the last full sampling period before now. */
unsigned gpu_utilisation(const struct gpu_busy *busy, uint64_t now_ns);

/* --- and gpu_time.c, on the GPU --- */

/* A consistent copy of the live state. False: a neighbour keeps changing it. */
bool gpu_picture(const struct gpu_file *file, struct gpu_state *out, uint64_t *live);
/* Bring the GPU up to now. front: on behalf of the front end, which shares nothing with the threads. */
void gpu_advance(struct gpu *gpu, bool front);
/* Works of this queue that are done. */
uint64_t gpu_head_of(const struct gpu_file *file, int queue);
/* When a passed mark was passed; 0: not known, its cell has been used again. */
uint64_t gpu_mark_ns(struct gpu *gpu, int queue, uint64_t seq);
/* Whether that work is done by now. */
bool gpu_done(struct gpu *gpu, int queue, uint64_t seq);
/* Wait until the work is done, and for as long as a blocking wait takes to return. */
void gpu_wait(struct gpu *gpu, int queue, uint64_t seq);
/* How many real nanoseconds to sleep, at most `most`, until that work may be done. */
uint64_t gpu_ahead_ns(struct gpu *gpu, int queue, uint64_t seq, uint64_t most);
/* Take dead processes' work off the GPU. Mutex held. */
void gpu_reap(struct gpu *gpu);

#endif
