/* The simulated GPU: one shared-memory file per GPU, mapped by every process that uses it. There is no server: a process
 * that needs the GPU's time or memory brings the shared state up to date itself.
 *
 * Memory in use is the sum of `used` over the slots in use. As with the real driver, memory, contexts and queued work
 * belong to the open file: each process opens the GPU's file anew at cuInit, maps it through that description, and locks
 * byte LOCK_SLOT + slot for it (an OFD lock, Linux 3.15). The lock, and the memory with it, goes when the description's
 * last reference goes, in any pid namespace: fork and SCM_RIGHTS pass references on; exit and exec drop them; the mapping
 * is one, so closing descriptors alone does not free the memory. A classical record lock on byte LOCK_PID + slot says whose
 * the slot is, by pid in the reader's pid namespace: the kernel drops it when the process exits or execs, and does not
 * pass it on. Memory whose process has exited is in use, but NVML lists no process for it.
 * A process also loses its classical locks when it closes any descriptor of the file, so this library closes none without
 * taking them again. Memory that is exported to other processes belongs to no slot: see piece.c.
 *
 * Time: a context is a group of channels (queues). Each is a ring of submitted work; only its owner writes the ring and
 * its tail. A `gpu_state` says how far the GPU is with all work. A process that looks copies the live state, computes it
 * forward to now (engine.c), and makes its copy the live one by a compare-and-swap of `live`. There is no lock: a process
 * that is stopped or killed at any instruction hinders no other, and a state that it computed too late is dropped.
 *
 * GPU time is CLOCK_MONOTONIC divided by the head's time_scale: a GPU with scale 20 takes 20 times as long as it says,
 * so that a slow machine keeps up with it. Programs see GPU time.
 *
 * A process that may use a GPU may write to its file, as to the registers of a real one. What it scribbles there spoils
 * the simulation for its neighbours, but makes none of them hang or crash.
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
#define GPU_VERSION 7u
#define GPU_SLOTS 128
#define GPU_PIECES 1024
#define GPU_GROUPS 256
#define GPU_QUEUES 256
#define GPU_RING 1024
#define GPU_LOG 64   /* marks that one computation of the state can pass */
#define GPU_STATES 4 /* per slot: two for its threads and two for its front end, used alternately */
#define GPU_MAX 32
#define GPU_DEPTH 31   /* cgroups within cgroups that a client is charged to, its own included */
#define GPU_LIMITS 256 /* cgroups with memory limits; there are some more cells, so that a limit can be replaced */
#define GPU_LIMIT_CELLS (GPU_LIMITS + 16)
#define GPU_PERIOD_NS 166666667ull /* NVML's sampling period; utilisation is that of the last full one */
#define LOCK_SLOT (1ll << 32)
#define LOCK_ENGINE (1ll << 33)
#define LOCK_PID (3ll << 32)
#define LOCK_LIMIT (6ll << 32)

enum gpu_kind {
    WORK_KERNEL,
    WORK_TO,
    WORK_FROM,  /* a copy between host and GPU, on the copy engine of that direction */
    WORK_MARK,  /* an event: takes no time, leaves a time */
    WORK_AFTER, /* waits for work of another queue */
    WORK_WAIT,  /* waits until its owner has seen a certain value in memory */
    WORK_WRITE, /* takes no time; then its owner writes a value to memory */
    WORK_SPIN,  /* a kernel that runs until its owner has seen a certain value */
};

struct gpu_work {
    _Atomic uint64_t seq1; /* 1 + sequence number; differs from that of the cell's work before */
    uint64_t submit_ns;
    uint64_t duration_ns;
    uint64_t done_ns; /* of a mark */
    uint32_t kind;
    uint32_t width;       /* SMs that a kernel fills */
    uint32_t other;       /* AFTER: it waits for this queue */
    _Atomic uint32_t met; /* WAIT, SPIN: the owner saw the value at met_ns */
    uint64_t seq;         /* AFTER: and for this work there */
    uint64_t met_ns;
};

struct gpu_queue {
    _Atomic uint32_t owner; /* 1 + slot, 0 free */
    uint32_t group;
    int32_t priority; /* smaller goes first, within the group */
    uint32_t reserved;
    _Atomic uint64_t tail; /* works submitted */
    _Atomic uint64_t cut;  /* works below this number are void: their process exited */
    uint8_t pad[32];
    struct gpu_work ring[GPU_RING];
};

struct gpu_group {          /* a context: the GPU gives time slices to groups */
    _Atomic uint32_t owner; /* 1 + slot, 0 free */
};

