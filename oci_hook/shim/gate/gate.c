#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/cuda_gpu.h"
#include "driver/real.h"
#include "gate/gate_inside.h"

#define STEP_MAX (2500 * GH_US) /* no sleep at the gate is longer, whatever the slots announce */
#define UNMARKED (100 * GH_US)  /* cost of an unknown command that cannot be measured */
#define KAPPA 4u
#define RESUME_LOSS (GH_MS / 2 + 60 * GH_US)
#define ALONE_TRIES 1000

/* ---- the decision ---- */

static bool anybody_awake(const struct gh_gate *g) {
    for (uint64_t left = g->view.present & ~(1ull << g->me); left; left &= left - 1) {
        const struct gh_slot *s = &g->view.slot[__builtin_ctzll(left)];
        uint64_t last = max64(s->heartbeat, s->active_at);
        if (last && !s->ended && (last >= g->looked || g->looked - last < g->view.rules.active_within))
            return true;
    }
    return false;
}

/* Nobody else wants the GPU and no cap counts our work: from now on launches bypass the gate. */
static void set_open(struct gh_gate *g, uint64_t now) {
    uint64_t tick = gate_ticks();
    struct gate_fast *f = g->fast;
    bool ready = true;
    g->wanting = 0;
    WORD_STORE_RELEASE(&gate_head(g)->idle_since, now);
    WORD_STORE_RELEASE(&gate_head(g)->active_at, now);
    WORD_STORE_RELEASE(&g->own_slot.process->heartbeat, now);
    if (!gate_has_peers(g)) {
        atomic_store_explicit(&f->fresh, 0, memory_order_relaxed);
    } else if (!g->tick0) {
        g->tick0 = tick;
        g->clock0 = now;
        ready = false;
    } else {
        uint64_t ns = (now - g->clock0) * g->scale;
        ready = ns >= GH_MS && tick > g->tick0;
        if (ready) {
            double rate = (double)(tick - g->tick0) / (double)ns;
            atomic_store_explicit(&f->fresh, (uint64_t)(rate * (double)(LOOK_EVERY * g->scale)) | 1,
                                  memory_order_relaxed);
        }
    }
    atomic_store_explicit(&f->looked, tick, memory_order_relaxed);
    atomic_store_explicit(&f->open, ready ? (g->page ? g->seq : 0) : UINT64_MAX, memory_order_release);
}

/* From now on launches are counted. */
static void set_closed(struct gh_gate *g, uint64_t now) {
    if (atomic_load_explicit(&g->fast->open, memory_order_relaxed) != UINT64_MAX)
        g->uncounted_at = now;
    atomic_store_explicit(&g->fast->open, UINT64_MAX, memory_order_relaxed);
}

static void woken(struct gh_gate *g, uint64_t now) {
    struct gh_slot_head *h = gate_head(g);
    const struct gh_slot *s = &g->view.slot[g->me];
    gate_look(g, now, true);
    if (s->active_at)
        gh_gap_seen(&g->gaps, now - s->idle_since);
    if (!g->view.share[g->me].linger)
        WORD_STORE_RELEASE(&h->linger, gh_linger(&g->gaps, g->view.rules.window_guarded + RESUME_LOSS, KAPPA));
    WORD_STORE_RELEASE(&h->woke_at, now);
    gate_raise_v(g, 0);
}

