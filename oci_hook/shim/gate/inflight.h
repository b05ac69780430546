/* The work of this process that is in flight: streams with commands, and the events that tell when these are done.
 * Bookkeeping is in inflight.c; what asks the driver is in inflight_events.c. The gate's lock is held where no other
 * rule is given. Tracks and markers are numbered from 1; 0: none. */
#ifndef GPU_HOOK_INFLIGHT_H
#define GPU_HOOK_INFLIGHT_H

#include "driver/cuda.h"
#include "gate/decide.h"
#include "pages/arithmetic.h"
#include "process/state.h"

#define TRACKS 64u
#define MARKERS 256u
#define HALTS 16u
#define BATCH_COMMANDS 32u /* a marker is due after so many */

/* Some commands, and their estimated GPU time. */
struct work {
    uint64_t known;   /* sum of the estimates of commands whose cost is known */
    uint32_t unknown; /* number of commands whose cost is not */
    uint32_t count;
};

static inline struct work work_one(uint64_t estimate) {
    bool unknown = estimate >= GH_COST_UNKNOWN;
    return (struct work){.known = unknown ? 0 : estimate, .unknown = unknown, .count = 1};
}
static inline void work_add(struct work *w, const struct work *more) {
    w->known = add64(w->known, more->known);
    w->unknown += more->unknown;
    w->count += more->count;
}
static inline void work_take(struct work *w, const struct work *less) {
    w->known -= min64(less->known, w->known);
    w->unknown -= (uint32_t)min64(less->unknown, w->unknown);
    w->count -= (uint32_t)min64(less->count, w->count);
}
static inline uint64_t work_estimate(const struct work *w) { return add64(w->known, w->unknown * GH_COST_UNKNOWN); }

/* A stream with commands in flight. */
struct track {
    CUcontext context;
    CUstream stream;
    uint64_t thread;              /* of a per-thread stream: whose it is; else 0 */
    struct work batch;            /* commands since the last marker */
    uint64_t first_at, last_at;   /* when the first and the last of them were launched */
    uint64_t done_at;             /* when earlier commands were last seen to be done */
    uint64_t first_own, done_own; /* first_at and done_at by the own clock */
    uint32_t entered;             /* launches that are in the driver now */
    uint16_t first, last;         /* oldest and newest marker in it */
    bool used;
    bool leaving; /* the driver may destroy its context now: we ask it nothing */
};

/* An event behind a batch of commands. A second event before the last command of the batch measures that command. */
struct marker {
    CUcontext context; /* of its events, which it keeps; NULL: it has none */
    CUevent begin, end;
    struct work batch;
    uint64_t key, sampled;             /* of the measured command: its key and its estimate */
    uint64_t submitted, submitted_own; /* the latter by the own clock */
    uint64_t launching;                /* how long the driver took to launch the measured command */
    uint16_t next;
    uint8_t timed, used;
    uint8_t started; /* the measured command has begun to run; only asked for if its cost is unknown */
    uint8_t queued;  /* the measured command was queued behind others, so its time contains no wait for the program */
    uint8_t kernel;  /* it is one kernel, which begins when the driver's call ends */
};

struct halt { /* a time in which nothing of this process ran: all of its work was behind a closed word */
    uint64_t begin, end;
};

