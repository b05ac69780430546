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

#include "gate/gate_inside.h"

#define STACK (256u << 10)
#define GO_AFTER (100 * GH_MS)   /* the pacer ends after this time without work */
#define STOPPED_MOST (2 * GH_MS) /* longest time between two looks whether stopped work may go on */

/* How long to sleep, in ns. With work in flight: by the window. Idle: until the gap is no longer a small one; then the
 * tenure is ended. */
static uint64_t step(struct gh_gate *g, uint64_t now) {
    const struct gh_rules *r = &g->view.rules;
    const struct gh_slot *s = &g->view.slot[g->me];
    if (g->launched != g->done) {
        g->needed_at = now;
        g->yielded = false;
        return gh_pacer_step(r, gh_window(&g->view, g->me));
    }
    if (s->launched == s->done && !s->held && !g->yielded) {
        uint64_t idle = now - min64(s->idle_since, now);
        if (idle <= r->idle_release)
            return r->idle_release - idle + GH_US;
        if (g->tenure)
            gate_tenure_end(g, now, true);
        gate_yield(g, now);
        g->yielded = true;
    }
    return GO_AFTER;
}

static void *pace(void *gate) {
    struct gh_gate *g = gate;
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    prctl(PR_SET_NAME, "gpu-hook", 0, 0, 0);
    while (gh_lock(&g->lock)) {
        gate_ask(g);
        markers_poll(g);
        markers_tail(g);
        uint64_t now = gate_now(g);
        gate_publish(g, now);
        gate_look(g, now, prequeue_pending(g)); /* only a store in time keeps a prequeued command off the GPU */
        uint64_t ns = step(g, now);
        struct gh_decision d = {.go = 1};
        if (g->tiers && g->launched != g->done)
            d = gh_decide(&g->view, g->me, &g->own, now, 0);
        bool frozen = !d.go && d.mode == GH_FROZEN && d.on == GH_ON_SLOT;
        prequeue_close(g, frozen);
        gate_halt(g, now, prequeue_blocked(g) && g->launched - 1 == g->done);
        if (g->halted)
            ns = min64(d.until - min64(now, d.until) + GH_US, STOPPED_MOST);
        if (g->stop || (!g->halted && ns == GO_AFTER && now - min64(g->needed_at, now) > GO_AFTER)) {
            atomic_store(&g->pacer, 0);
            gh_unlock(&g->lock);
            return NULL;
        }
        const uint32_t *word = &g->pacer_word;
        uint32_t seen = g->pacer_word;
        unsigned watched = g->halted ? d.slot : prequeue_watched(g);
        if (watched < GH_SLOTS && g->peer[watched].mapped) {
            word = &g->peer[watched].mapped->head.word;
            seen = g->peer[watched].word;
        }
        g->pacer = !g->halted && ns == GO_AFTER ? 2 : 1;
        gh_unlock(&g->lock);
        slot_sleep(word, seen, ns * g->scale);
    }
    return NULL;
}

/* The program ends: the pacer must leave the driver before the driver is shut down, and nobody need wait for us. */
static void at_exit(void) {
    struct gh_state *st = gh_here();
    struct gates *all = st ? atomic_load(&st->gates) : NULL;
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        if (!gh_lock(&g->lock))
            continue;
        g->stop = 1;
        g->pacer_word++;
        syscall(SYS_futex, &g->pacer_word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        gate_take_credit(g, gate_now(g), (int64_t)min64(slot_unpaid(g->own_slot.process), 10 * GH_S));
        __atomic_store_n(&g->own_slot.process->launched, g->own_slot.process->done, __ATOMIC_RELEASE);
        if (g->tenure)
            gate_yield(g, gate_now(g));
        gh_unlock(&g->lock);
        for (int k = 0; k < 50 && atomic_load(&g->pacer); k++)
            slot_sleep(NULL, 0, GH_MS);
        if (gh_lock(&g->lock)) {
            prequeue_leave(g, NULL);
            gh_unlock(&g->lock);
        }
    }
}

void pacer_need(struct gh_gate *g) {
    static _Atomic int registered;
    if (g->pacer == 2) { /* the pacer is in its long sleep */
        g->pacer = 1;
        __atomic_add_fetch(&g->pacer_word, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &g->pacer_word, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    if (g->pacer || g->stop)
        return;
    if (!atomic_exchange(&registered, 1))
        atexit(at_exit);
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    g->pacer = 1;
    if (pthread_create(&thread, &attributes, pace, g) && pthread_create(&thread, NULL, pace, g))
        g->pacer = 0; /* without it, the next launch or synchronisation finds what is done */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}