static struct gh_decision ask(struct gh_gate *g, uint64_t now, uint64_t cost) {
    struct gh_slot_head *h = gate_head(g);
    struct gh_own own = g->own;
    /* The window is for the whole container: the other processes with work are taken to use as much of it. */
    own.inflight = gh_residue(&g->own, now) * (g->siblings + 1);
    own.running_cost = 0;
    own.idle = g->launched - g->done == g->stuck_commands;
    if (g->view.share[g->me].cap)
        own.bucket = cost_bucket(WORD_LOAD_RELAXED(&h->credit), g->view.share[g->me].cap, g->view.rules.burst, now);
    uint64_t ignorings = g->peers.ignorings;
    gh_peers_count(&g->peers, &g->view, g->me, g->asked ? &g->last : NULL, now, g->long_one);
    if (g->peers.ignorings != ignorings)
        __atomic_add_fetch(&h->ignorings, 1, __ATOMIC_RELAXED);
    own.peers = &g->peers;
    struct gh_decision d = gh_decide(&g->view, g->me, &own, now, cost);
    if (d.mode == GH_DRAIN)
        gh_peers_drain(&g->peers, &g->view, g->me, now);
    g->last = d;
    g->asked = true;
    g->own.ahead = d.ahead;
    g->mode = d.mode;
    uint8_t by = d.go || d.on != GH_ON_SLOT ? 0 : (uint8_t)(d.slot + 1);
    if (WORD_LOAD_RELAXED(&h->mode) != d.mode || WORD_LOAD_RELAXED(&h->mode_by) != by) {
        WORD_STORE_RELEASE(&h->mode, d.mode);
        WORD_STORE_RELEASE(&h->mode_by, by);
        WORD_STORE_RELEASE(&h->mode_since, now);
    }
    if (d.go || d.held)
        WORD_STORE_RELEASE(&h->active_at, now);
    if (d.claim) {
        WORD_STORE_RELEASE(&h->end, 0); /* invalid until all of it is written */
        WORD_STORE_RELEASE(&h->start, d.start);
        WORD_STORE_RELEASE(&h->probe_until, d.probe_until);
        WORD_STORE_RELEASE(&h->epoch, d.epoch);
        WORD_STORE_RELEASE(&h->end, d.end);
        if (d.probe_until)
            g->own.probed_at = now;
        gate_tenure_begin(g, now);
        slot_wake(&g->own_slot);
    } else if (!d.go && g->tenure && (d.on == GH_ON_SLOT || d.mode == GH_CAPPED)) {
        gate_tenure_end(g, now, g->launched == g->done);
        gate_yield(g, now);
    }
    return d;
}

/* Sleeps as the decision says. False: it was woken at once. The lock is held on entry and on return. */
static bool rest(struct gh_gate *g, const struct gh_decision *d, uint64_t now, bool plainly) {
    uint64_t step = d->until > now ? d->until - now : 0;
    bool empty = g->view.slot[g->me].launched == g->view.slot[g->me].done;
    const uint32_t *word = NULL;
    uint32_t seen = 0;
    step = min64(step, STEP_MAX);
    if (d->mode == GH_DRAIN)
        step = min64(step, g->view.rules.pacer_min);
    if (d->on == GH_ON_SLOT) {
        word = g->peer[d->slot].mapped ? &g->peer[d->slot].mapped->head.word : NULL;
        seen = g->peer[d->slot].word;
    } else if (d->on == GH_ON_OWN_DONE) {
        word = &g->done_word;
        seen = WORD_LOAD_RELAXED(&g->done_word);
    } else if (d->on == GH_ON_POLICY && g->page) {
        word = &g->page->seq;
        seen = g->seq;
    }
    bool full = d->on == GH_ON_OWN_DONE && d->held;
    if (gate_asks(g)) { /* the pacer asks, since that may take long */
        g->needed_at = now;
        pacer_need(g);
    }
    gate_count_clear(g, now);
    g->waiting++;
    g->full += full;
    gh_unlock(&g->lock);
    slot_sleep(plainly ? NULL : word, seen, max64(plainly ? GH_US * 50 : step, GH_US) * g->scale);
    bool locked = gh_lock(&g->lock);
    (void)locked;
    uint64_t then = gate_now(g);
    gate_count_clear(g, then);
    g->waiting--;
    g->full -= full;
    if (empty && d->blame < GH_SLOTS)
        slot_held_for(&g->own_slot, d->blame, now, then);
    return then - now >= min64(step, 20 * GH_US);
}

