/* The gate of one GPU, and what its files share: it is composed of values that know nothing of each other. The gate's
 * lock is held for microseconds, never across a driver call. */
#ifndef GPU_HOOK_GATE_STATE_H
#define GPU_HOOK_GATE_STATE_H

#include "driver/cuda_gpu.h"
#include "gate/cost.h"
#include "gate/gate.h"
#include "gate/inflight.h"
#include "gate/names.h"
#include "gate/peers.h"
#include "gate/prequeue.h"
#include "gate/slot_own.h"
#include "gate/usage.h"

/* Threads of this process at the gate. */
struct gate_threads {
    uint32_t entering; /* all */
    uint32_t asleep;
    uint32_t full;    /* asleep until our own window has room */
    uint32_t holding; /* held for the tenant's turn */
};

/* State kept from one decision to the next: gate_ask.c. */
struct gate_memory {
    struct gh_own own; /* only what concerns the decisions themselves */
    struct gh_decision last;
    bool decided;               /* `last` is there */
    uint64_t spare, spare_seen; /* what is left of the last decision's `spare`; when the others were read for it */
    struct gh_gaps gaps;
    uint64_t met; /* the longest rest of lower classes' commands met of late */
};

/* The thread that looks for finished commands: pacer.c. */
struct gate_pacer {
    _Atomic uint32_t state; /* 0: no thread, 1: there is one, 2: it is in a long sleep */
    uint32_t word;          /* futex word */
    uint32_t stop;
    uint64_t needed_at; /* when it last had something to do */
    uint32_t early;     /* sleeps on the word of another container that ended at once; any of them can wake us there */
    bool yielded;       /* the tenure was ended since there was work */
};

struct gh_gate {
    struct gh_lock lock;
    struct gate_fast *fast;
    _Atomic uint64_t *brief; /* see struct gates */
    /* The values: only their own files touch what is in them. */
    struct peers peers;
    struct inflight inflight;
    struct usage usage;
    struct prequeue prequeue;
    struct slot_own own_slot;
    struct gate_memory memory;
    struct gate_pacer pacer;
    struct cost_table costs;
    struct names names;
    struct gate_threads threads;
    bool changed;           /* there is something to publish */
    bool tell;              /* tell lower classes that there is work again */
    uint64_t overtook;      /* when a short copy was let in before its turn */
    uint64_t wanting;       /* there is work to do, which is counted up to this time; 0: there is none */
    uint64_t tick0, clock0; /* a tick of the fast path's clock, and the time then */
};

/* gate_setup.c: the gate of the GPU that a stream is on, and the stream's context; NULL: there is none. That context is current
 * until stream_context_left. */
struct gh_gate *gate_of(CUstream stream, CUcontext *context, struct gone_to *to);

static inline uint64_t gate_now(const struct gh_gate *g) { return peers_now(&g->peers); }

#define GATE_EARLY_MOST 3u /* after so many sleeps that ended at once, the word is no help */
/* A sleep that was to take `step` ended at once. */
static inline bool gate_is_early(uint64_t slept, uint64_t step) { return slept < min64(step, 20 * GH_US); }

/* gate_publish.c */
/* Reads the GPU page and the other slots again, if the last look is old or `must`. */
void gate_look(struct gh_gate *g, uint64_t now, bool must);
/* Brings our own slot in the view up to date. */
void gate_refresh(struct gh_gate *g, uint64_t now);
/* The same, and the slot file before. */
void gate_publish(struct gh_gate *g, uint64_t now);
/* Charges commands that are done and learns from them. */
void gate_finished(struct gh_gate *g, const struct finished *done);
/* Commands are done. waited: the part of the charge in which they only waited for other processes. */
void gate_retire(struct gh_gate *g, uint64_t now, const struct work *work, uint64_t charge, uint64_t waited);
/* Takes an estimate, or what a process that ends has not paid (at most UNPAID_MOST), from the credit of a cap. */
#define UNPAID_MOST (10 * GH_S)
void gate_take_credit(struct gh_gate *g, uint64_t now, int64_t charge);
/* Asks the driver what is done. Releases the lock meanwhile. */
void gate_poll(struct gh_gate *g);
/* Counts the time up to now, before `threads.full` changes. */
void gate_count(struct gh_gate *g, uint64_t now);
void gate_tenure_begin(struct gh_gate *g, uint64_t now);
/* Ends what is learned from our tenure. idle: since the container has become idle. */
void gate_tenure_end(struct gh_gate *g, uint64_t now, bool idle);
/* Ends the tenure itself, and wakes those that wait for it. */
void gate_yield(struct gh_gate *g, uint64_t now);

/* gate_fast.c */
/* Notes whether commands of this key are known to be brief. */
void gate_note_brief(struct gh_gate *g, uint64_t key, const struct cost *cost);
/* From now on launches bypass the gate; are counted. */
void gate_set_open(struct gh_gate *g, uint64_t now);
void gate_set_closed(struct gh_gate *g, uint64_t now);

/* gate_ask.c */
/* The tenant has work again after an idle time. */
void gate_woken(struct gh_gate *g, uint64_t now);
/* came: when the launch came to the gate. behind: the command would come behind work of its stream that waits for something.
 * Asks gh_decide for a command of that estimated GPU time, and does what the decision says, but waiting. */
struct gh_decision gate_ask(struct gh_gate *g, uint64_t now, uint64_t came, uint64_t cost, bool behind);
/* True if the last decision holds for a command of that estimated GPU time, too, which is taken off what it holds for. It
 * holds until the others are looked at again. */
bool gate_spare(struct gh_gate *g, uint64_t now, uint64_t estimate);
/* True if a higher class keeps off the GPU what is launched now; then *d is the decision. */
bool gate_is_frozen(const struct gh_gate *g, uint64_t now, struct gh_decision *d);

/* pacer.c */
/* Starts the pacer, or wakes it from a long sleep. */
void pacer_need(struct gh_gate *g);
/* There is work at `now`, so that the pacer stays. */
void pacer_used(struct gh_gate *g, uint64_t now);
bool pacer_runs(const struct gh_gate *g);

#endif
