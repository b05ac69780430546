/* What the gate's parts share. The lock is held for microseconds and never across a driver call. */
#ifndef GPU_HOOK_GATE_INSIDE_H
#define GPU_HOOK_GATE_INSIDE_H

#include "gate/cost.h"
#include "gate/gate.h"
#include "gate/slot.h"

#define TRACKS 64u
#define FRONTS 8u
#define HALTS 16u
#define MARKS 256u
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
    uint64_t thread;            /* whose per-thread stream; 0 */
    uint32_t batch;             /* commands since the last marker, */
    uint64_t batch_estimate;    /* their estimated GPU time, */
    uint64_t first_at, last_at; /* when the first and the last of them were submitted */
    uint64_t done_at;           /* when commands before them were last seen to be done */
    uint16_t first, last;       /* markers on it, oldest first: 1 + index */
    uint8_t entered;            /* launches between enter and leave */
    uint8_t used;
};

/* An event behind a batch of commands; with a second one before the last of them, which is so measured. */
struct mark {
    CUcontext context; /* of its events, which stay its own; NULL: has none */
    CUevent begin, end;
    uint64_t key, sampled; /* of the measured command: what it is and was estimated at */
    uint64_t estimate;     /* of the whole batch */
    uint64_t submitted;
    uint64_t begun; /* while it is launched: before its first event; then how long that took the program */
    uint32_t count;
    uint16_t next;
    uint8_t timed, used;
    uint8_t queued; /* the measured command was put behind others: no wait of the program's is in its time */
};

/* Which kernels were found to be collectives, by key; asked again when another one took the place. */
struct name {
    _Atomic uint64_t key; /* its lowest bit: 1 it is */
};
#define NAMES 1024u

struct front {         /* tier 0.5: words of a context that its streams wait for */
    CUcontext context; /* NULL: free */
    uint32_t *words;   /* NULL: not made yet */
    CUdeviceptr at;    /* as the GPU sees them */
    bool without;      /* it does not work here */
};

struct halt { /* nothing of this process ran then: all of its work was behind a closed word */
    uint64_t begin, end;
};

struct seen { /* one look at the neighbours */
    uint64_t at;
    uint64_t mine;     /* the part of the time so far that one context had of those with work */
    uint64_t clear_at; /* nobody else had work for a while since then; UINT64_MAX: somebody has */
    uint32_t contexts;
};

struct gh_gate {
    struct gh_lock lock;
    struct gate_fast *fast;
    unsigned gpu, me;
    uint32_t scale; /* the gate's time is CLOCK_MONOTONIC divided by it */
    /* pages */
    const struct gh_gpu_page *page; /* NULL: none */
    uint32_t seq;
    uint64_t born[GH_SLOTS];
    struct slot_own own_slot;
    struct slot_peer peer[GH_SLOTS];
    /* what gh_decide sees */
    struct gh_gpu view;
    struct gh_own own;
    struct gh_gaps gaps;
    uint64_t looked;
    uint32_t siblings; /* processes of the container with work, this one not counted */
    uint8_t mode;      /* of the last decision */
    uint32_t contexts; /* with work, everywhere, one of this process counted */
    struct seen seen[HISTORY];
    uint64_t looks;
    /* in flight */
    struct track track[TRACKS];
    struct mark mark[MARKS];
    _Atomic uint64_t launched, done;
    uint64_t done_at;
    uint64_t inflight;
    uint64_t stuck, stuck_commands; /* of it, what waits for something: as if it were not there */
    /* since there is work in flight: */
    uint64_t busy_since, busy_charged;
    uint64_t busy_lost;  /* the others' part of it while tenants take turns: what was left of theirs, or of ours */
    unsigned busy_track; /* whose work it is; TRACKS + 1: of several streams */
    uint64_t long_one;   /* the longest command of late */
    struct cost_table costs;
    struct name name[NAMES];
    _Atomic uint32_t polling;                  /* a thread is asking the driver about events */
    void *_Atomic tailing;                     /* the stream that the pacer is putting a marker on */
    uint32_t done_word;                        /* own threads sleep on it */
    uint32_t entering, waiting, full, holding; /* threads at the gate; asleep; for the own window; for their turn */
    uint64_t wanting; /* since when, or up to when it is counted, there is work to do; 0 there is none */
    uint32_t tiers;   /* of the GPU page */
    bool halted;
    struct halt halt[HALTS]; /* the last of them */
    unsigned halts;
    /* gate_front.c */
    struct front fronts[FRONTS], *front; /* the one with the last command behind its word */
    uint32_t front_number;
    uint64_t front_estimate;
    bool closed;
    bool tell; /* lower classes, that there is work again */
    /* tenure: what duty is learned from */
    bool tenure;
    uint64_t clear, clear_charged, clear_at_idle, charged_at_idle, counted_at, counted_charge;
    uint64_t tenure_clear, tenure_charged;
    /* since tenure_clear, something was charged whose cost is not learned yet, or waited for what is not */
    bool unsure;
    uint64_t uncounted_at; /* until when launches passed uncounted: a driver's queue may be full of them */
    /* clock of the fast path */
    uint64_t tick0, clock0;
    /* pacer */
    _Atomic uint32_t pacer; /* 0 none, 1 there, 2 in its long sleep */
    uint32_t pacer_word;
    uint32_t stop;
    uint64_t needed_at; /* when there was last something for it to do */
    bool yielded;
};