struct gpu_busy {
    uint64_t total_ns;
    uint64_t period; /* number of the sampling period of `ns`; `last_ns` is of the one before */
    uint64_t ns, last_ns;
};

struct gpu_progress { /* of a queue */
    uint64_t head;    /* works done */
    uint64_t left_ns; /* time left of the work at head, if it began */
    uint64_t began;
};

struct gpu_logged { /* a mark's time, not yet copied to the ring */
    uint32_t queue, reserved;
    uint64_t seq, done_ns;
};

struct gpu_state {
    uint64_t now_ns;        /* the state is computed up to this time */
    uint64_t switch_end_ns; /* in PHASE_SWITCH: when the switch ends */
    uint64_t slice_end_ns;  /* when the current group's turn ends */
    uint32_t phase;         /* of enum phase */
    uint32_t current;       /* 1 + group, 0 none yet */
    uint32_t copying[2];    /* 1 + queue whose head each copy engine is at, 0 none */
    uint64_t copy_end_ns[2];
    uint32_t logged, reserved;
    uint64_t exited[GPU_SLOTS / 64]; /* slots whose file is closed; set by readers, who cannot write to the file */
    struct gpu_busy busy;
    struct gpu_logged log[GPU_LOG];
    struct gpu_busy slot[GPU_SLOTS];
    struct gpu_progress queue[GPU_QUEUES]; /* the last field: only those in use are copied */
};

struct gpu_slot {
    _Atomic uint64_t used; /* bytes on the GPU, including contexts */
    uint64_t start_ticks;  /* of the owner (field 22 of /proc/self/stat): with pid, it identifies a process */
    int32_t pid;           /* in the owner's pid namespace; others learn its pid from the lock */
    uint32_t contexts;
    char command[16];
    _Atomic uint64_t saved;      /* bytes that a checkpoint has moved to the host */
    _Atomic uint32_t checkpoint; /* CU_PROCESS_STATE_...; 0: it runs */
    uint8_t reserved[4];
    _Atomic uint64_t managed; /* bytes of `used` that no limit of a cgroup counts */
};

struct gpu_piece {               /* memory that several processes may hold */
    _Atomic uint64_t used;       /* bytes; 0 free */
    _Atomic uint32_t generation; /* counts its uses */
    _Atomic uint32_t
        slot; /* 1 + the slot of its maker; 0: that one has freed it, while others have it by IPC, or has exited */
};

struct gpu_home {  /* the cgroup that memory is charged to; limits.c */
    uint64_t name; /* hash of its path; 0: the process cannot know it */
    uint64_t
        id[GPU_DEPTH]; /* its number in the cgroup v2 hierarchy, and the numbers of those above it; 0 ends the list */
};

struct gpu_limit {
    _Atomic uint64_t stamp;   /* 0: free. The highest one of a cgroup's holds */
    uint64_t soft, hard;      /* bytes */
    struct gpu_home home;     /* whose limit it is */
    _Atomic uint64_t present; /* the cgroup that had this path when somebody last looked */
    char path[736];           /* below the top of the hierarchy */
};

/* What keeps limits: nothing before driver 615. LIMITS_KEEP: as LIMITS_DMEM, by the other reading of soft limits (limits.c). */
enum gpu_limits { LIMITS_NONE, LIMITS_DMEM, LIMITS_MISC, LIMITS_KEEP };

/* The file of a MIG device has the name GPU_MIG + 8 * (minor of its GPU) + (its number on that GPU). */
#define GPU_MIG 100
enum gpu_mig { GPU_PLAIN, GPU_SPLIT, GPU_PART };