struct inflight {
    struct track track[TRACKS];
    struct marker marker[MARKERS];
    uint64_t busy; /* bit i: track i has commands in flight */
    _Atomic uint64_t launched, done;
    uint64_t done_at;
    /* The own clock: our part of the time, while contexts take turns on the GPU; it stands while we are halted. */
    uint64_t own, own_at, done_own; /* its time at own_at; at done_at */
    uint32_t pace;                  /* ppm of the time */
    struct work all;
    uint32_t scale; /* of the clock */
    /* Work that waits for something, and does not count: see inflight_check. */
    struct work stuck;
    uint64_t running_since, running_cost; /* of the oldest commands that are not stuck; as if they had run alone */
    uint64_t uncounted_at;   /* launches before this were not counted, and may still fill the driver's queue */
    struct halt halt[HALTS]; /* the last of them */
    unsigned halts;
    bool halted;
    /* The time that two events around a command add (1.3 us on an H100, driver 580): measured at first, by two with
     * nothing between them. */
    struct marker empty;
    float empty_ms;
    uint32_t empty_seen;
    _Atomic uint32_t empty_state;
    uint32_t done_word;       /* futex word for threads of this process: changes when commands are done */
    _Atomic uint32_t polling; /* 1: a thread asks the driver about events */
    void *_Atomic tailing;    /* 1 + the stream that the pacer puts a marker on */
};

static inline void inflight_begin(struct inflight *f, uint32_t scale) { f->scale = scale; }
static inline bool inflight_empty(const struct inflight *f) { return f->launched == f->done; }
static inline uint64_t inflight_launched(const struct inflight *f) { return f->launched; }
static inline uint64_t inflight_done(const struct inflight *f) { return f->done; }
static inline uint64_t inflight_done_at(const struct inflight *f) { return f->done_at; }
/* Nothing is in flight but what waits for something else. */
static inline bool inflight_idle(const struct inflight *f) { return f->launched - f->done == f->stuck.count; }
static inline bool inflight_halted(const struct inflight *f) { return f->halted; }
static inline const uint32_t *inflight_word(const struct inflight *f) { return &f->done_word; }
/* Estimated GPU time of what is in flight and not stuck; and of the part whose cost is known. */
static inline struct work inflight_work(const struct inflight *f) {
    struct work w = f->all;
    work_take(&w, &f->stuck);
    return w;
}
static inline uint32_t inflight_unknown(const struct inflight *f) { return f->all.unknown; }
/* GPU time that the running commands have had, as far as is known. */
static inline uint64_t inflight_running(const struct inflight *f, uint64_t now) {
    return inflight_empty(f) ? 0 : min64(age64(now, f->running_since), f->running_cost);
}
/* Input of gh_decide about it. */
struct gh_own inflight_own(const struct inflight *f);

/* ---- a launch ---- */

/* State of a stream just before a launch into it. */
struct opening {
    unsigned track; /* 0: too many streams */
    bool queued;    /* it has commands in flight */
    bool unmarked;  /* its newest ones have no marker behind them */
    bool full;      /* with this command, its batch is large enough for a marker */
    bool of_thread; /* no other thread could put a marker into it later */
};
struct opening inflight_opening(struct inflight *f, CUcontext context, CUstream stream, uint64_t estimate,
                                uint64_t batch_time);
/* A marker that has events of that context, or none yet. */
unsigned inflight_take_marker(struct inflight *f, CUcontext context);
/* Counts the command as launched; track 0: inflight_retire must follow. */
void inflight_launch(struct inflight *f, unsigned track, uint64_t estimate, uint64_t now);

/* Record of a launch in its track, after the driver's answer. */
struct closing {
    CUcontext context;
    unsigned track, marker;
    bool failed, marked; /* the driver refused the command; the marker's event is behind it */
    bool timed, queued, kernel;
    uint64_t key, estimate;
    uint64_t began, ended; /* the driver's call */
    uint64_t assumed;      /* what a command of unknown cost counts for if nothing can measure it */
};
enum closed {
    CLOSED,
    CLOSED_REFUSED, /* the command will not run: inflight_retire must follow, without a charge */
    CLOSED_ASSUMED  /* its estimate is now c->assumed */
};
enum closed inflight_close(struct inflight *f, const struct closing *c);

/* ---- what is done ---- */

