/* Markers: events behind commands, by which the gate learns what is done and how long it took. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/real.h"
#include "gate/gate_inside.h"

static uint64_t thread_of(CUstream stream) {
    return stream == (CUstream)CU_STREAM_PER_THREAD ? (uint64_t)syscall(SYS_gettid) : 0;
}

unsigned marks_track(struct gh_gate *g, CUcontext context, CUstream stream) {
    uint64_t thread = thread_of(stream);
    unsigned free = 0;
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &g->track[i];
        if (k->used && k->context == context && k->stream == stream && k->thread == thread)
            return i + 1;
        if (!free && (!k->used || (!k->batch && !k->first && !k->entered)))
            free = i + 1;
    }
    if (free)
        g->track[free - 1] = (struct track){.context = context, .stream = stream, .thread = thread, .used = 1};
    return free;
}

unsigned marks_take(struct gh_gate *g, CUcontext context) {
    unsigned bare = 0;
    for (unsigned i = 0; i < MARKS; i++) {
        if (g->mark[i].used)
            continue;
        if (g->mark[i].context == context) {
            g->mark[i].used = 1;
            return i + 1;
        }
        if (!bare && !g->mark[i].context)
            bare = i + 1;
    }
    if (bare)
        g->mark[bare - 1] = (struct mark){.used = 1};
    return bare;
}

void marks_give(struct gh_gate *g, unsigned mark) {
    g->mark[mark - 1].used = 0;
    g->mark[mark - 1].next = 0;
}

bool marks_ready(struct mark *m, CUcontext context) {
    if (m->context)
        return true;
    if (REAL(cuEventCreate)(&m->begin, 0))
        return false;
    if (REAL(cuEventCreate)(&m->end, 0)) {
        REAL(cuEventDestroy_v2)(m->begin);
        return false;
    }
    m->context = context;
    return true;
}

void marks_link(struct gh_gate *g, unsigned track, unsigned mark) {
    struct track *k = &g->track[track - 1];
    struct mark *m = &g->mark[mark - 1];
    m->count = k->batch;
    m->estimate = k->batch_estimate;
    m->submitted = k->first_at;
    m->next = 0;
    k->batch = 0;
    k->batch_estimate = 0;
    if (k->last)
        g->mark[k->last - 1].next = (uint16_t)mark;
    else
        k->first = (uint16_t)mark;
    k->last = (uint16_t)mark;
}

/* The commands after the last marker are known to be done. */
void marks_flush(struct gh_gate *g, unsigned track, uint64_t now) {
    struct track *k = &g->track[track - 1];
    uint32_t count = k->batch;
    uint64_t estimate = k->batch_estimate;
    k->batch = 0;
    k->batch_estimate = 0;
    if (count)
        gate_retire(g, now, count, estimate, estimate, 0);
}

static void retire(struct gh_gate *g, struct mark *m, uint64_t now, bool measured, float ms) {
    uint64_t charge = m->estimate, waited = 0;
    if (measured && m->timed && ms >= 0 && ms < 1e6f) {
        uint64_t elapsed = (uint64_t)((double)ms * 1e6); /* the GPU's time, as the gate's is */
        elapsed -= min64(elapsed, gate_halted(g, now - min64(elapsed, now), now));
        bool clean;
        uint64_t shared = gate_shared(g, now, elapsed, &clean);
        struct cost *cost = cost_of(&g->costs, m->key);
        charge = charge - min64(m->sampled, charge) +
                 cost_seen(cost, elapsed, shared, m->queued, m->begun < elapsed / 8, clean, &waited);
        g->unsure |= !cost_sure(cost);
        g->long_one = max64(elapsed, g->long_one - g->long_one / 256);
    } else if (charge >= GH_COST_UNKNOWN) {
        charge = now - min64(now, m->submitted); /* not measured, of unknown cost: at most this */
    }
    gate_retire(g, now, m->count, m->estimate, charge, waited);
}

/* One thread at a time; the events of a marker on a track are touched by it alone until it takes them off. */
void marks_poll(struct gh_gate *g) {
    if (g->polling || g->launched == g->done)
        return;
    g->polling = 1;
    for (unsigned i = 0; i < TRACKS; i++) {
        while (g->track[i].first) {
            struct mark *m = &g->mark[g->track[i].first - 1];
            CUcontext context = m->context;
            CUevent begin = m->begin, end = m->end;
            bool timed = m->timed;
            gh_unlock(&g->lock);
            CUcontext before = NULL;
            float ms = -1;
            int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* a query would break another thread's capture */
            bool pushed = REAL(cuCtxGetCurrent)(&before) || before != context;
            CUresult r = pushed ? REAL(cuCtxPushCurrent_v2)(context) : CUDA_SUCCESS;
            if (r == CUDA_SUCCESS) {
                REAL(cuThreadExchangeStreamCaptureMode)(&mode);
                r = REAL(cuEventQuery)(end);
                if (r == CUDA_SUCCESS && timed && REAL(cuEventElapsedTime)(&ms, begin, end))
                    ms = -1;
                REAL(cuThreadExchangeStreamCaptureMode)(&mode);
                if (pushed)
                    REAL(cuCtxPopCurrent_v2)(&before);
            }
            gh_lock(&g->lock);
            if (r == CUDA_ERROR_NOT_READY)
                break;
            /* Whatever else the driver says, nothing more is to be learned of it. */
            unsigned mark = g->track[i].first;
            g->track[i].first = m->next;
            if (!m->next)
                g->track[i].last = 0;
            g->track[i].done_at = gate_now(g);
            retire(g, m, g->track[i].done_at, r == CUDA_SUCCESS, ms);
            marks_give(g, mark);
        }
    }
    g->polling = 0;
}

bool marks_capturing(CUstream stream) {
    int status = 0;
    CUresult r = REAL(cuStreamIsCapturing)(stream, &status);
    return r ? r != GH_MISSING : status; /* drivers before 10.0 capture nothing */
}

bool marks_idle(CUstream stream) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    CUresult r = REAL(cuStreamQuery)(stream);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return r == CUDA_SUCCESS;
}

void marks_tail(struct gh_gate *g) {
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &g->track[i];
        uint64_t now = gate_now(g);
        if (!k->used || !k->batch || k->entered || now - min64(now, k->last_at) < TAIL_AFTER)
            continue;
        if (k->thread) { /* none but its thread can mark it: it is done when it should be, or its thread says so */
            if (now - min64(now, k->last_at) > k->batch_estimate + GH_MS)
                marks_flush(g, i + 1, now);
            continue;
        }
        CUcontext context = k->context;
        CUstream stream = k->stream;
        unsigned mark = marks_take(g, context);
        if (!mark)
            return;
        atomic_store(&g->tailing, (void *)((uintptr_t)stream + 1));
        gh_unlock(&g->lock);
        struct mark *m = &g->mark[mark - 1];
        CUcontext popped;
        bool there = false;
        if (!REAL(cuCtxPushCurrent_v2)(context)) {
            int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
            there = !marks_capturing(stream) && marks_ready(m, context) && !REAL(cuEventRecord)(m->end, stream);
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
            REAL(cuCtxPopCurrent_v2)(&popped);
        }
        gh_lock(&g->lock);
        atomic_store(&g->tailing, NULL);
        m->timed = 0;
        if (there && k->used && k->context == context && k->stream == stream && k->batch)
            marks_link(g, i + 1, mark);
        else
            marks_give(g, mark);
    }
}
