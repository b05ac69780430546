/* What the files of the gate share. The gate's lock is held for microseconds, never across a driver call. */
#ifndef GPU_HOOK_GATE_INSIDE_H
#define GPU_HOOK_GATE_INSIDE_H

#include "gate/cost.h"
#include "gate/gate.h"
#include "gate/slot.h"
#include "pages/arithmetic.h"

#define TRACKS 64u
#define PREQUEUES 8u
#define HALTS 16u
#define MARKERS 256u
#define BATCH_COMMANDS 32u
#define BATCH_TIME (200 * GH_US)
#define TAIL_AFTER (50 * GH_US)
#define HISTORY 128u
#define LOOK_EVERY (100 * GH_US)
#define CLEAR_AFTER (700 * GH_US)

/* A stream with commands in flight. */
struct track {
    CUcontext context;
    CUstream stream;
    uint64_t thread;            /* of a per-thread stream: whose it is; else 0 */
    uint32_t batch;             /* number of commands since the last marker */
    uint64_t batch_estimate;    /* estimated GPU time of the batch */
    uint64_t first_at, last_at; /* when the first and the last command of the batch were launched */
    uint64_t done_at;           /* when earlier commands were last seen to be done */
    uint16_t first, last;       /* oldest and newest marker in it: 1 + index; 0 none */
    uint8_t entered;            /* launches between gate_enter and gate_leave */
    uint8_t used;
};

/* An event behind a batch of commands. A second event before the last command of the batch measures that command. */
struct marker {
    CUcontext context; /* of its events, which it keeps; NULL: it has none */
    CUevent begin, end;
    uint64_t key, sampled; /* of the measured command: its key and its estimate */
    uint64_t estimate;     /* of the whole batch */
    uint64_t submitted;
    uint64_t begun; /* during the launch: when it began; after it: how long the program took to launch it */
    uint32_t count;
    uint16_t next;
    uint8_t timed, used;
    uint8_t queued; /* the measured command was queued behind others, so its time contains no wait for the program */
};

/* A cache: whether a kernel is a collective, by key. Two kernels may take turns in one place. */
struct name {
    _Atomic uint64_t key; /* of the kernel; the lowest bit is 1 for a collective */
};
#define NAMES 1024u

struct prequeue {      /* tier 0.5: words of a context, for which its streams wait */
    CUcontext context; /* NULL: free */
    uint32_t *words;   /* NULL: not made yet */
    CUdeviceptr at;    /* their address on the GPU */
    bool without;      /* the driver refused them */
};

struct halt { /* a time in which nothing of this process ran: all of its work was behind a closed word */
    uint64_t begin, end;
};

struct seen { /* what one look at the other containers' slots found */
    uint64_t at;
    uint64_t mine;     /* GPU time that one context has had so far, if all contexts with work shared the GPU equally */
    uint64_t clear_at; /* since then the GPU has been ours alone for a while; UINT64_MAX: others have work */
    uint32_t contexts;
};

