/* Our own slot file: a head that all processes of the container share, and a record of this process in it. Everything
 * that this process writes there goes through this file, except what usage.c charges. */
#ifndef GPU_HOOK_SLOT_OWN_H
#define GPU_HOOK_SLOT_OWN_H

#include "gate/slot_file.h"
#include "process/atomics.h"

#define GH_WAKES 64
/* A process that did not run for longer than this did not want the GPU meanwhile, nor was it held at the gate. */
#define GH_COUNT_STEP (20 * GH_MS)

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
    uint64_t unpaid;       /* GPU time of that work which no cap was charged */
    uint64_t long_at;      /* head.long_at as we wrote it last */
    uint32_t had_unknown;  /* see slot_had_unknown */
    struct slot_file file; /* other containers see its locks, and can put read locks in their way */
};

/* A process's figures for the other containers. */
struct slot_record {
    uint64_t launched, done, done_at, residue, uncharged;
    uint64_t held, waiting; /* numbers of threads */
};

/* The last owner of our process record ended with work in flight. */
static inline bool slot_inherited(const struct slot_own *own) { return own->inherited; }
/* GPU time that it may have had with that work, and that no cap was charged. */
static inline uint64_t slot_unpaid(const struct slot_own *own) { return own->unpaid; }
/* The head of our slot file, which stays where it is. */
static inline struct gh_slot_head *slot_head(struct slot_own *own) { return &own->page->head; }

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

/* The whole slot. *contexts: how many processes of ours have work, with this one even if no record is free to show it. */
struct gh_slot slot_own_view(struct slot_own *own, uint64_t now, uint64_t stale, unsigned *contexts);
/* GPU time left of the longest work in flight of another process of ours; GH_S while it is not shown, or unknown. *seen is for
 * slot_launches_long. */
uint64_t slot_siblings(const struct slot_own *own, uint64_t now, uint64_t stale, uint64_t *seen);
/* A launch of a long command, at the gate since `came`. slot_waits_long: it waits for others. Of our processes, the one that has
 * waited longest goes first, as long as it says so every few milliseconds. slot_launches_long: it goes on; false: another process
 * of ours goes first, or has done so since `seen` was read. slot_goes: it has waited for the last time. */
void slot_waits_long(struct slot_own *own, uint64_t came, uint64_t now);
bool slot_launches_long(struct slot_own *own, uint64_t seen, uint64_t came, uint64_t now, bool unknown);
void slot_goes(struct slot_own *own, uint64_t came);
/* We launch a command of unknown cost where nobody waits for it long. */
void slot_launches_unknown(struct slot_own *own, uint64_t now);
/* unknown: number of our commands of unknown cost in flight. slot_had_unknown: just before we launch a long command.
 * slot_shows_long: once our record shows it; if there are no more of them than before, its cost is known, or it is done. */
void slot_had_unknown(struct slot_own *own, uint32_t unknown);
void slot_shows_long(struct slot_own *own, uint32_t unknown);
/* The process record, with a sign of life; or only one of these. */
void slot_publish(struct slot_own *own, const struct slot_record *record, uint64_t now);
void slot_alive(struct slot_own *own, uint64_t now);
void slot_show_waiting(struct slot_own *own, uint64_t threads);
/* The container is busy now, or waits; has become idle now; has work after an idle time, and keeps the GPU for that
 * long after its work. */
void slot_active(struct slot_own *own, uint64_t now);
void slot_idle(struct slot_own *own, uint64_t now);
void slot_awake(struct slot_own *own, uint64_t now);
void slot_linger(struct slot_own *own, uint32_t linger);
/* The last decision: enum gh_mode, and 1 + the slot that it waits for. */
void slot_mode(struct slot_own *own, uint8_t mode, uint8_t by, uint64_t now);
void slot_ignores(struct slot_own *own);
/* Begins a tenure, or ends it now. */
void slot_claim(struct slot_own *own, uint64_t epoch, uint64_t start, uint64_t end, uint64_t probe_until);
void slot_yield(struct slot_own *own, uint64_t now);
/* The work that this process shows as in flight is no more, and nobody need wait for it. Returns the GPU time that it
 * may have had and that no cap was charged. */
uint64_t slot_exits(struct slot_own *own);

/* A launch has waited at the gate for `ns` of real time. */
void slot_waited(struct slot_own *own, uint64_t ns);
/* Counts the time from `since` (at most GH_COUNT_STEP ago) to `now`: in which there was work to do; in which the
 * container in `slot` held us at the gate. Time that another process of ours has counted is not counted again. */
void slot_wanted(struct slot_own *own, uint64_t since, uint64_t now);
void slot_held_for(struct slot_own *own, unsigned slot, uint64_t since, uint64_t now);

#endif
