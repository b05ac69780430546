/* What one process of a container knows. It lies in memory that the kernel wipes in a forked child: the child starts
 * anew, with a slot of its own, whatever its parent's threads were doing. */
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

/* Waits a little; false once seconds have passed. step counts from 0, *until begins as 0. */
bool gh_wait(unsigned step, int64_t *until);
/* Held for nanoseconds, never across a driver call. False after seconds of waiting: the caller does without. */
bool gh_lock_wait(struct gh_lock *lock);
static inline bool gh_lock(struct gh_lock *lock) {
    return !atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) || gh_lock_wait(lock);
}
static inline void gh_unlock(struct gh_lock *lock) { atomic_store_explicit(&lock->taken, 0, memory_order_release); }

struct gh_mine { /* this process's share of one GPU; the page's copy is for others */
    struct gh_lock lock;
    uint64_t units; /* the share, and what was ever taken of it */
    uint64_t tag;
    uint64_t lent;  /* idle and taken together, which only we change: see spare.h */
    uint32_t keeps; /* operations for which we still keep what is freed; 0: none */
    uint32_t most;  /* units that we keep at most */
};

/* CUDA contexts seen: which GPU each is on. A place, once given to a handle, stays its own. */
#define GH_CONTEXTS 512
#define GH_DEVICES 64
struct gh_contexts {
    struct {
        void *_Atomic context;
        _Atomic uint32_t gpu; /* 1 + GPU; 0 not known (again) */
    } place[GH_CONTEXTS];
    void *_Atomic primary[GH_DEVICES]; /* each device's primary context, once retained */
};

/* Memory pools seen. What is booked for a pool is what the driver has reserved for it, not what is handed out. */
#define GH_POOLS 1024
struct gh_pool {
    void *_Atomic handle; /* CUmemoryPool; or 1 + device for a device's graph memory */
    _Atomic int32_t gpu;  /* < 0: not charged here (host memory, imported) */
    int32_t device;
    _Atomic uint32_t kind;     /* enum pool_kind */
    _Atomic uint32_t inflight; /* operations that may be changing it */
    _Atomic uint32_t alone;    /* one operation counts on idle memory: no other may begin */
    _Atomic uint32_t shared;   /* other processes may map it */
    _Atomic uint64_t booked;   /* units:40 | changes:24 */
    _Atomic uint64_t grain;    /* what it grows by is a multiple of this, as far as was seen */
    _Atomic int64_t pieces;    /* handed out, */
    _Atomic int64_t touched;   /* and how many of the GPU's pages they touch */
};
struct gh_pools {
    struct gh_lock lock;
    _Atomic uint32_t count;
    _Atomic uint64_t least;           /* no pool grows by less, as far as is known; 0: not asked yet */
    _Atomic uint32_t dirty;           /* memory was freed: the driver may give some back by itself */
    _Atomic uint32_t graphs_allocate; /* some graph of this process has memory nodes */
    struct gh_pool pool[GH_POOLS];
};

struct vmm;
struct gates;

struct gh_state {
    _Atomic uint32_t phase; /* 0 fresh, 1 being set up, 2 ready */
    _Atomic uint32_t said;  /* one bit per message already written */
    /* struct gh_identity of this process */
    uint64_t me;
    uint64_t stack;
    /* books */
    struct gh_lock attach;
    struct gh_account_page *_Atomic account;
    _Atomic uint32_t slot; /* 0 none yet */
    int lock_fd;           /* 0 none; holds the lock of the slot */
    _Atomic int64_t swept_ms;
    struct gh_mine mine[GH_ACCOUNT_GPUS];
    /* policy */
    const struct gh_policy_page *_Atomic policy;
    struct gh_pointers pointers;
    struct gh_contexts contexts;
    struct gh_pools pools;
    _Atomic uint64_t pressure_seen[GH_ACCOUNT_GPUS];
    struct vmm *_Atomic vmm;
    struct gates *_Atomic gates; /* compute shares */
    struct gh_lock gates_lock;
    _Atomic uint32_t device_gpu[GH_DEVICES]; /* 1 + GPU of a CUDA device; 0 not known yet */
};

/* This process's state, or NULL when there is no memory for it. */
struct gh_state *gh_here(void);

enum gh_said { GH_SAID_POLICY, GH_SAID_ACCOUNT, GH_SAID_FULL, GH_SAID_GPU, GH_SAID_DRIVER };
/* One line on stderr, once per process and reason. */
void gh_say(enum gh_said what, const char *line);

#endif