struct gh_gate {
    struct gh_lock lock;
    struct gate_fast *fast;
    unsigned gpu, me;
    uint32_t scale; /* times of the gate are CLOCK_MONOTONIC divided by this */
    /* pages */
    const struct gh_gpu_page *page; /* NULL: none */
    uint32_t seq;
    uint64_t born[GH_SLOTS];
    struct slot_own own_slot;
    struct slot_peer peer[GH_SLOTS];
    /* what gh_decide sees */
    struct gh_gpu view;
    struct gh_own own;
    struct gh_peers peers;
    struct gh_decision last; /* if `asked` */
    bool asked;
    struct gh_gaps gaps;
    uint64_t looked;
    uint32_t siblings; /* other processes of the container that have work */
    uint8_t mode;      /* of the last decision */
    uint32_t contexts; /* contexts with work on the GPU, counting one of this process */
    struct seen seen[HISTORY];
    uint64_t looks;
    /* in flight */
    struct track track[TRACKS];
    struct marker marker[MARKERS];
    _Atomic uint64_t launched, done;
    uint64_t done_at;
    uint64_t inflight;
    uint64_t stuck, stuck_commands; /* part of it that is blocked, and is treated as if it were not there */
    /* since work is in flight without a break: */
    uint64_t busy_since, busy_charged;
    uint64_t busy_lost;  /* part of that time: rest of others' work in our turn, or of ours in theirs, ran */
    unsigned busy_track; /* the track of that work; TRACKS + 1: several */
    uint64_t long_one;   /* the longest recent command */
    struct cost_table costs;
    struct name name[NAMES];
    _Atomic uint32_t polling;                  /* 1: a thread asks the driver about events */
    void *_Atomic tailing;                     /* 1 + the stream that the pacer puts a marker on */
    uint32_t done_word;                        /* futex word for threads of this process */
    uint32_t entering, waiting, full, holding; /* threads at the gate; asleep; waiting for our window; for our turn */
    uint64_t wanting; /* there is work to do, which is counted up to this time; 0: there is none */
    uint32_t tiers;   /* of the GPU page */
    bool halted;
    struct halt halt[HALTS]; /* the last of them */
    unsigned halts;
    /* gate_prequeue.c */
    struct prequeue prequeues[PREQUEUES], *prequeue; /* the one with the newest command behind its word */
    uint32_t prequeue_number;
    uint64_t prequeue_estimate;
    bool closed;
    bool tell; /* tell lower classes that there is work again */
    /* what duty is learned from: time in our tenure that was clear, that is without work of others, and its charge */
    bool tenure;
    uint64_t clear, clear_charged, clear_at_idle, charged_at_idle, counted_at, counted_charge;
    uint64_t tenure_clear, tenure_charged;
    /* since tenure_clear, a charge was uncertain: of a cost not learned yet, or of work behind uncounted launches */
    bool unsure;
    uint64_t uncounted_at; /* launches before this were not counted, and may still fill the driver's queue */
    /* a tick of the fast path's clock, and the time then */
    uint64_t tick0, clock0;
    /* pacer */
    _Atomic uint32_t pacer; /* 0: no thread, 1: there is one, 2: it is in a long sleep */
    uint32_t pacer_word;
    uint32_t stop;
    uint64_t needed_at; /* when it last had something to do */
    bool yielded;
};

static inline struct gh_slot_head *gate_head(struct gh_gate *g) { return &g->own_slot.page->head; }
/* How many threads are at the gate. */
static inline void gate_show_waiting(struct gh_gate *g) {
    WORD_STORE_RELEASE(&g->own_slot.process->waiting, (uint8_t)min64(g->entering, UINT8_MAX));
}
static inline bool gate_has_peers(const struct gh_gate *g) { return (g->view.present & ~(1ull << g->me)) != 0; }
/* The part of an estimate that is not a guess: an unknown command counts as 0. */
static inline uint64_t gate_sure(uint64_t estimate) {
    return estimate >= GH_COST_UNKNOWN ? estimate - GH_COST_UNKNOWN : estimate;
}

/* Words of a prequeue: not 0 lets the command pass; the number of the last command that passed. */
enum { PREQUEUE_OPEN, PREQUEUE_PASSED };
/* A command is behind the word, as far as is known. */
static inline bool prequeue_waits(const struct gh_gate *g) {
    return g->prequeue && __atomic_load_n(&g->prequeue->words[PREQUEUE_PASSED], __ATOMIC_ACQUIRE) != g->prequeue_number;
}
/* How many commands a closed word keeps off the GPU: 0 or 1. */
static inline unsigned prequeue_blocked(const struct gh_gate *g) { return g->closed && prequeue_waits(g); }
/* Estimated GPU time of the command behind the word, open or closed; 0 for none. */
static inline uint64_t prequeue_pending(const struct gh_gate *g) {
    return prequeue_waits(g) ? g->prequeue_estimate : 0;
}

/* gate_page.c */
/* The gate's clock: CLOCK_MONOTONIC in ns, divided by the time scale of a slowed-down simulated GPU. */
uint64_t gate_now(const struct gh_gate *g);
/* Takes over the GPU page if it has changed. A page that cannot be read, or is none, leaves what was known of it. */
void gate_read_page(struct gh_gate *g);

