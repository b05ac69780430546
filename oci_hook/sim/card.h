/* The simulated card: one shared-memory file per card, mapped by every process that uses it. No server: whoever
 * needs the card's time or memory brings the shared state up to date itself.
 *
 * Memory: the truth is the sum over the living slots' `used`. A process owns its slot by a classical record lock
 * (fcntl F_SETLK) on byte LOCK_SLOT + slot: the kernel drops it when the process dies or execs, in whatever pid
 * namespace, and fork does not pass it on. Such a lock is also lost when the process closes any descriptor of the
 * file, so nobody here ever closes one.
 *
 * Time: each slot has a ring of submitted work. The engine runs the rings in turn, one slice each (a context's work
 * in order of submission), and is computed up to "now" by card_advance, under the record lock on byte LOCK_ENGINE,
 * by whoever waits. Card time is CLOCK_MONOTONIC divided by the head's time_scale: a card with the scale 20 is a
 * twentieth as fast as it says it is, so that a slow machine keeps up with it. What programs are told is card time.
 *
 * Whoever may use a card may write to its file, as to the registers of a real one: a process that scribbles there
 * spoils the simulation for its neighbours. The library only sees to it that nobody hangs or crashes by it.
 *
 * Python twin of the head: driver_root.py (what is before `engine`); tests/sim compares the two. */
#ifndef GPU_HOOK_SIM_CARD_H
#define GPU_HOOK_SIM_CARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARD_MAGIC 0x31444143ull << 32 | 0x4d495347ull /* "GSIMCAD1" */
#define CARD_VERSION 2u
#define CARD_SLOTS 256
#define CARD_RING 1024 /* a launch beyond this many unfinished ones blocks, as on real channels */
#define CARD_MAX 32
#define CARD_PERIOD_NS 166666667ull /* NVML's sampling period: utilisation is that of the last full period */
#define CARD_PERIODS 16
#define LOCK_SLOT (1ll << 32)
#define LOCK_ENGINE (1ll << 33)

struct card_work {
    uint64_t submit_ns;
    uint64_t duration_ns;
    uint64_t done_ns; /* valid once head has passed it */
    uint64_t reserved;
};

struct card_busy { /* busy nanoseconds per sampling period */
    uint64_t total_ns;
    uint64_t period[CARD_PERIODS]; /* which period each cell speaks of */
    uint64_t ns[CARD_PERIODS];
};

struct card_slot {
    _Atomic uint64_t used;     /* bytes on the card, contexts included */
    _Atomic uint64_t tail;     /* written by the owner: works submitted */
    _Atomic uint64_t head;     /* written by the engine: works done */
    uint64_t head_left_ns;     /* of the work at head, once started */
    uint32_t head_started;
    uint32_t contexts;
    int32_t pid;               /* as the owner sees itself; others learn it from the lock */
    uint32_t reserved0;
    uint64_t start_ticks;      /* with pid: tells an owner from a stranger (field 22 of /proc/self/stat) */
    char command[16];
    struct card_busy busy;
    uint8_t reserved[128];
    struct card_work ring[CARD_RING];
};

struct card_engine {
    uint64_t now_ns;        /* computed up to here */
    uint64_t slice_left_ns;
    uint64_t switch_left_ns;
    int32_t current;        /* the slot whose turn it is, -1 none yet */
    _Atomic uint32_t slots; /* how many slots were ever taken: nothing is beyond */
    struct card_busy busy;
};

struct card_head { /* fixed when the card is made; all strings NUL-padded */
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
    uint32_t time_scale;     /* 260: 1 ns of card time is so many of CLOCK_MONOTONIC; 0 as 1 */
    uint64_t slice_ns;       /* 264: a context's turn when others wait */
    uint64_t switch_ns;      /* 272: cost of a turn's change, when both contexts have work */
    uint64_t kernel_ns;      /* 280: duration of a kernel that names none */
    uint64_t switch_idle_ns; /* 288: the same, from a context without work */
    uint64_t wake_ns;        /* 296: from the end of work to the return of a blocking wait for it */
    uint64_t copy_rate[3];   /* 304: bytes per microsecond: to the card, from it, within it */
    uint32_t queue_depth;    /* 328: unfinished launches that a channel takes before a launch blocks */
    uint32_t tsg_mode;       /* 332: of enum card_tsg */
    uint8_t reserved[176];   /* 336 */
    struct card_engine engine; /* 512: from here on mutable */
};

struct card_file {
    union {
        struct card_head head;
        uint8_t page[4096];
    };
    struct card_slot slot[CARD_SLOTS];
};

_Static_assert(offsetof(struct card_head, engine) == 512, "head");
_Static_assert(sizeof(struct card_head) <= 4096, "head page");

/* A process's view of one card. */
struct card {
    int fd;
    struct card_file *file;
    int slot;               /* ours, or -1 */
    pthread_mutex_t mutex;  /* among this process's threads: engine lock, slot claim, ring append */
};

/* Map every card whose file is in $GPU_HOOK_SIM_CARDS or /dev/nvidia-sim, by minor number, skipping those whose
 * device node refuses to be opened (device rules). Returns how many. */
int cards_open(struct card *cards, int max, bool writable);

/* The card's time in nanoseconds, and how long one of them takes. */
uint64_t card_now(const struct card_file *file);
static inline uint64_t card_scale(const struct card_file *file)
{
    uint32_t scale = file->head.time_scale;
    return scale ? scale : 1;
}

/* The living owner of a slot in our pid namespace: > 0 its pid, 0 alive but not visible from here, -1 dead or free. */
int card_owner(const struct card *card, int slot);

/* How many slots to look at. */
static inline int card_slots(const struct card_file *file)
{
    uint32_t n = atomic_load_explicit(&file->head.engine.slots, memory_order_acquire);
    return n < CARD_SLOTS ? (int)n : CARD_SLOTS;
}

/* Take a slot for this process. False: all are taken. */
bool card_claim(struct card *card);
/* Book bytes on our slot. False: the card's memory does not suffice even after the dead were reaped. */
bool card_reserve(struct card *card, uint64_t bytes);
void card_release(struct card *card, uint64_t bytes);
/* Bytes in use by the living. reap: also clear the slots of the dead (needs a writable mapping). */
uint64_t card_used(struct card *card, bool reap);

/* Submit work; blocks while the ring is full. Returns its sequence number. Under the card's mutex, retire tells that
 * the cell of an old work is used again (its done_ns is about to be lost), note which number the new one has. */
typedef void card_retire(struct card *card, uint64_t seq, uint64_t done_ns);
typedef void card_note(struct card *card, uint64_t seq, void *argument);
uint64_t card_submit(struct card *card, uint64_t duration_ns, card_retire *retire, card_note *note, void *argument);
bool card_done(struct card *card, uint64_t seq);
void card_wait(struct card *card, uint64_t seq);
uint64_t card_done_ns(struct card *card, uint64_t seq);

/* The engine, up to now: pure on the file's memory, so it also runs on a private copy. */
void card_advance(struct card_file *file, uint64_t now_ns);
/* Per cent busy in the last full sampling period before now. */
unsigned card_utilisation(const struct card_busy *busy, uint64_t now_ns);

#endif
