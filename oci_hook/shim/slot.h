/* Slot files at work: the own one, mapped, with this process's sub-slot; the others', read as snapshots. */
#ifndef GPU_HOOK_SLOT_H
#define GPU_HOOK_SLOT_H

#include <stdbool.h>

#include "slot_page.h"

#define GH_WANTED_STEP (20 * GH_MS) /* who does not look for longer had no processor, and wanted no card */

/* Words of a slot file, which other processes look at while they change. */
#define LOAD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE(p, x) __atomic_store_n(p, x, __ATOMIC_RELEASE)

struct slot_own {
    struct gh_slot_page *page; /* the file, or private memory when there is none: then nobody sees us */
    struct gh_sub_slot *sub;   /* ours in it, or spare */
    struct gh_sub_slot spare;
    uint64_t generation;
    uint64_t asked_at; /* when a sub-slot was last looked for */
    bool inherited;    /* its last owner went with work in flight */
    int fd; /* holds the lock of the sub-slot; 0 none */
};

/* Opens the own slot file of the card at `card` of the policy page and takes a sub-slot. False: no memory. */
bool slot_attach(struct slot_own *own, unsigned card);
/* Our sub-slot is ours still; else another one is taken, now or once one is free. */
void slot_keep(struct slot_own *own, uint64_t now);
/* Sleepers on our word look again. */
void slot_wake(struct slot_own *own);
/* A launch was held at the gate for `ns` of real time. */
void slot_waited(struct slot_own *own, uint64_t ns);
/* There was work to do from `since`, or for at most GH_WANTED_STEP, until `now`: counted once for all processes. */
void slot_wanted(struct slot_own *own, uint64_t since, uint64_t now);

struct slot_peer {
    uint64_t born; /* the grant that it was opened for, */
    uint64_t inode, device;
    int fd;           /* 1 + descriptor; 0 not open */
    uint32_t word;    /* as of the snapshot */
    struct gh_slot_page *mapped; /* for FUTEX_WAIT on its word, never for reading */
};

/* A snapshot. `before`: the last one of the same peer, or all zero. top: the highest v believed of anybody. */
struct gh_slot slot_read(struct slot_peer *peer, unsigned card, unsigned slot, uint64_t born, uint64_t now,
                         const struct gh_rules *rules, const struct gh_slot *before, uint64_t elapsed, uint64_t top,
                         unsigned *contexts);
void slot_close(struct slot_peer *peer);

/* Sleeps until the word differs from `seen`, somebody wakes, or `ns` are over; a word of NULL only sleeps. */
void slot_sleep(const uint32_t *word, uint32_t seen, uint64_t ns);

#endif
