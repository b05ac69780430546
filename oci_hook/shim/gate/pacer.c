/* The thread that looks for finished commands while somebody waits for them, or a cap counts them. It is made at the
 * first launch that is counted, and goes when there was nothing to count for a while. */
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
#define GO_AFTER (100 * GH_MS)   /* without work */
#define STOPPED_MOST (2 * GH_MS) /* between two looks whether stopped work may go on */

/* Busy: looks at the window's rhythm. Idle: waits until it is clear that this is no small gap, and yields. */
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
        marks_poll(g);
        marks_tail(g);
        uint64_t now = gate_now(g);
        gate_publish(g, now);
        gate_look(g, now, front_behind(g)); /* a store in time is all that keeps it off the GPU */
        uint64_t ns = step(g, now);
        struct gh_decision d = {.go = 1};
        if (g->tiers && g->launched != g->done)
            d = gh_decide(&g->view, g->me, &g->own, now, 0);
        bool frozen = !d.go && d.mode == GH_FROZEN && d.on == GH_ON_SLOT;
        front_close(g, frozen);
        gate_halt(g, now, front_kept(g) && g->launched - 1 == g->done);
        if (g->halted)
            ns = min64(d.until - min64(now, d.until) + GH_US, STOPPED_MOST);
        if (g->stop || (!g->halted && ns == GO_AFTER && now - min64(g->needed_at, now) > GO_AFTER)) {
            atomic_store(&g->pacer, 0);
            gh_unlock(&g->lock);
            return NULL;
        }
        const uint32_t *word = &g->pacer_word;
        uint32_t seen = g->pacer_word;
        unsigned watched = g->halted ? d.slot : front_watched(g);
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

/* The program ends: no thread of ours is to be in the driver while that is taken down, and nobody need wait for us. */
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
        __atomic_store_n(&g->own_slot.sub->launched, g->own_slot.sub->done, __ATOMIC_RELEASE);
        if (g->tenure)
            gate_yield(g, gate_now(g));
        gh_unlock(&g->lock);
        for (int k = 0; k < 50 && atomic_load(&g->pacer); k++)
            slot_sleep(NULL, 0, GH_MS);
        if (gh_lock(&g->lock)) {
            front_leave(g, NULL);
            gh_unlock(&g->lock);
        }
    }
}

void pacer_need(struct gh_gate *g) {
    static _Atomic int registered;
    if (g->pacer == 2) { /* in its long sleep */
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
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are for the program's threads */
    g->pacer = 1;
    if (pthread_create(&thread, &attributes, pace, g) && pthread_create(&thread, NULL, pace, g))
        g->pacer = 0; /* done is seen at the next launch or synchronisation, then */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}