struct gpu_head { /* written when the GPU is made; strings are NUL-padded */
    uint64_t magic;
    uint32_t version;
    uint32_t file_size;
    char uuid[48];           /* 16 */
    char name[96];           /* 64 */
    char pci[32];            /* 160: "00000000:51:00.0" */
    char driver_version[32]; /* 192 */
    uint64_t memory_total;   /* 224: bytes */
    uint64_t context_bytes;  /* 232: memory of a context */
    uint32_t minor;          /* 240: /dev/nvidiaN */
    int32_t numa;            /* 244 */
    uint32_t cuda_version;   /* 248: 12040 = 12.4 */
    uint32_t sm_count;       /* 252 */
    uint32_t capability;     /* 256: 90 = 9.0 */
    uint32_t time_scale;     /* 260: ns of CLOCK_MONOTONIC per ns of GPU time; 0 means 1 */
    uint64_t slice_ns;       /* 264: a context's turn while others wait */
    uint64_t switch_ns;      /* 272: time of a switch between contexts that both have work */
    uint64_t kernel_ns;      /* 280: duration of a kernel that does not say its own */
    uint64_t switch_idle_ns; /* 288: time of a switch away from a context without work */
    uint64_t wake_ns;        /* 296: from the end of work until a blocking wait for it returns */
    uint64_t copy_rate[3];   /* 304: bytes per microsecond: to the GPU, from it, within it */
    uint32_t queue_depth;    /* 328: unfinished launches that a channel takes before a launch blocks */
    uint32_t unused;         /* 332 */
    /* Faults, set while the GPU is in use (`gpu-hook sim fault`); 0: none. */
    uint32_t fail_every;       /* 336: N: every N-th driver call fails */
    uint32_t fail_code;        /* 340: with this CUresult */
    uint32_t block_every;      /* 344: N: every N-th driver call blocks */
    uint32_t block_us;         /* 348: for a real time from 0 to this */
    uint32_t nvml_call_us;     /* 352: real time that an NVML question about load or processes takes */
    uint32_t nvml_without;     /* 356: not supported: bit 0 utilisation, 1 that of processes, 2 memory */
    uint32_t mig;              /* 360: of enum gpu_mig */
    uint32_t mig_index;        /* 364: a MIG device's number on its GPU */
    uint32_t gpu_instance;     /* 368 */
    uint32_t compute_instance; /* 372 */
    char parent[48];           /* 376: UUID of a MIG device's GPU */
    uint32_t nvlink;           /* 424: bit N: an NVLink to GPU N */
    uint32_t lost;             /* 428: a fault: not 0 when the GPU has fallen off the bus */
    uint32_t limits_by;        /* 432: of enum gpu_limits */
    uint32_t block_bytes;      /* 436: in which the driver takes linear memory from the GPU; 0: 512 bytes */
    uint8_t reserved[72];      /* 440 */
    _Atomic uint64_t live;     /* 512: commits << 16 | index of the live state. From here on, the libraries write */
    _Atomic uint32_t slots, queues, groups, pieces; /* how many were ever taken; those beyond were never used */
    _Atomic uint32_t limits;                        /* the same */
    _Atomic uint64_t limit_stamp;                   /* of the newest limit */
    _Atomic uint64_t limit_changes; /* counted after limits are published, before those that they replace go */
};

struct gpu_file {
    union {
        struct gpu_head head;
        uint8_t page[4096];
    };
    struct gpu_slot slot[GPU_SLOTS];
    struct gpu_group group[GPU_GROUPS];
    struct gpu_piece piece[GPU_PIECES];
    struct gpu_home slot_home[GPU_SLOTS], piece_home[GPU_PIECES];
    struct gpu_limit limit[GPU_LIMIT_CELLS];
    struct gpu_state state[GPU_SLOTS * GPU_STATES];
    struct gpu_queue queue[GPU_QUEUES];
};

_Static_assert(offsetof(struct gpu_head, live) == 512, "head");
_Static_assert(sizeof(struct gpu_head) <= 4096, "head page");
_Static_assert(sizeof(struct gpu_work) == 64, "a cell is a cache line");
_Static_assert(sizeof(struct gpu_slot) == 64 && sizeof(struct gpu_limit) == 1024, "sizes");

/* A process's view of one GPU. */
struct gpu {
    _Atomic int fd; /* the program may have closed it: gpu_descriptor */
    bool writable;
    char *path;
    uint64_t device, inode; /* of the file */
    struct gpu_file *file;
    int slot;                  /* this process's slot; -1: none */
    pthread_mutex_t mutex;     /* among this process's threads */
    struct gpu_state *scratch; /* for computing ahead; protected by the mutex */
    uint64_t reaped_ns;        /* when it last looked for exited processes */
};

/* Opens the same GPU again, to write to it. */
bool gpu_open_writable(const struct gpu *gpu, struct gpu *out);
/* Maps the GPUs whose files are in $GPU_HOOK_SIM_GPUS, else in /dev/nvidia-sim, in order of minor number. Skips those
 * whose device node may not be opened (device rules). Returns how many it mapped. */
int gpus_open(struct gpu *gpus, int max, bool writable);

/* The driver's CUDA version: that of the GPUs, or of the library while none is open. */
int gpu_cuda_version(const struct gpu *gpus, int n);
bool gpu_has_functions_of(int cuda_version);