static struct gh_gate *gate_of(CUcontext *context) {
    struct gh_state *st = gh_here();
    struct gates *all = gates_here();
    if (!st || !all || REAL(cuCtxGetCurrent)(context) || !*context)
        return NULL;
    struct place at = current_place(st);
    return at.gpu < 0 || at.gpu >= GH_POLICY_GPUS ? NULL : all->of_gpu[at.gpu];
}

static bool has_lower(const struct gh_gate *g) {
    for (uint64_t left = g->view.present; left; left &= left - 1)
        if (g->view.share[__builtin_ctzll(left)].class_ < g->view.share[g->me].class_)
            return true;
    return false;
}

/* We have work after an idle time: wakes lower classes, which must close the word before a prequeued command. */
static void tell_lower(struct gh_gate *g) {
    if (g->tell)
        slot_wake(&g->own_slot);
    g->tell = false;
}

/* Waits until the launch is admitted. False: the gate is open, and the launch is not accounted for. */
static bool admit(struct gh_gate *g, uint64_t key, CUcontext context, CUstream stream, bool *prequeue) {
    bool held = false;
    unsigned early = 0;
    g->tell = false;
    uint64_t came = 0;
    g->entering++;
    for (bool first = true;; first = false) {
        markers_poll(g);
        uint64_t now = gate_now(g);
        came = first ? now : came;
        gate_publish(g, now);
        gate_look(g, now, !first);
        const struct gh_slot *s = &g->view.slot[g->me];
        if (first && s->launched == s->done && now - min64(s->idle_since, now) > g->view.rules.wake_idle) {
            woken(g, now);
            gate_publish(g, now);
            g->tell = has_lower(g);
        }
        struct gh_decision d = ask(g, now, cost_estimate(cost_of(&g->costs, key)));
        *prequeue = prequeue_allows(g, &d, context, stream, cost_of(&g->costs, key));
        if (*prequeue) {
            d.go = 1;
            d.held = 0;
        }
        if (held != (d.held != 0)) {
            held = d.held;
            g->holding += held ? 1 : -1u;
            gate_publish(g, now);
            tell_lower(g);
        }
        if (d.go) {
            g->entering--;
            gate_show_waiting(g);
            if (!first)
                slot_waited(&g->own_slot, (now - came) * g->scale);
            if (d.mode == GH_OPEN && !g->view.share[g->me].cap && g->launched == g->done && !anybody_awake(g)) {
                set_open(g, now);
                g->uncounted_at = now;
                return false;
            }
            set_closed(g, now);
            g->needed_at = now;
            return true;
        }
        set_closed(g, now);
        early = rest(g, &d, now, early > 3) ? 0 : early + 1;
    }
}

/* The window is refilled when work is seen to be done, so a small window needs more markers. */
static uint64_t batch_time(const struct gh_gate *g) { return min64(BATCH_TIME, gh_window(&g->view, g->me) / 2); }

static bool is_collective(struct gh_gate *g, uint64_t key, CUfunction f) {
    struct name *known = &g->name[key / 2 % NAMES];
    uint64_t was = atomic_load_explicit(&known->key, memory_order_relaxed);
    const char *name = NULL;
    if (!f || (was | 1) == (key | 1))
        return f && was & 1;
    if ((REAL(cuFuncGetName)(&name, f) && REAL(cuKernelGetName)(&name, f)) || !name)
        name = ""; /* drivers before 12.3 have neither */
    bool is = cost_is_collective(name);
    atomic_store_explicit(&known->key, (key & ~1ull) | is, memory_order_relaxed);
    return is;
}

