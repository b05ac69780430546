/* Cost of our work: virtual time v, the credit of a cap, and what is learned for the rules: the duty, which is how
 * much of the GPU we keep busy, and our part of the time when several processes had work. Times are the gate's. The
 * gate's lock is held. Only this file writes these fields of the slot's head, which all processes of the container
 * share: v, charged, credit, duty, saturated, preempt_bound. */
#ifndef GPU_HOOK_USAGE_H
#define GPU_HOOK_USAGE_H

#include <stdbool.h>

#include "gate/belief.h"
#include "gate/decide.h"
#include "pages/slot_page.h"
#include "process/atomics.h"

#define USAGE_LOOKS 128u
#define USAGE_RINGS 4u

/* Result of one look at the other containers' slots. */
struct usage_look {
    uint64_t at;
    uint64_t mine;     /* GPU time that one process has had so far, if others had what they are believed to have had */
    uint64_t most;     /* the same if no other container had any */
    uint64_t clear_at; /* since then the GPU has been ours alone for a while; UINT64_MAX: others have work */
    uint32_t contexts; /* processes with work, with this one */
    struct believed others; /* their part until the next look, as believed */
};

/* A command's part of the time that it took. */
struct usage_part {
    uint64_t own;  /* less what others are believed to have had */
    uint64_t most; /* less only what other processes of the container had */
    bool clean;    /* nobody else had work meanwhile */
};

struct usage {
    struct gh_slot_head *head;
    /* since work is in flight without a break; until the last charge: */
    uint64_t busy_since, busy_until, busy_charged;
    uint64_t busy_lost;   /* part of that time: rest of others' work in our turn, or of ours in theirs, ran */
    unsigned busy_stream; /* the stream of that work */
    bool busy_parallel;   /* it spreads over several streams */
    uint64_t owed;        /* what commands cost beyond the time that they took */
    uint64_t room;        /* time with work in flight, nobody else's, for which nothing was charged */
    uint64_t longest;     /* the longest recent command */
    /* The last looks, and fewer of those before: ring r has one in 100 us x 10^r, so together they go back for ten
     * seconds. */
    struct usage_ring {
        struct usage_look look[USAGE_LOOKS];
        uint64_t count;
    } ring[USAGE_RINGS];
    uint32_t siblings; /* other processes of the container that have work */
    uint32_t ours;     /* processes of the container with work at the last look, with this one */
    bool turns;        /* the tenants take turns */
    /* duty: time that was clear, that is without work of others, and the charge in it, so far and when we became idle */
    uint64_t clear, clear_charged, clear_at_idle, charged_at_idle;
    uint64_t counted_at, counted_charge;
    bool tenure; /* we have the GPU, since clear was: */
    uint64_t tenure_clear, tenure_charged;
    bool
        unsure; /* since then a charge was uncertain: of a cost not learned yet, or of work behind uncounted launches */
};

void usage_begin(struct usage *u, struct gh_slot_head *head, uint64_t now);

/* ---- our part of the time ---- */

/* The other slots were read. others: processes there with work; believed: what they have up to the next look; halted: none of our
 * own work could run until now. */
void usage_looked(struct usage *u, uint64_t now, uint32_t others, struct believed believed, bool halted);
/* From now on the tenants take turns, or fill each other's gaps. */
static inline void usage_set_turns(struct usage *u, bool turns) { u->turns = turns; }
static inline void usage_set_siblings(struct usage *u, uint32_t siblings) { u->siblings = siblings; }
static inline uint32_t usage_siblings(const struct usage *u) { return u->siblings; }
/* Number of processes that share the GPU, with this one, at the last look. */
uint32_t usage_contexts(const struct usage *u);
/* One process's part of the time since the last look, in ppm; for commands that may be long. */
uint32_t usage_pace(const struct usage *u);
/* Nobody else has had work since, or for a while before. */
bool usage_clear_since(const struct usage *u, uint64_t since);
/* Of a command that has just ended after `elapsed`. */
struct usage_part usage_own_part(const struct usage *u, uint64_t now, uint64_t elapsed, bool halted);

/* ---- charges ---- */

/* A command goes into that stream; first: nothing else is in flight. */
void usage_launched(struct usage *u, unsigned stream, bool first, uint64_t now);
/* A measured command took that long. */
void usage_measured(struct usage *u, uint64_t elapsed);
/* GPU time that the container was charged so far. */
static inline uint64_t usage_charged(const struct usage *u) { return WORD_LOAD_RELAXED(&u->head->charged); }
/* Charges commands that are done: no more than the time that has passed, the rest with later ones. Returns the charge. */
uint64_t usage_charge(struct usage *u, const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t cost);
/* The tenant has work again after an idle time. */
void usage_wake(struct usage *u, const struct gh_gpu *gpu, unsigned me);
/* Takes GPU time (negative: returns it) from the credit of a cap; cap 0: there is none. */
void usage_take_credit(struct usage *u, uint32_t cap, uint64_t burst, uint64_t now, int64_t charge);
/* While a collective waited for its peers, the cap's bucket neither filled nor emptied. If the wait were charged, each
 * side would wait at its cap and so make the other side wait, longer each time. */
void usage_wait_credit(struct usage *u, uint64_t now, uint64_t waited);
/* A cap begins: nothing is saved up for it; what is owed stays. */
void usage_cap_begins(struct usage *u, uint64_t now);
struct gh_bucket usage_bucket(const struct usage *u, uint32_t cap, uint64_t burst, uint64_t now);

/* ---- duty: usage_duty.c ---- */

/* Counts the time up to now. running: GPU time that the running commands have had. full: a launch waits for our own
 * window. To be called whenever one of them changes. */
void usage_count(struct usage *u, uint64_t now, uint64_t running, bool full);
/* The container has work again after an idle time. Returns how much GPU time it has at a time: not how long that takes, which
 * is longer for a program that launches slowly, or beside others. Its processes count together. */
uint64_t usage_burst(struct usage *u);
/* From one tenth of a second to the next: in what part of it the container wanted the GPU. Time for which others held it does
 * not count, or many that need little, once held, would seem to need much and be held for ever. Time slices would double a
 * long burst, so a container with such bursts counts as wanting the GPU all the time.
 * A container that had more than its duty gets that as its duty: it cannot learn one while others always have work. */
void usage_asked(struct usage *u, uint64_t now);
static inline bool usage_in_tenure(const struct usage *u) { return u->tenure; }
/* The next three after usage_count. */
void usage_tenure_begin(struct usage *u);
void usage_tenure_end(struct usage *u, bool idle);
/* In a long tenure, learns before its end. */
void usage_tenure_goes_on(struct usage *u);
/* The container has become idle. */
void usage_idle(struct usage *u);
static inline void usage_unsure(struct usage *u) { u->unsure = true; }

#endif
