/* State of one process of a container. The kernel wipes this memory in a forked child, so the child starts afresh,
 * with an account slot of its own, whatever its parent's threads were doing. */
#ifndef GPU_HOOK_STATE_H
#define GPU_HOOK_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pages/account_page.h"
#include "pages/policy_page.h"
#include "process/pointers.h"

struct gh_lock {
    _Atomic uint32_t taken;
};

static inline void gh_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One step of waiting: call it with step 0, 1, 2, ... and *until 0 at first. False once seconds have passed. */
bool gh_wait(unsigned step, int64_t *until);
/* Locks are held for nanoseconds, and never across a driver call, but for gh_held's. False after seconds of waiting;
 * then the caller does without. */
bool gh_lock_wait(struct gh_lock *lock);
static inline bool gh_lock(struct gh_lock *lock) {
    return !atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) || gh_lock_wait(lock);
}
static inline void gh_unlock(struct gh_lock *lock) { atomic_store_explicit(&lock->taken, 0, memory_order_release); }

struct gh_mine { /* what this process is charged on one GPU; the copy in the account page is for others */
    struct gh_lock lock;
    uint64_t units; /* units charged, and all that others ever took of the free cache */
    uint64_t tag;
    uint64_t cached;           /* idle + taken of the free cache, a sum that only this process changes: free_cache.h */
    uint32_t cache_operations; /* for so many more operations, freed memory goes to the free cache; 0: none */
    uint32_t cache_most;       /* most units in the free cache */
};

/* CUDA contexts. Each that is seen gets a number, which no other gets, and a note (PLACE) with its GPU and number. `place`
 * is a cache of these notes: driver/cuda_gpu.c. */
#define GH_PLACES 512
#define GH_DEVICES 64
struct gh_held {              /* a device's primary context, for the gate */
    struct gh_lock lock;      /* held while the driver retains, releases or resets it */
    _Atomic uint32_t retains; /* by the program; never more than the driver counts */
    void *_Atomic context;    /* NULL: the driver has destroyed it */
};
struct gh_contexts {
    _Atomic uint64_t place[GH_PLACES];
    _Atomic uint32_t last;             /* the number given last */
    void *_Atomic primary[GH_DEVICES]; /* each device's primary context, once the program has retained it */
    struct gh_lock lock;               /* of `primary`, and of `changes` */
    _Atomic uint32_t changes;          /* of these, and contexts made: memory/cuda_context.c */
    struct gh_held held[GH_DEVICES];
};

/* Memory pools seen. A pool is charged for what the driver has reserved for it, not for what is allocated from it. */
struct gh_pool {
    void *_Atomic handle; /* CUmemoryPool; for the graph memory of a device: 1 + device */
    _Atomic int32_t gpu;  /* < 0: not charged to this process (host memory, imported) */
    int32_t device;
    uint32_t number;             /* its place in the table: 1, 2, ... */
    uint32_t next;               /* of a place that is free: the next such; 0 none */
    _Atomic uint32_t kind;       /* enum pool_kind */
    _Atomic uint32_t inflight;   /* running operations that may change it */
    _Atomic uint32_t alone;      /* 1: one operation relies on the pool's idle memory, so no other may begin */
    _Atomic uint32_t exportable; /* other processes can map its memory */
    _Atomic uint64_t most;       /* bytes: its maxSize (CUDA 12.2); 0: none was given */
    _Atomic uint64_t charged;    /* units:40 | changes:24 */
    _Atomic uint64_t grain;      /* the pool grows by multiples of this, as far as was seen */
    _Atomic int64_t pieces;      /* number of pieces allocated from it */
    _Atomic int64_t touched;     /* number of pages of the GPU that these occupy, in whole or in part */
};
/* The table grows by chunks of 64, 128, 256, ... pools, which never move: readers need no lock. */
#define GH_POOL_CHUNKS 16
#define GH_FIRST_POOLS 64
struct gh_pools {
    struct gh_lock lock;
    _Atomic uint32_t count;           /* places that were ever used */
    uint32_t free;                    /* number of the first free one among these; 0 none */
    _Atomic uint64_t least;           /* bytes; no pool grows by less, as far as was seen; 0: not seen yet */
    _Atomic uint32_t gpus;            /* a bit for each GPU on which there ever was a pool of ours */
    _Atomic uint32_t dirty;           /* 1: memory was freed, so the driver may release some by itself */
    _Atomic uint32_t graphs_allocate; /* 1: a graph of this process may have memory nodes */
    struct gh_pool *_Atomic chunk[GH_POOL_CHUNKS];
};