void gate_enter(struct gate_ticket *t, CUstream stream, uint64_t key, CUfunction f) {
    CUcontext context = NULL;
    *t = (struct gate_ticket){.key = key};
    struct gh_gate *g = gate_of(&context);
    if (!stream)
        stream = (CUstream)CU_STREAM_LEGACY;
    if (!g || markers_capturing(stream))
        return;
    bool collective = is_collective(g, key, f);
    if (!gh_lock(&g->lock))
        return;
    cost_of(&g->costs, key)->collective = collective;
    bool prequeue;
    if (!admit(g, key, context, stream, &prequeue)) {
        gh_unlock(&g->lock);
        return;
    }
    uint64_t now = gate_now(g);
    struct cost *cost = cost_of(&g->costs, key);
    t->estimate = cost_estimate(cost);
    t->stream = stream;
    t->track = markers_track(g, context, stream);
    struct track *k = t->track ? &g->track[t->track - 1] : NULL;
    if (k) {
        t->queued = k->batch || k->first;
        t->timed = cost_due(cost, prequeue || k->batch + 1 >= BATCH_COMMANDS ||
                                      k->batch_estimate + t->estimate >= batch_time(g));
        if (t->timed || k->thread) /* no other thread could put a marker into this thread's stream later */
            t->marker = markers_take(g, context);
    }
    if (!t->marker && t->estimate >= GH_COST_UNKNOWN)
        t->estimate = UNMARKED;
    if (g->launched == g->done) {
        g->busy_since = g->done_at = now;
        g->busy_charged = g->busy_lost = 0;
        g->busy_track = t->track;
    } else if (g->busy_track != t->track) {
        g->busy_track = TRACKS + 1;
    }
    g->launched++;
    g->inflight += t->estimate;
    g->own.inflight = g->inflight;
    gate_take_credit(g, now, (int64_t)gate_sure(t->estimate));
    if (k) {
        k->first_at = k->batch ? k->first_at : now;
        k->batch++;
        k->batch_estimate += t->estimate;
        k->last_at = now;
        k->entered++;
        t->gate = g;
    } else { /* too many streams to track: charge the command, as if it were done */
        gate_retire(g, now + t->estimate, 1, t->estimate, t->estimate, 0);
    }
    gate_publish(g, now);
    tell_lower(g);
    gh_unlock(&g->lock);
    if (prequeue)
        prequeue_put(g, context, stream, t->estimate);
    if (t->timed && t->queued) /* earlier commands may be done without our knowledge */
        t->queued = !markers_idle(stream);
    if (t->marker)
        g->marker[t->marker - 1].begun = gate_now(g);
    if (t->marker && (!markers_ready(&g->marker[t->marker - 1], context) ||
                      (t->timed && REAL(cuEventRecord)(g->marker[t->marker - 1].begin, stream))))
        t->timed = false;
}

CUresult gate_leave(struct gate_ticket *t, CUresult r) {
    struct gh_gate *g = t->gate;
    if (!g)
        return r;
    struct marker *m = t->marker ? &g->marker[t->marker - 1] : NULL;
    uint64_t launched_at = gate_now(g);
    bool marked = m && r == CUDA_SUCCESS && m->context && !REAL(cuEventRecord)(m->end, t->stream);
    if (!gh_lock(&g->lock))
        return r;
    struct track *k = &g->track[t->track - 1];
    if (k->entered) /* 0 if its context was destroyed meanwhile */
        k->entered--;
    if (r != CUDA_SUCCESS && k->batch) {
        k->batch--;
        k->batch_estimate -= min64(t->estimate, k->batch_estimate);
        gate_retire(g, gate_now(g), 1, t->estimate, 0, 0);
    }
    if (marked && k->batch) {
        m->key = t->key;
        m->sampled = t->estimate;
        m->timed = t->timed;
        m->queued = t->queued;
        m->begun = launched_at - min64(m->begun, launched_at);
        markers_link(g, t->track, t->marker);
    } else if (m) {
        markers_give(g, t->marker);
    }
    if (!marked && t->estimate >= GH_COST_UNKNOWN && k->batch) { /* the command cannot be measured: assume less */
        k->batch_estimate -= min64(t->estimate - UNMARKED, k->batch_estimate);
        g->inflight -= min64(t->estimate - UNMARKED, g->inflight);
        g->own.inflight = g->inflight;
        gate_take_credit(g, gate_now(g), (int64_t)UNMARKED - (int64_t)gate_sure(t->estimate));
    }
    pacer_need(g);
    gh_unlock(&g->lock);
    return r;
}

