/* The pacer: a thread that looks for finished commands while others wait for them, or a cap counts them. The first
 * launch that is counted starts it; it ends after some time without work. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate/gate_state.h"

#define STACK (256u << 10)
#define GO_AFTER (100 * GH_MS)   /* the pacer ends after this time without work */
#define STOPPED_MOST (2 * GH_MS) /* longest time between two looks whether stopped work may go on */

/* ---- what it does ---- */

/* Tries and tests file locks, which others can make costly. Releases the gate's lock meanwhile. */
static void ask_locks(struct gh_gate *g) {
    if (slot_may_lock(&g->own_slot)) {
        struct slot_own copy = g->own_slot;
        gh_unlock(&g->lock);
        slot_lock(&copy);
        if (gh_lock(&g->lock))
            slot_locked(&g->own_slot, &copy);
    }
    peers_ask(&g->peers, &g->lock);
}

static void flush_overdue(struct gh_gate *g) {
    struct finished done;
    unsigned track;
    uint64_t now = gate_now(g);
    while ((track = inflight_overdue(&g->inflight, now)))
        if (inflight_flush(&g->inflight, track, now, &done))
            gate_finished(g, &done);
}

/* How long to sleep, in ns. With work in flight: by the window. Idle: until the gap is no longer a small one; then the
 * tenure is ended. */
static uint64_t step(struct gh_gate *g, uint64_t now) {
    const struct gh_rules *r = peers_rules(&g->peers);
    const struct gh_slot *mine = peers_mine(&g->peers);
    if (!inflight_empty(&g->inflight)) {
        g->pacer.needed_at = now;
        g->pacer.yielded = false;
        return gh_pacer_step(r, peers_window(&g->peers));
    }
    if (mine->launched == mine->done && !mine->held && !g->pacer.yielded) {
        uint64_t idle = age64(now, mine->idle_since);
        if (idle <= r->idle_release)
            return r->idle_release - idle + GH_US;
        if (usage_in_tenure(&g->usage))
            gate_tenure_end(g, now, true);
        gate_yield(g, now);
        g->pacer.yielded = true;
    }
    return GO_AFTER;
}

/* Opens or closes the word of a prequeued command. Returns whether nothing of this process can run; then *d says until
 * when. */
static bool close_or_open(struct gh_gate *g, uint64_t now, struct gh_decision *d) {
    const struct inflight *f = &g->inflight;
    bool frozen = peers_tiers(&g->peers) && !inflight_empty(f) && gate_is_frozen(g, now, d);
    prequeue_close(&g->prequeue, frozen);
    bool halted = prequeue_blocked(&g->prequeue) && inflight_launched(f) - 1 == inflight_done(f);
    if (halted != inflight_halted(f)) {
        gate_look(g, now, true); /* account for the time so far by the old state */
        inflight_halt(&g->inflight, now, halted);
    }
    return halted;
}

/* One round. Returns how long to sleep, in ns, and on which word. 0: the pacer ends. */
static uint64_t round_of(struct gh_gate *g, const uint32_t **word, uint32_t *seen) {
    struct gh_decision d;
    ask_locks(g);
    gate_poll(g);
    flush_overdue(g);
    inflight_tail(&g->inflight, &g->lock);
    uint64_t now = gate_now(g);
    gate_publish(g, now);
    gate_look(g, now, prequeue_pending(&g->prequeue)); /* only a store in time keeps a prequeued command off the GPU */
    uint64_t ns = step(g, now);
    bool halted = close_or_open(g, now, &d), idle = !halted && ns == GO_AFTER;
    if (halted)
        ns = min64(age64(d.until, now) + GH_US, STOPPED_MOST);
    if (g->pacer.stop || (idle && age64(now, g->pacer.needed_at) > GO_AFTER))
        return 0;
    /* The slot on whose word we sleep, so that the prequeued command's word changes in time. */
    unsigned watched = halted ? d.slot : prequeue_armed(&g->prequeue) ? peers_higher(&g->peers) : GH_SLOTS;
    if (g->pacer.early > GATE_EARLY_MOST) {
        watched = GH_SLOTS;
        ns = max64(ns, peers_rules(&g->peers)->pacer_min);
    }
    *word = watched < GH_SLOTS ? peers_slot_word(&g->peers, watched, seen) : NULL;
    if (!*word) {
        *word = &g->pacer.word;
        *seen = g->pacer.word;
    }
    g->pacer.state = idle ? 2 : 1;
    return ns;
}