/* gate_accounting.c */
/* Reads the GPU page and the other slots again, if the last look is old or `must`. */
void gate_look(struct gh_gate *g, uint64_t now, bool must);
/* Whether a container is silent, so that the pacer should find out whether it still runs. */
bool gate_asks(const struct gh_gate *g);
/* From the pacer: tries and tests file locks, which others can make costly. Releases the gate's lock meanwhile. */
void gate_ask(struct gh_gate *g);
/* Brings our own slot, in the view and in the slot file, up to date, and what is learned from it. */
void gate_publish(struct gh_gate *g, uint64_t now);
/* Ends our tenure now and wakes those that wait for it. */
void gate_yield(struct gh_gate *g, uint64_t now);
void gate_tenure_begin(struct gh_gate *g, uint64_t now);
void gate_tenure_end(struct gh_gate *g, uint64_t now, bool idle);
/* Counts, up to now, how long nobody else had work and how much GPU time we used of that. */
void gate_count_clear(struct gh_gate *g, uint64_t now);
/* Charges GPU time: to the virtual time, by weight; to the bucket of a cap. */
void gate_raise_v(struct gh_gate *g, uint64_t charge);
void gate_take_credit(struct gh_gate *g, uint64_t now, int64_t charge);
/* Commands of this process are done. waited: the part of the charge in which they only waited for other processes. */
void gate_retire(struct gh_gate *g, uint64_t now, uint32_t count, uint64_t estimate, uint64_t charge, uint64_t waited);
/* Of a command that has just ended after `elapsed`: our part of that time; *clean: nobody else had work meanwhile. */
uint64_t gate_own_part(const struct gh_gate *g, uint64_t now, uint64_t elapsed, bool *clean);

/* From now on nothing of this process runs (halted), or something can run again. */
void gate_halt(struct gh_gate *g, uint64_t now, bool halted);
/* How long nothing of this process ran between two times. */
uint64_t gate_halted(const struct gh_gate *g, uint64_t since, uint64_t now);

/* gate_markers.c. The lock is held on entry and on return; markers_poll and markers_tail release it in between.
 * Numbers of tracks and markers are 1 + index, and 0 means that none is free. */
void markers_poll(struct gh_gate *g);
unsigned markers_track(struct gh_gate *g, CUcontext context, CUstream stream);
unsigned markers_take(struct gh_gate *g, CUcontext context);
void markers_give(struct gh_gate *g, unsigned marker);
void markers_link(struct gh_gate *g, unsigned track, unsigned marker);
void markers_flush(struct gh_gate *g, unsigned track, uint64_t now);
/* Without the lock: makes the events of a marker unless it has them. False: the driver refuses. */
bool markers_ready(struct marker *m, CUcontext context);
/* Without the lock: whether launches into the stream become a graph, or are refused. */
bool markers_capturing(CUstream stream);
/* Without the lock: whether all that was launched into the stream is done. */
bool markers_idle(CUstream stream);
/* From the pacer: puts markers behind commands that have none, in streams that were not used for a while. */
void markers_tail(struct gh_gate *g);

/* gate_prequeue.c. The lock is held, except for prequeue_put. */
/* Whether a command that waits only for the window may be launched now, behind a word. */
bool prequeue_allows(struct gh_gate *g, const struct gh_decision *d, CUcontext context, CUstream stream,
                     const struct cost *cost);
/* Before the launch, without the lock: what comes into the stream from now on is behind the word. */
void prequeue_put(struct gh_gate *g, CUcontext context, CUstream stream, uint64_t estimate);
void prequeue_close(struct gh_gate *g, bool closed);
/* The slot on whose futex word the pacer sleeps, so that it can close the word in time; GH_SLOTS: none. */
unsigned prequeue_watched(const struct gh_gate *g);
/* Before the context (NULL: every one) is destroyed: opens its word, so that nothing stays behind it. */
void prequeue_leave(struct gh_gate *g, CUcontext context);

/* pacer.c */
/* Starts the pacer, or wakes it from a long sleep. */
void pacer_need(struct gh_gate *g);

#endif