/* The GPU's time in nanoseconds; and how many real nanoseconds one of them takes. */
uint64_t gpu_now(const struct gpu_file *file);
static inline uint64_t gpu_scale(const struct gpu_file *file) {
    uint32_t scale = file->head.time_scale;
    return scale ? scale : 1;
}

/* The process of a slot: > 0 its pid in our pid namespace; 0 none that we can name: it is in another pid namespace, or has
 * exited while its file is open elsewhere; -1 the file is closed, so the slot is free. */
int gpu_owner(struct gpu *gpu, int slot);

/* How many elements of an array were ever taken. */
static inline unsigned gpu_count(const _Atomic uint32_t *counter, unsigned most) {
    uint32_t n = atomic_load_explicit(counter, memory_order_acquire);
    return n < most ? n : most;
}
static inline int gpu_slots(const struct gpu_file *f) { return (int)gpu_count(&f->head.slots, GPU_SLOTS); }
static inline unsigned gpu_queues(const struct gpu_file *f) { return gpu_count(&f->head.queues, GPU_QUEUES); }
static inline unsigned gpu_groups(const struct gpu_file *f) { return gpu_count(&f->head.groups, GPU_GROUPS); }

/* A descriptor of the GPU's file, opened again if the program has closed ours. */
int gpu_descriptor(struct gpu *gpu);
/* The GPU's file, opened anew; -1: it cannot be opened. Whether the descriptor is one of the GPU's file. */
int gpu_reopen(struct gpu *gpu);
bool gpu_is_file(const struct gpu *gpu, int fd);
/* Takes the classical lock of our slot again, which the program's close of a descriptor may have dropped. */
void gpu_lock_pid(struct gpu *gpu);
/* Takes a slot for this process. False: all are taken. */
bool gpu_claim(struct gpu *gpu);
/* Adds bytes to our slot. False: the GPU has not enough memory, also after slots whose file is closed were cleared. */
bool gpu_reserve(struct gpu *gpu, uint64_t bytes);
/* Reserves in another counter of the GPU's file. home: whose limits must hold; NULL: no limit counts it. */
bool gpu_reserve_in(struct gpu *gpu, _Atomic uint64_t *used, uint64_t bytes, const struct gpu_home *home);
void gpu_release(struct gpu *gpu, uint64_t bytes);
/* Reserves managed memory. */
bool gpu_reserve_managed(struct gpu *gpu, uint64_t bytes);
void gpu_release_managed(struct gpu *gpu, uint64_t bytes);
/* Bytes in use. reap: also clears slots whose file is closed (needs a writable mapping). */
uint64_t gpu_used(struct gpu *gpu, bool reap);

/* --- limits of cgroups: limits.c --- */

#define GPU_UNLIMITED UINT64_MAX

struct gpu_bound {
    uint64_t soft, hard, used; /* bytes; no limit: 0 and GPU_UNLIMITED */
};

/* True if a cgroup that has this home, with so many bytes more, is within all limits that hold for it. */
bool gpu_limits_hold(struct gpu *gpu, const struct gpu_home *home, uint64_t more);
/* The lowest limit that holds for it. False: none does. */
bool gpu_limit_lowest(struct gpu *gpu, const struct gpu_home *home, struct gpu_bound *out);
/* The cgroup's own limit, and what is charged to it; soft: with those of the cgroups below. False: it has no limit; `used`
 * and `soft` are set all the same. */
bool gpu_limit_of(struct gpu *gpu, const struct gpu_home *home, struct gpu_bound *out);
/* Sets it; needs a writable mapping. False: there are GPU_LIMITS. */
bool gpu_limit_set(struct gpu *gpu, const struct gpu_home *home, const char *path, uint64_t soft, uint64_t hard);
/* Looks which cgroups the limits' paths name now. Needs a writable mapping, and all of the hierarchy in /sys/fs/cgroup. */
void gpu_limits_look(struct gpu *gpu);

/* --- and cgroup.c --- */

#define GPU_CGROUP "/sys/fs/cgroup"

/* The calling process's cgroup; all 0: it cannot be known. False: it is too deep. */
bool cgroup_mine(struct gpu_home *out);
enum cgroup_found { CGROUP_NONE, CGROUP_GONE, CGROUP_THERE };
/* The cgroup of a directory below /sys/fs/cgroup. GONE: there is none of that path, and `name` is set. NONE: the path cannot
 * be a cgroup's. path: below the top, in its one spelling. */