/* Sleeps on another container's word that end at once some times are from then on every other one only, until one lasts. */
static void rest(struct gh_gate *g, const uint32_t *word, uint32_t seen, uint64_t ns) {
    uint64_t now = gate_now(g);
    slot_sleep(word, seen, ns * peers_scale(&g->peers));
    if (word == &g->pacer.word)
        g->pacer.early = g->pacer.early > GATE_EARLY_MOST ? GATE_EARLY_MOST : g->pacer.early;
    else
        g->pacer.early = gate_is_early(gate_now(g) - now, ns) ? g->pacer.early + 1 : 0;
}

static void *pace(void *gate) {
    struct gh_gate *g = gate;
    const uint32_t *word;
    uint32_t seen;
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    prctl(PR_SET_NAME, "gpu-hook", 0, 0, 0);
    while (gh_lock(&g->lock)) {
        uint64_t ns = round_of(g, &word, &seen);
        if (!ns)
            atomic_store(&g->pacer.state, 0);
        gh_unlock(&g->lock);
        if (!ns)
            break;
        rest(g, word, seen, ns);
    }
    return NULL;
}

/* ---- its life ---- */

static void wake(struct gh_gate *g) {
    __atomic_add_fetch(&g->pacer.word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &g->pacer.word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* The program ends: the pacer must leave the driver before the driver is shut down, and nobody need wait for us. */
static void stop(struct gh_gate *g) {
    if (!gh_lock(&g->lock))
        return;
    g->pacer.stop = 1;
    wake(g);
    gate_take_credit(g, gate_now(g), (int64_t)min64(slot_exits(&g->own_slot), UNPAID_MOST));
    if (usage_in_tenure(&g->usage))
        gate_yield(g, gate_now(g));
    gh_unlock(&g->lock);
    for (int k = 0; k < 50 && atomic_load(&g->pacer.state); k++)
        slot_sleep(NULL, 0, GH_MS);
    if (gh_lock(&g->lock)) {
        prequeue_leave(&g->prequeue, NULL);
        gh_unlock(&g->lock);
    }
}

static void at_exit(void) {
    struct gh_state *st = gh_here();
    struct gates *all = st ? atomic_load(&st->gates) : NULL;
    for (uint32_t i = 0; all && i < all->count; i++)
        stop(all->gate[i]);
}

/* stack: its size in bytes; 0: the usual one. */
static bool make_thread(struct gh_gate *g, size_t stack) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (stack)
        pthread_attr_setstacksize(&attributes, stack);
    bool made = !pthread_create(&thread, &attributes, pace, g);
    pthread_attr_destroy(&attributes);
    return made;
}

static void start(struct gh_gate *g) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    g->pacer.state = 1;
    /* A small stack is refused where the program's static thread-local data does not fit into it. */
    if (!make_thread(g, STACK) && !make_thread(g, 0))
        g->pacer.state = 0; /* without it, the next launch or synchronisation finds what is done */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pacer_used(struct gh_gate *g, uint64_t now) { g->pacer.needed_at = now; }

bool pacer_runs(const struct gh_gate *g) { return g->pacer.state; }

void pacer_need(struct gh_gate *g) {
    static _Atomic int registered;
    if (g->pacer.state == 2) { /* it is in its long sleep */
        g->pacer.state = 1;
        wake(g);
    }
    if (g->pacer.state || g->pacer.stop)
        return;
    if (!atomic_exchange(&registered, 1))
        atexit(at_exit);
    start(g);
}
