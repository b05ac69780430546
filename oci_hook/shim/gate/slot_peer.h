/* Another container's slot file, read as a snapshot. */
#ifndef GPU_HOOK_SLOT_PEER_H
#define GPU_HOOK_SLOT_PEER_H

#include "gate/slot_file.h"

struct slot_peer {
    uint64_t born; /* `born` of the grant for which it was opened */
    struct slot_file file;
    uint64_t open_at;            /* real time at which a file that is not open is tried again */
    uint64_t ask_at;             /* real time at which its locks may be tested again */
    bool ask;                    /* the container is silent: the answer would matter */
    uint64_t beat;               /* heartbeat in the last snapshot */
    uint64_t gone;               /* heartbeat when we last found that nobody holds a lock */
    uint32_t word;               /* futex word in the last snapshot */
    unsigned contexts;           /* processes with work in the last snapshot */
    int pid;                     /* ours: a forked child opens the file anew */
    bool lost;                   /* the descriptor was closed */
    uint64_t read_at;            /* real time at which read(2) may be called again */
    struct gh_slot_page *mapped; /* the kernel alone loads from it: it may be cut at any time */
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

#endif
