/* The program's waits, and the objects that it destroys. */
#define _GNU_SOURCE
#include "gate/gate_forget.h"

#include "gate/gate_state.h"

#define ALONE_TRIES 1000

static struct gates *existing(void) {
    struct gh_state *st = gh_here();
    return st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
}

/* Commands in the track that have no marker behind them are done. */
static void flush(struct gh_gate *g, unsigned track, uint64_t now) {
    struct finished done;
    if (inflight_flush(&g->inflight, track, now, &done))
        gate_finished(g, &done);
}

/* ---- synchronisation ---- */

uint64_t gate_before_sync(void) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++)
        if (!inflight_empty(&all->gate[i]->inflight))
            return gate_now(all->gate[i]) + 1;
    return 0;
}

static void synchronised(struct gh_gate *g, CUcontext context, CUstream stream, bool whole, uint64_t before) {
    unsigned track;
    gate_poll(g);
    uint64_t now = gate_now(g);
    while ((track = inflight_synchronised(&g->inflight, context, stream, whole, before)))
        flush(g, track, now);
    if (g->changed)
        gate_publish(g, now);
}

void gate_synchronised(uint64_t before, CUstream stream, bool whole) {
    CUcontext context = NULL;
    struct gone_to to = {0};
    struct gh_gate *g = before ? gate_of(stream, &context, &to) : NULL;
    if (g && gh_lock(&g->lock)) {
        synchronised(g, context, stream ? stream : (CUstream)CU_STREAM_LEGACY, whole, before);
        gh_unlock(&g->lock);
    }
    stream_context_left(&to);
}

/* ---- destruction ---- */

/* Takes the lock when no thread of ours is in a driver call with this stream; NULL: with any stream or event, nor another
 * thread between the two calls below for this context. False: a call does not return. */
static bool lock_alone(struct gh_gate *g, CUcontext context, CUstream stream) {
    for (int i = 0; i < ALONE_TRIES && gh_lock(&g->lock); i++) {
        if (!inflight_in_driver(&g->inflight, stream) && !inflight_is_leaving(&g->inflight, context))
            return true;
        gh_unlock(&g->lock);
        slot_sleep(NULL, 0, GH_MS);
    }
    return false;
}

void gate_stream_leaves(CUstream stream) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        unsigned track;
        if (!gh_lock(&g->lock))
            continue;
        while ((track = inflight_leave_stream(&g->inflight, &g->lock, stream)))
            flush(g, track, gate_now(g));
        gh_unlock(&g->lock);
        if (lock_alone(g, NULL, stream))
            gh_unlock(&g->lock);
    }
}

void gate_context_leaves(CUcontext context) {
    struct gates *all = context ? existing() : NULL;
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        if (!lock_alone(g, context, NULL))
            continue;
        prequeue_leave(&g->prequeue, context);
        inflight_leave_context(&g->inflight, context, true);
        gh_unlock(&g->lock);
    }
}

static void forget_context(struct gh_gate *g, CUcontext context) {
    struct finished done;
    uint64_t now = gate_now(g);
    while (inflight_of_context(&g->inflight, context, now, &done))
        gate_finished(g, &done);
    inflight_forget_context(&g->inflight, context);
    prequeue_forget(&g->prequeue, context);
    gate_publish(g, now);
}

void gate_context_left(CUcontext context, bool gone) {
    struct gates *all = context ? existing() : NULL;
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        if (!gh_lock(&g->lock))
            continue;
        inflight_leave_context(&g->inflight, context, false);
        if (gone)
            forget_context(g, context);
        else /* else a program that tries again and again would keep us from seeing what is done */
            gate_poll(g);
        gh_unlock(&g->lock);
    }
}

void gate_forget(uint64_t key) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++)
        if (gh_lock(&all->gate[i]->lock)) {
            cost_forget(&all->gate[i]->costs, key);
            gh_unlock(&all->gate[i]->lock);
        }
}
