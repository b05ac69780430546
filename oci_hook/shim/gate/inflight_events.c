/* Work in flight, by the driver: events behind commands tell what is done and how long it took. */
#define _GNU_SOURCE
#include "driver/real.h"
#include "gate/clock.h"
#include "gate/inflight_tracks.h"

#define TAIL_AFTER (50 * GH_US)

/* Queries of ours must not break a capture of another thread. */
static int relax_captures(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}
static void restore_captures(int mode) { REAL(cuThreadExchangeStreamCaptureMode)(&mode); }

bool stream_capturing(CUstream stream) {
    int status = 0;
    CUresult r = REAL(cuStreamIsCapturing)(stream, &status);
    return r ? r != GH_MISSING : status; /* drivers before 10.0 cannot capture */
}

bool stream_idle(CUstream stream) {
    int mode = relax_captures();
    CUresult r = REAL(cuStreamQuery)(stream);
    restore_captures(mode);
    return r == CUDA_SUCCESS;
}

/* ---- markers ---- */

/* Makes the events of a marker unless it has them. False: the driver refuses. */
static bool ready(struct marker *m, CUcontext context) {
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

/* Behind a command, so that the GPU does not wait for the second event's call. A launch on several devices is in other
 * contexts than the current one, in which the events would be made. */
static void measure_empty(struct inflight *f, CUcontext context, CUstream stream) {
    const struct marker *m = &f->empty;
    uint32_t state = EMPTY_UNKNOWN;
    CUcontext current;
    if (!atomic_compare_exchange_strong(&f->empty_state, &state, EMPTY_KNOWN))
        return;
    if ((m->context && m->context != context) || REAL(cuCtxGetCurrent)(&current) || current != context)
        atomic_store(&f->empty_state, EMPTY_UNKNOWN);
    else if (ready(&f->empty, context) && !REAL(cuEventRecord)(m->begin, stream) &&
             !REAL(cuEventRecord)(m->end, stream))
        atomic_store(&f->empty_state, EMPTY_RECORDED);
}

bool inflight_mark_begin(struct inflight *f, unsigned marker, CUcontext context, CUstream stream, bool timed) {
    struct marker *m = &f->marker[marker - 1];
    return ready(m, context) && timed && !REAL(cuEventRecord)(m->begin, stream);
}

bool inflight_mark_end(struct inflight *f, unsigned marker, CUstream stream) {
    const struct marker *m = &f->marker[marker - 1];
    if (!m->context || REAL(cuEventRecord)(m->end, stream))
        return false;
    measure_empty(f, m->context, stream);
    return true;
}

/* Puts a marker's end behind what is in the stream, which nobody measures. Another context may be current. */
static bool mark(struct marker *m, CUcontext context, CUstream stream) {
    CUcontext popped;
    if (REAL(cuCtxPushCurrent_v2)(context))
        return false;
    int mode = relax_captures();
    bool there = !stream_capturing(stream) && ready(m, context) && !REAL(cuEventRecord)(m->end, stream);
    restore_captures(mode);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return there;
}

/* ---- what is done ---- */

bool inflight_poll_begin(struct inflight *f) {
    if (f->polling || inflight_empty(f))
        return false;
    f->polling = 1;
    return true;
}

void inflight_poll_end(struct inflight *f) { f->polling = 0; }

/* In that context, which is current. The shortest of some: another context may have the GPU in between. */
static void read_empty(struct inflight *f, CUcontext context) {
    float ms;
    if (atomic_load(&f->empty_state) != EMPTY_RECORDED || f->empty.context != context ||
        REAL(cuEventElapsedTime)(&ms, f->empty.begin, f->empty.end))
        return;
    if (ms >= 0 && (!f->empty_seen || ms < f->empty_ms))
        f->empty_ms = ms;
    atomic_store(&f->empty_state, ++f->empty_seen < EMPTY_SAMPLES ? EMPTY_UNKNOWN : EMPTY_KNOWN);
}

/* CUDA_SUCCESS if the marker's event is over; *ms is then the time of the measured command, < 0 if that is not known. Else
 * *m learns whether a measured command of unknown cost has begun to run. */
static CUresult query(struct inflight *f, struct marker *m, float *ms) {
    CUcontext before = NULL;
    bool pushed = REAL(cuCtxGetCurrent)(&before) || before != m->context;
    CUresult r = pushed ? REAL(cuCtxPushCurrent_v2)(m->context) : CUDA_SUCCESS;
    *ms = -1;
    if (r)
        return r;
    int mode = relax_captures();
    r = REAL(cuEventQuery)(m->end);
    if (r == CUDA_SUCCESS && m->timed && REAL(cuEventElapsedTime)(ms, m->begin, m->end))
        *ms = -1;
    read_empty(f, m->context);
    if (r == CUDA_ERROR_NOT_READY && m->timed && m->batch.unknown && !m->started)
        m->started = REAL(cuEventQuery)(m->begin) == CUDA_SUCCESS;
    restore_captures(mode);
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&before);
    return r;
}