struct gh_captures {         /* process/captures.h */
    _Atomic uint32_t calls;  /* running allocations that rely on a capture */
    _Atomic uint32_t ending; /* calls that may end a capture */
    _Atomic uint32_t ended;  /* calls so far that end one */
};

struct vmm;
struct gates;

struct gh_state {
    _Atomic uint32_t phase; /* 0 new, 1 being set up, 2 ready */
    _Atomic uint32_t said;  /* a bit for each message that was written */
    uint64_t me;            /* this process, as in the owner words of the account page */
    /* account */
    struct gh_lock attach;
    struct gh_account_page *_Atomic account;
    _Atomic uint64_t account_device, account_inode; /* of the page's file */
    _Atomic uint32_t slot;                          /* account slot; 0 none yet */
    void *slot_lock;                                /* the mapping that keeps its second lock */
    int slot_fd; /* a descriptor of the first one's file, unless the program closed it */
    _Atomic bool driver_opened;
    _Atomic int64_t swept_ms;
    _Atomic int64_t look_after;   /* ns: no look for exited processes before a figure is shown until then */
    _Atomic uint32_t owners_seen; /* 1 + the page's `owners` when `taken` was made; 0: not yet */
    _Atomic uint64_t taken[GH_ACCOUNT_SLOTS / 64]; /* bits: slots that have an owner */
    struct gh_mine mine[GH_ACCOUNT_GPUS];
    struct gh_lock shared_lock;
    uint32_t shared_held[GH_ACCOUNT_SLOTS]; /* number of our holds on each shared slot: account/shared_slot.h */
    void *shared_kept[GH_ACCOUNT_SLOTS];    /* result of gh_slot_share for it */
    /* policy */
    const struct gh_policy_page *_Atomic policy;
    struct gh_pointers pointers;
    struct gh_contexts contexts;
    struct gh_pools pools;
    struct gh_captures captures;
    _Atomic uint64_t frees_late; /* numbers given so far: memory/late_free.h */
    _Atomic uint64_t pressure_seen[GH_ACCOUNT_GPUS];
    struct vmm *_Atomic vmm;
    struct gates *_Atomic gates; /* of the compute shares */
    struct gh_lock gates_lock;
    _Atomic uint32_t device_gpu[GH_DEVICES]; /* 1 + GPU of a CUDA device; 0 not known yet */
};

/* This process's state, which gh_here finds. */
extern struct gh_state *_Atomic gh_state_page;
/* The slow path of gh_here. */
struct gh_state *gh_state_make(void);

/* This process's state, or NULL when there is no memory for it. */
static inline struct gh_state *gh_here(void) {
    struct gh_state *st = atomic_load_explicit(&gh_state_page, memory_order_acquire);
    bool ready = st && atomic_load_explicit(&st->phase, memory_order_acquire) == 2;
    return __builtin_expect(ready, 1) ? st : gh_state_make();
}

enum gh_said { GH_SAID_POLICY, GH_SAID_ACCOUNT, GH_SAID_FULL, GH_SAID_GPU, GH_SAID_DRIVER };
/* Writes a line to stderr, once per process and reason. */
void gh_say(enum gh_said what, const char *line);

#endif
