/* Access to slot files: our own is mapped, with a record of this process; the others are read as snapshots. */
#ifndef GPU_HOOK_SLOT_H
#define GPU_HOOK_SLOT_H

#include <stdbool.h>

#include "pages/slot_page.h"
#include "process/atomics.h"

#define GH_WAKES 64
/* A process that did not run for longer than this did not want the GPU meanwhile, nor was it held at the gate. */
#define GH_COUNT_STEP (20 * GH_MS)

/* A descriptor of ours. The program may have closed it, and opened another file with the same number. */
struct slot_file {
    int fd; /* 1 + descriptor; 0 none */
    uint64_t inode, device;
};

struct slot_own {
    struct gh_slot_page *page;       /* the mapped file; private memory if there is none, and then nobody sees us */
    struct gh_slot_process *process; /* our record in it, or &unseen */
    struct gh_slot_process unseen;
    unsigned gpu;
    uint64_t generation;
    uint64_t retry_at;     /* real time at which a missing file or record is tried again */
    uint64_t lock_at;      /* real time at which a missing lock in the slot file is tried again */
    bool locked;           /* result of the last try for that lock */
    uint64_t wake_at;      /* too many threads sleep on our word: not woken before this */
    bool inherited;        /* the last owner of our record ended with work in flight */
    struct slot_file file; /* other containers see its locks, and can put read locks in their way */
};

/* Opens our slot file of the GPU with this index in the policy page, and takes a process record. False: no memory. */
bool slot_attach(struct slot_own *own, unsigned gpu);
/* If our record was lost, takes another one, as soon as one is free. Tries again to open a file that was missing. */
void slot_keep(struct slot_own *own);
/* slot_may_lock: the lock that other containers should see is missing, and may be tried again. slot_lock tries, on a
 * copy of `own` and without the gate's lock, since it takes longer the more locks others have on the file. slot_locked
 * takes over the result. */
bool slot_may_lock(const struct slot_own *own);
void slot_lock(struct slot_own *copy);
void slot_locked(struct slot_own *own, const struct slot_own *copy);
/* Wakes up to GH_WAKES threads that sleep on our word. Others look again when their sleep ends. */
void slot_wake(struct slot_own *own);
/* A launch has waited at the gate for `ns` of real time. */
void slot_waited(struct slot_own *own, uint64_t ns);
/* Counts the time from `since` (at most GH_COUNT_STEP ago) to `now`: in which there was work to do; in which the
 * container in `slot` held us at the gate. Time that another process of ours has counted is not counted again. */
void slot_wanted(struct slot_own *own, uint64_t since, uint64_t now);
void slot_held_for(struct slot_own *own, unsigned slot, uint64_t since, uint64_t now);

struct slot_peer {
    uint64_t born; /* `born` of the grant for which it was opened */
    struct slot_file file;
    uint64_t open_at;            /* real time at which a file that is not open is tried again */
    uint64_t ask_at;             /* real time at which its locks may be tested again */
    bool ask;                    /* the container is silent: the answer would matter */
    uint64_t beat;               /* heartbeat in the last snapshot */
    uint64_t gone;               /* heartbeat when we last found that nobody holds a lock */
    uint32_t word;               /* futex word in the last snapshot */
    struct gh_slot_page *mapped; /* only for FUTEX_WAIT on its word; never read */
};

/* A snapshot of another slot. before: the last one of the same slot, or zeros. elapsed: time since then. top: highest v
 * in all slots' last snapshots. *contexts: how many of its processes have work. */
struct gh_slot slot_read(struct slot_peer *peer, unsigned gpu, unsigned slot, uint64_t born, uint64_t now,
                         const struct gh_rules *rules, const struct gh_slot *before, uint64_t elapsed, uint64_t top,
                         unsigned *contexts);
void slot_close(struct slot_peer *peer);
/* slot_may_ask: whether we may test now if a process of that container runs. slot_ask tests, on a copy of `peer` and
 * without the gate's lock, since the time it takes grows with the locks on the file. slot_answered takes over the
 * result. */
bool slot_may_ask(const struct slot_peer *peer);
void slot_ask(struct slot_peer *copy);
void slot_answered(struct slot_peer *peer, const struct slot_peer *copy);

/* Sleeps until the word differs from `seen`, a thread wakes us, or `ns` are over. word NULL: only sleeps. */
void slot_sleep(const uint32_t *word, uint32_t seen, uint64_t ns);

#endif