/* Part of that time that the command did not have. In an idle stream, the GPU passes the event before a kernel at
 * once, and idles until the driver has launched the kernel: 3 to 5 us (H100, driver 580). A thread that is stopped at
 * the end of that call looks as if the GPU had waited for longer. */
static uint64_t not_its_own(const struct inflight *f, const struct marker *m, uint64_t elapsed) {
    uint64_t waited = m->kernel && !m->queued ? m->launching : 0;
    /* More is the time of a call: the stream was idle again, or another thread put something between the two. */
    uint64_t empty = f->empty_seen == EMPTY_SAMPLES ? (uint64_t)((double)f->empty_ms * 1e6) : 0;
    return min64(add64(waited, min64(empty, EMPTY_MOST)), elapsed / 4 * 3);
}

/* Only the thread that polls uses the events of markers in a track, until it removes them from there. */
bool inflight_poll_next(struct inflight *f, struct gh_lock *lock, unsigned *track, struct finished *out) {
    for (; *track < TRACKS; ++*track) {
        unsigned marker = f->track[*track].first;
        if (!marker || f->track[*track].leaving)
            continue;
        struct marker m = f->marker[marker - 1];
        float ms;
        gh_unlock(lock);
        CUresult r = query(f, &m, &ms);
        gh_lock(lock);
        if (f->track[*track].first != marker)
            continue;
        f->marker[marker - 1].started = m.started;
        if (r == CUDA_ERROR_NOT_READY)
            continue;
        /* After any other answer, too, nothing more can be learned from this event. */
        inflight_first_done(f, *track + 1, clock_scaled(f->scale), out);
        out->measured = r == CUDA_SUCCESS && m.timed && ms >= 0 && ms < 1e6f;
        if (out->measured) {
            uint64_t elapsed = (uint64_t)((double)ms * 1e6); /* in the GPU's time, like the gate's times */
            elapsed -= min64(elapsed, inflight_halted_for(f, out->at - min64(elapsed, out->at), out->at));
            out->elapsed = elapsed - not_its_own(f, &m, elapsed);
            out->key = m.key;
            out->sampled = m.sampled;
            out->queued = m.queued;
            out->prompt = m.launching < elapsed / (m.kernel ? 2 : 8); /* the wait for a kernel's launch was taken off */
        }
        return true;
    }
    return false;
}

/* ---- commands without a marker behind them ---- */

/* True if a marker is due behind the newest commands of a stream, which any thread can put there. */
static bool needs_tail(const struct track *k, uint64_t now) {
    return k->used && !k->leaving && k->batch.count && !k->entered && !k->thread &&
           age64(now, k->last_at) >= TAIL_AFTER;
}

void inflight_tail(struct inflight *f, struct gh_lock *lock) {
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &f->track[i];
        if (!needs_tail(k, clock_scaled(f->scale)))
            continue;
        CUcontext context = k->context;
        CUstream stream = k->stream;
        unsigned marker = inflight_take_marker(f, context);
        if (!marker)
            return;
        struct marker *m = &f->marker[marker - 1];
        atomic_store(&f->tailing, (void *)((uintptr_t)stream + 1));
        gh_unlock(lock);
        bool there = mark(m, context, stream);
        gh_lock(lock);
        atomic_store(&f->tailing, NULL);
        m->timed = 0;
        if (there && k->used && k->context == context && k->stream == stream && k->batch.count)
            inflight_link(f, i + 1, marker);
        else
            inflight_give_marker(f, marker);
    }
}

unsigned inflight_leave_stream(struct inflight *f, struct gh_lock *lock, CUstream stream) {
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &f->track[i];
        if (!k->used || k->stream != stream || k->thread)
            continue;
        unsigned marker = k->batch.count ? inflight_take_marker(f, k->context) : 0;
        CUcontext context = k->context;
        struct marker *m = marker ? &f->marker[marker - 1] : NULL;
        gh_unlock(lock);
        bool marked = m && mark(m, context, stream);
        gh_lock(lock);
        if (m)
            m->timed = 0;
        if (marked && k->batch.count)
            inflight_link(f, i + 1, marker);
        else if (marker)
            inflight_give_marker(f, marker);
        k->stream = (CUstream)~(uintptr_t)0; /* a new stream may get the same handle */
        return i + 1;
    }
    return 0;
}

bool inflight_in_driver(const struct inflight *f, CUstream stream) {
    const void *with = atomic_load(&f->tailing);
    return stream ? with == (const void *)((uintptr_t)stream + 1) : with || f->polling;
}