/* Commands that are done. */
struct finished {
    struct work work;
    uint64_t at;                    /* when that was seen */
    uint64_t submitted;             /* when the first of them was launched */
    uint64_t key, sampled, elapsed; /* of the measured command: its key, its estimate and its time, without halts */
    bool measured, queued;
    bool prompt; /* the program launched it without delay */
};
/* They no longer count. wake: threads of ours sleep on the word. */
void inflight_retire(struct inflight *f, const struct work *work, uint64_t at, bool wake);
/* Commands in a stream without a marker behind them are known to be done. False: there are none. */
bool inflight_flush(struct inflight *f, unsigned track, uint64_t now, struct finished *out);
/* Tracks for inflight_flush: inflight_synchronised after the program has waited for the stream (whole: the context), for all
 * launched before `before`; inflight_overdue for a per-thread stream whose work should be done: no other thread can ask. */
unsigned inflight_synchronised(const struct inflight *f, CUcontext context, CUstream stream, bool whole,
                               uint64_t before);
unsigned inflight_overdue(const struct inflight *f, uint64_t now);
/* The program lets the driver destroy the context (leaving), or that call is over. */
void inflight_leave_context(struct inflight *f, CUcontext context, bool leaving);
bool inflight_is_leaving(const struct inflight *f, CUcontext context);
/* The next of what a context that has gone had in flight. False: no more. */
bool inflight_of_context(struct inflight *f, CUcontext context, uint64_t now, struct finished *out);
/* Its streams and events are no more. */
void inflight_forget_context(struct inflight *f, CUcontext context);

/* ---- what runs ---- */

/* Finds the oldest commands in flight, and those that wait for something, perhaps for a launch that we hold at the
 * gate. pace: our part of the time from now on, in ppm. False: nothing can be learned of the tenant's gaps, since work may be
 * behind launches that were not counted, or an overdue command of unknown cost may just be long. */
bool inflight_check(struct inflight *f, uint64_t now, uint32_t pace);
/* True if a launch into this stream would come behind work that waits for something. Such a launch sets nothing going, but
 * its thread may make another one after it. So it may go on after a time that doubles with each command there, to a second. */
bool inflight_behind_stuck(struct inflight *f, CUcontext context, CUstream stream, uint64_t now);
/* From now on launches are counted. */
void inflight_counts(struct inflight *f, uint64_t now);
/* From now on nothing of this process runs (halted), or something can run again. */
void inflight_halt(struct inflight *f, uint64_t now, bool halted);

/* ---- the driver: inflight_events.c ---- */

/* Asks the driver about events; releases `lock` while it does. One thread at a time: begin is false if another one asks,
 * or nothing is in flight. next: the next commands that are done; *track is 0 at first. False: no more. */
bool inflight_poll_begin(struct inflight *f);
bool inflight_poll_next(struct inflight *f, struct gh_lock *lock, unsigned *track, struct finished *out);
void inflight_poll_end(struct inflight *f);
/* From the pacer: puts markers behind commands that have none, in streams that were not used for a while. Releases
 * `lock` meanwhile. */
void inflight_tail(struct inflight *f, struct gh_lock *lock);
/* Without the lock, just before and just after a launch: the events. begin: whether the launch can be measured; end:
 * whether the marker is behind it. */
bool inflight_mark_begin(struct inflight *f, unsigned marker, CUcontext context, CUstream stream, bool timed);
bool inflight_mark_end(struct inflight *f, unsigned marker, CUstream stream);
/* Before the program destroys the stream: puts a marker behind what is in it. Releases `lock` meanwhile. Returns the
 * track for inflight_flush, and the stream is forgotten; 0: no more. */
unsigned inflight_leave_stream(struct inflight *f, struct gh_lock *lock, CUstream stream);
/* True if a thread of ours may be in a driver call with this stream; NULL: with any stream or event. */
bool inflight_in_driver(const struct inflight *f, CUstream stream);
/* Without the lock: whether launches into the stream become a graph, or are refused; whether all of it is done. */
bool stream_capturing(CUstream stream);
bool stream_idle(CUstream stream);

#endif