enum cgroup_found cgroup_of(const char *directory, struct gpu_home *out, char *path, size_t size);
/* True if version 2 is at /sys/fs/cgroup; and all of it. */
bool cgroup_mounted(void);
bool cgroup_all_mounted(void);
/* The number of the cgroup with this path below /sys/fs/cgroup; 0: there is none. */
uint64_t cgroup_number(const char *path);

/* --- memory that several processes may hold: piece.c. A piece is known by a descriptor of its open file --- */

/* Makes a piece of 0 bytes. -1: there are too many, or the host has no room. */
int gpu_piece_make(struct gpu *gpu);
/* Adds bytes to it, as gpu_reserve does to our slot. */
bool gpu_piece_reserve(struct gpu *gpu, int fd, uint64_t bytes);
/* Opens a piece that is in use. -1: it is not, or its number is another one's now. */
int gpu_piece_open(struct gpu *gpu, int piece, uint32_t generation);
/* The number of a descriptor's piece; -1: it is none of ours. */
int gpu_piece_of(struct gpu *gpu, int fd);
bool gpu_piece_held(struct gpu *gpu, int piece); /* by an open file */
uint64_t gpu_piece_bytes(const struct gpu *gpu, int piece);
uint32_t gpu_piece_generation(const struct gpu *gpu, int piece);
void gpu_piece_add(struct gpu *gpu, int fd, int64_t bytes);
/* The most bytes that fit in one; as mmap, at a fixed address if it is not NULL; drops contents. */
uint64_t gpu_piece_room(const struct gpu *gpu);
void *gpu_piece_map(struct gpu *gpu, int fd, void *at, uint64_t size, uint64_t offset, int protection);
void gpu_piece_punch(struct gpu *gpu, int fd, uint64_t size, uint64_t offset);
/* Closes the descriptor, if it is one of the GPU's file. */
void gpu_piece_close(struct gpu *gpu, int fd);
/* The process that made the piece has freed it; others may hold it. */
void gpu_piece_freed(struct gpu *gpu, int piece);
/* A slot is cleared: the pieces that its process made are nobody's. */
void gpu_pieces_leave(struct gpu_file *file, int slot);
/* Clears those that no open file holds. Mutex held. */
void gpu_pieces_reap(struct gpu *gpu, int fd);
/* Their bytes. slot: only of those that its process made; -1: all. fd: a descriptor, to ask which are held; -1: count all. */
uint64_t gpu_pieces_used(struct gpu *gpu, int fd, int slot);

/* Takes a group for a context, or a queue for a channel of it; -1: all are taken. */
int gpu_take_group(struct gpu *gpu);
void gpu_release_group(struct gpu *gpu, int group);
int gpu_take_queue(struct gpu *gpu, int group, int priority);

/* --- time: engine.c, which only reads and computes --- */

/* Computes the state up to now. False: the log of marks was full before; apply it and call again. */
bool engine_run(const struct gpu_file *file, struct gpu_state *state, uint64_t now_ns);
/* Runs until that work is done, at most up to now_ns. */
bool engine_run_until(const struct gpu_file *file, struct gpu_state *state, uint64_t now_ns, int queue, uint64_t seq);
/* Per cent busy in the last full sampling period before now. */
unsigned gpu_utilisation(const struct gpu_busy *busy, uint64_t now_ns);

/* --- and gpu_time.c, on the shared file --- */

/* Makes a consistent copy of the live state. False: neighbours changed it at every try. */
bool gpu_picture(const struct gpu_file *file, struct gpu_state *out, uint64_t *live);
/* Brings the GPU's state up to now. front: the caller is the front end, which shares nothing with the threads. */
void gpu_advance(struct gpu *gpu, bool front);
/* Number of this queue's works that are done. */
uint64_t gpu_head_of(const struct gpu_file *file, int queue);
/* When a done mark was done; 0: not known, since its cell is used again. */
uint64_t gpu_mark_ns(struct gpu *gpu, int queue, uint64_t seq);
/* True if that work is done by now. */
bool gpu_done(struct gpu *gpu, int queue, uint64_t seq);
/* Waits until the work is done, and then as long as a blocking wait takes to return. */
void gpu_wait(struct gpu *gpu, int queue, uint64_t seq);
/* How many real nanoseconds to sleep until that work may be done; at most `most`. */
uint64_t gpu_ahead_ns(struct gpu *gpu, int queue, uint64_t seq, uint64_t most);
/* Removes what belongs to closed files from the GPU: memory and work. Mutex held. */
void gpu_reap(struct gpu *gpu);

#endif