/* ---- synchronisation, and destruction of streams and contexts ---- */

uint64_t gate_before_sync(void) {
    struct gh_state *st = gh_here();
    struct gates *all = st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
    for (uint32_t i = 0; all && i < all->count; i++)
        if (atomic_load(&all->gate[i]->launched) != atomic_load(&all->gate[i]->done))
            return gate_now(all->gate[i]) + 1;
    return 0;
}

void gate_synchronised(uint64_t before, CUstream stream, bool whole) {
    CUcontext context = NULL;
    struct gh_gate *g = before ? gate_of(&context) : NULL;
    if (!stream)
        stream = (CUstream)CU_STREAM_LEGACY;
    if (!g || !gh_lock(&g->lock))
        return;
    markers_poll(g);
    uint64_t now = gate_now(g);
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &g->track[i];
        if (k->used && k->context == context && (whole || (k->stream == stream && !k->thread)) && !k->entered &&
            !k->first && k->last_at < before)
            markers_flush(g, i + 1, now);
    }
    gate_publish(g, now);
    gh_unlock(&g->lock);
}

static struct gates *existing(void) {
    struct gh_state *st = gh_here();
    return st ? atomic_load_explicit(&st->gates, memory_order_acquire) : NULL;
}

/* Takes the lock when no thread of ours is in a driver call with this stream; NULL: with any stream or event. False: a
 * call does not return. */
static bool lock_alone(struct gh_gate *g, CUstream stream) {
    for (int i = 0; i < ALONE_TRIES && gh_lock(&g->lock); i++) {
        void *with = atomic_load(&g->tailing);
        if (stream ? with != (void *)((uintptr_t)stream + 1) : !with && !g->polling)
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
        if (!gh_lock(&g->lock))
            continue;
        for (unsigned n = 0; n < TRACKS; n++) {
            struct track *k = &g->track[n];
            if (!k->used || k->stream != stream || k->thread)
                continue;
            unsigned marker = k->batch ? markers_take(g, k->context) : 0;
            CUcontext context = k->context;
            gh_unlock(&g->lock);
            struct marker *m = marker ? &g->marker[marker - 1] : NULL;
            bool marked =
                m && !markers_capturing(stream) && markers_ready(m, context) && !REAL(cuEventRecord)(m->end, stream);
            gh_lock(&g->lock);
            if (m)
                m->timed = 0;
            if (marked && k->batch)
                markers_link(g, n + 1, marker);
            else if (marker)
                markers_give(g, marker);
            markers_flush(g, n + 1, gate_now(g));
            k->stream = (CUstream)~(uintptr_t)0; /* a new stream may get the same handle */
        }
        gh_unlock(&g->lock);
        if (lock_alone(g, stream))
            gh_unlock(&g->lock);
    }
}

void gate_context_leaves(CUcontext context) {
    struct gates *all = existing();
    for (uint32_t i = 0; all && i < all->count; i++) {
        struct gh_gate *g = all->gate[i];
        if (!lock_alone(g, NULL))
            continue;
        prequeue_leave(g, context);
        uint64_t now = gate_now(g);
        for (unsigned n = 0; n < TRACKS; n++) {
            struct track *k = &g->track[n];
            if (!k->used || k->context != context)
                continue;
            while (k->first) {
                unsigned marker = k->first;
                struct marker *m = &g->marker[marker - 1];
                k->first = m->next;
                uint64_t most = now - min64(now, m->submitted); /* upper bound for a command of unknown cost */
                gate_retire(g, now, m->count, m->estimate, m->estimate < GH_COST_UNKNOWN ? m->estimate : most, 0);
                markers_give(g, marker);
            }
            k->last = 0;
            markers_flush(g, n + 1, now);
            k->used = 0;
        }
        for (unsigned n = 0; n < MARKERS; n++) /* the marker's events are destroyed with the context */
            if (g->marker[n].context == context)
                g->marker[n].context = NULL;
        gate_publish(g, now);
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