static inline uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline struct gh_slot_head *gate_head(struct gh_gate *g) { return &g->own_slot.page->head; }
static inline bool gate_has_peers(const struct gh_gate *g) { return (g->view.present & ~(1ull << g->me)) != 0; }
/* What is not a guess of an estimate. */
static inline uint64_t gate_sure(uint64_t estimate) {
    return estimate >= GH_COST_UNKNOWN ? estimate - GH_COST_UNKNOWN : estimate;
}

/* gate_setup.c */
uint64_t gate_now(const struct gh_gate *g);
/* The GPU page as it is, unless it cannot be read or is none: then what was known of it stays. */
void gate_read_page(struct gh_gate *g);

/* gate_books.c */
/* Reads GPU page and neighbours anew when `must` or the last look is old. */
void gate_look(struct gh_gate *g, uint64_t now, bool must);
/* A neighbour has been silent, and may be asked whether it is dead. */
bool gate_asks(const struct gh_gate *g);
/* From the pacer: asks the kernel for locks that others may have made costly. The lock is given up meanwhile. */
void gate_ask(struct gh_gate *g);
/* Brings the own record of the view, the sub-slot and duty up to date. */
void gate_publish(struct gh_gate *g, uint64_t now);
/* The tenure is given back; sleepers look again. */
void gate_yield(struct gh_gate *g, uint64_t now);
void gate_tenure_begin(struct gh_gate *g, uint64_t now);
void gate_tenure_end(struct gh_gate *g, uint64_t now, bool idle);
/* Up to now: how long nobody else had work, and what the tenant did with it. */
void gate_count_clear(struct gh_gate *g, uint64_t now);
/* GPU time is charged, to the virtual time by weight or to a cap's bucket. */
void gate_raise_v(struct gh_gate *g, uint64_t charge);
void gate_take_credit(struct gh_gate *g, uint64_t now, int64_t charge);
/* Work of this process was seen to be done. waited: the part of the charge in which it only waited for others. */
void gate_retire(struct gh_gate *g, uint64_t now, uint32_t count, uint64_t estimate, uint64_t charge, uint64_t waited);
/* An own command of `elapsed` that ended just now: the part of it that was ours, and whether nobody disturbed it. */
uint64_t gate_shared(const struct gh_gate *g, uint64_t now, uint64_t elapsed, bool *clean);

/* From now on nothing of this process runs, or something may again. */
void gate_halt(struct gh_gate *g, uint64_t now, bool halted);
/* For how long between two times nothing of this process ran. */
uint64_t gate_halted(const struct gh_gate *g, uint64_t since, uint64_t now);

/* gate_marks.c; the lock is held on entry and on return, and given up in between */
void marks_poll(struct gh_gate *g);
unsigned marks_track(struct gh_gate *g, CUcontext context, CUstream stream);
unsigned marks_take(struct gh_gate *g, CUcontext context);
void marks_give(struct gh_gate *g, unsigned mark);
void marks_link(struct gh_gate *g, unsigned track, unsigned mark);
void marks_flush(struct gh_gate *g, unsigned track, uint64_t now);
/* Without the lock: the events of a marker, made if need be. */
bool marks_ready(struct mark *m, CUcontext context);
/* Without the lock: what is launched into the stream becomes a graph, or is refused. */
bool marks_capturing(CUstream stream);
/* Without the lock: all that was launched into the stream is done. */
bool marks_idle(CUstream stream);
/* With the lock, given up meanwhile: markers behind commands that have none. From a thread of ours: those of streams
 * that were not used for a while. */
void marks_tail(struct gh_gate *g);

/* gate_front.c; the lock is held but for front_put */
/* Whether a command that the decision keeps waiting for nothing but the window may go behind a word. */
bool front_may(struct gh_gate *g, const struct gh_decision *d, CUcontext context, CUstream stream,
               const struct cost *cost);
/* Without the lock, before it is launched: what comes into the stream from now on is behind the word. */
void front_put(struct gh_gate *g, CUcontext context, CUstream stream, uint64_t estimate);
void front_close(struct gh_gate *g, bool closed);
/* The slot whose word a thread sleeps on that may have to close; GH_SLOTS for none. */
unsigned front_watched(const struct gh_gate *g);
/* Commands that a closed word keeps; estimated time of what has not come by, be it open or closed. */
unsigned front_kept(const struct gh_gate *g);
uint64_t front_behind(const struct gh_gate *g);
/* The context (NULL: all) goes: nothing is left behind a closed word. */
void front_leave(struct gh_gate *g, CUcontext context);

/* pacer.c */
void pacer_need(struct gh_gate *g);

#endif
