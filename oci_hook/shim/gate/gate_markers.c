/* Markers: events behind commands, which tell the gate what is done and how long it took. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/real.h"
#include "gate/gate_inside.h"

static uint64_t thread_of(CUstream stream) {
    return stream == (CUstream)CU_STREAM_PER_THREAD ? (uint64_t)syscall(SYS_gettid) : 0;
}

unsigned markers_track(struct gh_gate *g, CUcontext context, CUstream stream) {
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

unsigned markers_take(struct gh_gate *g, CUcontext context) {
    unsigned bare = 0;
    for (unsigned i = 0; i < MARKERS; i++) {
        if (g->marker[i].used)
            continue;
        if (g->marker[i].context == context) {
            g->marker[i].used = 1;
            return i + 1;
        }
        if (!bare && !g->marker[i].context)
            bare = i + 1;
    }
    if (bare)
        g->marker[bare - 1] = (struct marker){.used = 1};
    return bare;
}

void markers_give(struct gh_gate *g, unsigned marker) {
    g->marker[marker - 1].used = 0;
    g->marker[marker - 1].next = 0;
}

bool markers_ready(struct marker *m, CUcontext context) {
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

void markers_link(struct gh_gate *g, unsigned track, unsigned marker) {
    struct track *k = &g->track[track - 1];
    struct marker *m = &g->marker[marker - 1];
    m->count = k->batch;
    m->estimate = k->batch_estimate;
    m->submitted = k->first_at;
    m->next = 0;
    m->started = 0;
    k->batch = 0;
    k->batch_estimate = 0;
    if (k->last)
        g->marker[k->last - 1].next = (uint16_t)marker;
    else
        k->first = (uint16_t)marker;
    k->last = (uint16_t)marker;
}

/* The commands after the newest marker are known to be done. */
void markers_flush(struct gh_gate *g, unsigned track, uint64_t now) {
    struct track *k = &g->track[track - 1];
    uint32_t count = k->batch;
    uint64_t estimate = k->batch_estimate;
    k->batch = 0;
    k->batch_estimate = 0;
    if (count)
        gate_retire(g, now, count, estimate, estimate, 0);
}

static void retire(struct gh_gate *g, struct marker *m, uint64_t now, bool measured, float ms) {
    uint64_t charge = m->estimate, waited = 0;
    if (measured && m->timed && ms >= 0 && ms < 1e6f) {
        uint64_t elapsed = (uint64_t)((double)ms * 1e6); /* in the GPU's time, like the gate's times */
        elapsed -= min64(elapsed, gate_halted(g, now - min64(elapsed, now), now));
        bool clean;
        uint64_t own_part = gate_own_part(g, now, elapsed, &clean);
        struct cost *cost = cost_of(&g->costs, m->key);
        charge = charge - min64(m->sampled, charge) +
                 cost_seen(cost, elapsed, own_part, m->queued, m->begun < elapsed / 8, clean, &waited);
        g->unsure |= !cost_sure(cost);
        g->long_one = max64(elapsed, g->long_one - g->long_one / 256);
    } else if (charge >= GH_COST_UNKNOWN) {
        charge = now - min64(now, m->submitted); /* of unknown cost and not measured: the upper bound */
    }
    gate_retire(g, now, m->count, m->estimate, charge, waited);
}

/* One thread at a time. Only this thread uses the events of markers in a track, until it removes them from there. */
void markers_poll(struct gh_gate *g) {
    if (g->polling || g->launched == g->done)
        return;
    g->polling = 1;
    for (unsigned i = 0; i < TRACKS; i++) {
        while (g->track[i].first) {
            struct marker *m = &g->marker[g->track[i].first - 1];
            CUcontext context = m->context;
            CUevent begin = m->begin, end = m->end;
            bool timed = m->timed, started = m->started || !timed || m->estimate < GH_COST_UNKNOWN;
            gh_unlock(&g->lock);
            CUcontext before = NULL;
            float ms = -1;
            int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* else a query would break a capture of another thread */
            bool pushed = REAL(cuCtxGetCurrent)(&before) || before != context;
            CUresult r = pushed ? REAL(cuCtxPushCurrent_v2)(context) : CUDA_SUCCESS;
            if (r == CUDA_SUCCESS) {
                REAL(cuThreadExchangeStreamCaptureMode)(&mode);
                r = REAL(cuEventQuery)(end);
                if (r == CUDA_SUCCESS && timed && REAL(cuEventElapsedTime)(&ms, begin, end))
                    ms = -1;
                if (r == CUDA_ERROR_NOT_READY && !started)
                    started = REAL(cuEventQuery)(begin) == CUDA_SUCCESS;
                REAL(cuThreadExchangeStreamCaptureMode)(&mode);
                if (pushed)
                    REAL(cuCtxPopCurrent_v2)(&before);
            }
            gh_lock(&g->lock);
            if (r == CUDA_ERROR_NOT_READY) {
                m->started = started;
                break;
            }
            /* After any other answer, too, nothing more can be learned from this event. */
            unsigned marker = g->track[i].first;
            g->track[i].first = m->next;
            if (!m->next)
                g->track[i].last = 0;
            g->track[i].done_at = gate_now(g);
            retire(g, m, g->track[i].done_at, r == CUDA_SUCCESS, ms);
            markers_give(g, marker);
        }
    }
    g->polling = 0;
}

bool markers_capturing(CUstream stream) {
    int status = 0;
    CUresult r = REAL(cuStreamIsCapturing)(stream, &status);
    return r ? r != GH_MISSING : status; /* drivers before 10.0 cannot capture */
}

bool markers_idle(CUstream stream) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    CUresult r = REAL(cuStreamQuery)(stream);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return r == CUDA_SUCCESS;
}

void markers_tail(struct gh_gate *g) {
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &g->track[i];
        uint64_t now = gate_now(g);
        if (!k->used || !k->batch || k->entered || now - min64(now, k->last_at) < TAIL_AFTER)
            continue;
        if (k->thread) { /* only its own thread could put a marker there: assume that it is done when it should be */
            if (now - min64(now, k->last_at) > k->batch_estimate + GH_MS)
                markers_flush(g, i + 1, now);
            continue;
        }
        CUcontext context = k->context;
        CUstream stream = k->stream;
        unsigned marker = markers_take(g, context);
        if (!marker)
            return;
        atomic_store(&g->tailing, (void *)((uintptr_t)stream + 1));
        gh_unlock(&g->lock);
        struct marker *m = &g->marker[marker - 1];
        CUcontext popped;
        bool there = false;
        if (!REAL(cuCtxPushCurrent_v2)(context)) {
            int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
            there = !markers_capturing(stream) && markers_ready(m, context) && !REAL(cuEventRecord)(m->end, stream);
            REAL(cuThreadExchangeStreamCaptureMode)(&mode);
            REAL(cuCtxPopCurrent_v2)(&popped);
        }
        gh_lock(&g->lock);
        atomic_store(&g->tailing, NULL);
        m->timed = 0;
        if (there && k->used && k->context == context && k->stream == stream && k->batch)
            markers_link(g, i + 1, marker);
        else
            markers_give(g, marker);
    }
}
