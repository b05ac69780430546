/* Slot files at work: the own one, mapped, with this process's sub-slot; the others', read as snapshots. */
#ifndef GPU_HOOK_SLOT_H
#define GPU_HOOK_SLOT_H

#include <stdbool.h>

#include "pages/slot_page.h"

#define GH_WAKES 64
#define GH_WANTED_STEP (20 * GH_MS) /* who does not look for longer had no processor, and wanted no GPU */

/* Words of a slot file, which other processes look at while they change. */
#define LOAD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE(p, x) __atomic_store_n(p, x, __ATOMIC_RELEASE)

/* A descriptor of ours. The program may have closed it, and its number may be another file's by now. */
struct slot_file {
    int fd; /* 1 + descriptor; 0 none */
    uint64_t inode, device;
};

struct slot_own {
    struct gh_slot_page *page; /* the file, or private memory when there is none: then nobody sees us */
    struct gh_sub_slot *sub;   /* ours in it, or spare */
    struct gh_sub_slot spare;
    unsigned gpu;
    uint64_t generation;
    uint64_t retry_at;     /* when what we have not got is tried again: the file, a sub-slot; in real time */
    uint64_t lock_at;      /* and the lock, for neighbours to see */
    bool locked;           /* the last try's answer */
    uint64_t wake_at;      /* more slept on our word than should: when they are next woken */
    bool inherited;        /* its last owner went with work in flight */
    struct slot_file file; /* its locks are what neighbours see; anybody can put read locks in their way */
};

/* Opens the own slot file of the GPU at `gpu` of the policy page and takes a sub-slot. False: no memory. */
bool slot_attach(struct slot_own *own, unsigned gpu);
/* Our sub-slot is ours still; else another one is taken, now or once one is free. A file that could not be opened is
 * tried again. */
void slot_keep(struct slot_own *own);
/* The lock that neighbours should see is missing, and may be tried for again. Then: tries, which takes as long as
 * others have made the file's list of locks: for a copy of `own`, without the gate's lock. */
bool slot_may_lock(const struct slot_own *own);
void slot_lock(struct slot_own *copy);
void slot_locked(struct slot_own *own, const struct slot_own *copy);
/* Sleepers on our word look again: the first GH_WAKES of them now, others when their sleep ends. */
void slot_wake(struct slot_own *own);
/* A launch was held at the gate for `ns` of real time. */
void slot_waited(struct slot_own *own, uint64_t ns);
/* There was work to do from `since`, or for at most GH_WANTED_STEP, until `now`: counted once for all processes. */
void slot_wanted(struct slot_own *own, uint64_t since, uint64_t now);

struct slot_peer {
    uint64_t born; /* the grant that it was opened for */
    struct slot_file file;
    uint64_t open_at;            /* not opened: when to try again; in real time, as */
    uint64_t ask_at;             /* when its lock may be asked for again */
    bool ask;                    /* an answer would matter */
    uint64_t beat;               /* its heartbeat, as of the snapshot; */
    uint64_t gone;               /* and as of the last answer, if that was that nobody holds a lock */
    uint32_t word;               /* as of the snapshot */
    struct gh_slot_page *mapped; /* for FUTEX_WAIT on its word, never for reading */
};

/* A snapshot. `before`: the last one of the same peer, or all zero. top: the highest v believed of anybody. */
struct gh_slot slot_read(struct slot_peer *peer, unsigned gpu, unsigned slot, uint64_t born, uint64_t now,
                         const struct gh_rules *rules, const struct gh_slot *before, uint64_t elapsed, uint64_t top,
                         unsigned *contexts);
void slot_close(struct slot_peer *peer);
/* Whether it may be asked now if anybody lives there. Then: asks, which takes as long as its owner, or anybody who can
 * open the file, has made its list of locks. For a copy of `peer`, without the gate's lock. */
bool slot_may_ask(const struct slot_peer *peer);
void slot_ask(struct slot_peer *copy);
void slot_answered(struct slot_peer *peer, const struct slot_peer *copy);

/* Sleeps until the word differs from `seen`, somebody wakes, or `ns` are over; a word of NULL only sleeps. */
void slot_sleep(const uint32_t *word, uint32_t seen, uint64_t ns);

#endif
