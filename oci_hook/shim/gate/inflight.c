#define _GNU_SOURCE
#include "gate/inflight_tracks.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STUCK_AFTER (10 * GH_MS)     /* longer than it should take if it were only time-sliced */
#define UNCOUNTED_MOST (500 * GH_MS) /* until a driver's queue has run empty */
#define OVERDUE (1 * GH_MS)

/* Goes through the tracks with commands in flight: i from 0. */
#define EACH_BUSY(f, i) \
    for (uint64_t left_ = (f)->busy, i = 0; left_ && ((i = (uint64_t)__builtin_ctzll(left_)), 1); left_ &= left_ - 1)

/* ---- the own clock ---- */

static uint64_t own_now(const struct inflight *f, uint64_t now) {
    return f->own + (f->halted ? 0 : mul64(min64(age64(now, f->own_at), 1000 * GH_S), f->pace) / GH_PPM);
}

static void own_goes_on(struct inflight *f, uint64_t now) {
    f->own = own_now(f, now);
    f->own_at = max64(f->own_at, now);
}

static void settle(struct inflight *f, unsigned i) {
    const struct track *k = &f->track[i];
    uint64_t bit = 1ull << i;
    f->busy = k->used && (k->first || k->batch.count) ? f->busy | bit : f->busy & ~bit;
}

struct gh_own inflight_own(const struct inflight *f) {
    struct work w = inflight_work(f);
    return (struct gh_own){
        .inflight = work_estimate(&w), .running_since = f->running_since, .running_cost = f->running_cost};
}

/* ---- a launch ---- */

static uint64_t thread_of(CUstream stream) {
    return stream == (CUstream)CU_STREAM_PER_THREAD ? (uint64_t)syscall(SYS_gettid) : 0;
}

static unsigned track_of(struct inflight *f, CUcontext context, CUstream stream) {
    uint64_t thread = thread_of(stream);
    unsigned free = 0;
    for (unsigned i = 0; i < TRACKS; i++) {
        struct track *k = &f->track[i];
        if (k->used && k->context == context && k->stream == stream && k->thread == thread)
            return i + 1;
        if (!free && (!k->used || (!k->batch.count && !k->first && !k->entered)))
            free = i + 1;
    }
    if (free)
        f->track[free - 1] = (struct track){.context = context, .stream = stream, .thread = thread, .used = 1};
    return free;
}

struct opening inflight_opening(struct inflight *f, CUcontext context, CUstream stream, uint64_t estimate,
                                uint64_t batch_time) {
    unsigned track = track_of(f, context, stream);
    if (!track)
        return (struct opening){0};
    const struct track *k = &f->track[track - 1];
    return (struct opening){.track = track,
                            .queued = k->batch.count || k->first,
                            .unmarked = k->batch.count != 0,
                            .full = k->batch.count + 1 >= BATCH_COMMANDS ||
                                    add64(work_estimate(&k->batch), estimate) >= batch_time,
                            .of_thread = k->thread != 0};
}

unsigned inflight_take_marker(struct inflight *f, CUcontext context) {
    unsigned bare = 0;
    for (unsigned i = 0; i < MARKERS; i++) {
        if (f->marker[i].used)
            continue;
        if (f->marker[i].context == context) {
            f->marker[i].used = 1;
            return i + 1;
        }
        if (!bare && !f->marker[i].context)
            bare = i + 1;
    }
    if (bare)
        f->marker[bare - 1] = (struct marker){.used = 1};
    return bare;
}

void inflight_give_marker(struct inflight *f, unsigned marker) {
    f->marker[marker - 1].used = 0;
    f->marker[marker - 1].next = 0;
}

void inflight_launch(struct inflight *f, unsigned track, uint64_t estimate, uint64_t now) {
    struct work one = work_one(estimate);
    uint64_t own = own_now(f, now);
    if (inflight_empty(f)) {
        f->done_at = now;
        f->done_own = own;
    }
    f->launched++;
    work_add(&f->all, &one);
    if (!track)
        return;
    struct track *k = &f->track[track - 1];
    if (!k->batch.count) {
        k->first_at = now;
        k->first_own = own;
    }
    work_add(&k->batch, &one);
    k->last_at = now;
    k->entered++;
    settle(f, track - 1);
}

void inflight_link(struct inflight *f, unsigned track, unsigned marker) {
    struct track *k = &f->track[track - 1];
    struct marker *m = &f->marker[marker - 1];
    m->batch = k->batch;
    m->submitted = k->first_at;
    m->submitted_own = k->first_own;
    m->started = 0;
    m->next = 0;
    k->batch = (struct work){0};
    if (k->last)
        f->marker[k->last - 1].next = (uint16_t)marker;
    else
        k->first = (uint16_t)marker;
    k->last = (uint16_t)marker;
}

enum closed inflight_close(struct inflight *f, const struct closing *c) {
    struct track *k = &f->track[c->track - 1];
    struct work one = work_one(c->estimate);
    if (!k->used || k->context != c->context) { /* its context was destroyed meanwhile; another may have the track */
        if (c->marker)
            inflight_give_marker(f, c->marker);
        return CLOSED;
    }
    k->entered -= k->entered > 0;
    bool refused = c->failed && k->batch.count, assumed = !c->failed && !c->marked && one.unknown && k->batch.unknown;
    if (refused || assumed)
        work_take(&k->batch, &one);
    if (assumed) {
        struct work instead = work_one(c->assumed);
        work_add(&k->batch, &instead);
        work_take(&f->all, &one);
        work_add(&f->all, &instead);
    }
    if (c->marked && k->batch.count) {
        struct marker *m = &f->marker[c->marker - 1];
        m->key = c->key;
        m->sampled = c->estimate;
        m->timed = c->timed;
        m->queued = c->queued;
        m->kernel = c->kernel;
        m->launching = age64(c->ended, c->began);
        inflight_link(f, c->track, c->marker);
    } else if (c->marker) {
        inflight_give_marker(f, c->marker);
    }
    settle(f, c->track - 1);
    return refused ? CLOSED_REFUSED : assumed ? CLOSED_ASSUMED : CLOSED;
}

/* ---- what is done ---- */

void inflight_retire(struct inflight *f, const struct work *work, uint64_t at, bool wake) {
    f->done += work->count;
    f->done_at = at;
    f->done_own = own_now(f, at);
    if (inflight_empty(f))
        f->all = (struct work){0};
    else
        work_take(&f->all, work);
    __atomic_add_fetch(&f->done_word, 1, __ATOMIC_RELEASE);
    if (wake)
        syscall(SYS_futex, &f->done_word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

bool inflight_first_done(struct inflight *f, unsigned track, uint64_t at, struct finished *out) {
    struct track *k = &f->track[track - 1];
    unsigned marker = k->first;
    if (!marker)
        return false;
    struct marker *m = &f->marker[marker - 1];
    *out = (struct finished){.work = m->batch, .at = at, .submitted = m->submitted};
    k->first = m->next;
    if (!k->first)
        k->last = 0;
    k->done_at = at;
    k->done_own = own_now(f, at);
    inflight_give_marker(f, marker);
    settle(f, track - 1);
    return true;
}

bool inflight_flush(struct inflight *f, unsigned track, uint64_t now, struct finished *out) {
    struct track *k = &f->track[track - 1];
    *out = (struct finished){.work = k->batch, .at = now, .submitted = k->first_at};
    k->batch = (struct work){0};
    settle(f, track - 1);
    return out->work.count;
}

unsigned inflight_synchronised(const struct inflight *f, CUcontext context, CUstream stream, bool whole,
                               uint64_t before) {
    EACH_BUSY(f, i) {
        const struct track *k = &f->track[i];
        if (k->context == context && (whole || (k->stream == stream && !k->thread)) && !k->entered && !k->first &&
            k->last_at < before)
            return (unsigned)i + 1;
    }
    return 0;
}

unsigned inflight_overdue(const struct inflight *f, uint64_t now) {
    EACH_BUSY(f, i) {
        const struct track *k = &f->track[i];
        if (k->thread && k->batch.count && !k->entered &&
            age64(now, k->last_at) > add64(work_estimate(&k->batch), OVERDUE))
            return (unsigned)i + 1;
    }
    return 0;
}

void inflight_leave_context(struct inflight *f, CUcontext context, bool leaving) {
    for (unsigned i = 0; i < TRACKS; i++)
        if (f->track[i].context == context)
            f->track[i].leaving = leaving;
}

bool inflight_is_leaving(const struct inflight *f, CUcontext context) {
    EACH_BUSY(f, i)
    if (f->track[i].context == context && f->track[i].leaving)
        return true;
    return false;
}

bool inflight_of_context(struct inflight *f, CUcontext context, uint64_t now, struct finished *out) {
    EACH_BUSY(f, i)
    if (f->track[i].context == context)
        return inflight_first_done(f, (unsigned)i + 1, now, out) || inflight_flush(f, (unsigned)i + 1, now, out);
    return false;
}

void inflight_forget_context(struct inflight *f, CUcontext context) {
    for (unsigned i = 0; i < TRACKS; i++)
        if (f->track[i].context == context)
            f->track[i].used = 0;
    if (f->empty.context == context) {
        f->empty.context = NULL;
        if (f->empty_seen < EMPTY_SAMPLES)
            atomic_store(&f->empty_state, EMPTY_UNKNOWN);
    }
    for (unsigned i = 0; i < MARKERS; i++) /* the marker's events are destroyed with the context */
        if (f->marker[i].context == context)
            f->marker[i].context = NULL;
}

/* ---- what runs ---- */

void inflight_halt(struct inflight *f, uint64_t now, bool halted) {
    own_goes_on(f, now);
    if (halted)
        f->halt[++f->halts % HALTS] = (struct halt){now, UINT64_MAX};
    else
        f->halt[f->halts % HALTS].end = now;
    f->halted = halted;
}

uint64_t inflight_halted_for(const struct inflight *f, uint64_t since, uint64_t now) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < HALTS; i++) {
        uint64_t from = max64(f->halt[i].begin, since), to = min64(f->halt[i].end, now);
        if (f->halt[i].begin && to > from)
            sum += to - from;
    }
    return sum;
}

void inflight_counts(struct inflight *f, uint64_t now) { f->uncounted_at = now; }

static struct work work_of(const struct inflight *f, const struct track *k) {
    struct work w = k->batch;
    for (unsigned n = k->first; n; n = f->marker[n - 1].next)
        work_add(&w, &f->marker[n - 1].batch);
    return w;
}

/* After how much time more than estimated a stream is overdue. A command of unknown cost that runs may just be long: each
 * further one behind it makes the time four times as long. Otherwise hundreds of long kernels would be launched before
 * the first is known. */
static uint64_t patience(const struct inflight *f, const struct track *k) {
    const struct marker *m = k->first ? &f->marker[k->first - 1] : NULL;
    if (!m || !m->started || !m->batch.unknown)
        return STUCK_AFTER;
    return min64(STUCK_AFTER << 2 * min64(work_of(f, k).unknown - 1, 4), GH_S);
}

/* The oldest commands in a track, and by the own clock, when the first of them was launched. */
static const struct work *oldest_of(const struct inflight *f, const struct track *k, uint64_t *launched) {
    const struct marker *m = k->first ? &f->marker[k->first - 1] : NULL;
    *launched = m ? m->submitted_own : k->first_own;
    return m ? &m->batch : &k->batch;
}

/* The oldest commands in a track should have been done for that long. */
static bool overdue_by(const struct inflight *f, const struct track *k, uint64_t own, uint64_t by) {
    uint64_t launched;
    const struct work *oldest = oldest_of(f, k, &launched);
    return age64(own, max64(launched, k->done_own)) >= add64(oldest->known, by);
}

/* The commands in this track may be behind launches that were not counted. */
static bool behind_uncounted(const struct inflight *f, const struct track *k, uint64_t now) {
    return k->done_at < f->uncounted_at && age64(now, f->uncounted_at) < UNCOUNTED_MOST;
}

bool inflight_behind_stuck(struct inflight *f, CUcontext context, CUstream stream, uint64_t now) {
    unsigned track = f->stuck.count ? track_of(f, context, stream) : 0;
    const struct track *k = track ? &f->track[track - 1] : NULL;
    if (!k || k->entered || !(k->first || k->batch.count)) /* a launch that is in the driver now may go on by itself */
        return false;
    return !overdue_by(f, k, own_now(f, now), STUCK_AFTER << min64(work_of(f, k).count, 7));
}

bool inflight_check(struct inflight *f, uint64_t now, uint32_t pace) {
    uint64_t at = UINT64_MAX;
    bool sure = true;
    own_goes_on(f, now);
    f->pace = pace;
    f->stuck = (struct work){0};
    f->running_cost = 0;
    EACH_BUSY(f, i) {
        const struct track *k = &f->track[i];
        uint64_t launched;
        const struct work *oldest = oldest_of(f, k, &launched);
        bool behind = behind_uncounted(f, k, now);
        sure &= !behind;
        /* An overdue stream is blocked, perhaps by a launch that we hold at the gate: its work does not count. */
        if (!behind && overdue_by(f, k, f->own, patience(f, k))) {
            struct work w = work_of(f, k);
            sure &= !w.unknown;
            work_add(&f->stuck, &w);
        } else if (launched < at) {
            at = launched;
            f->running_cost = work_estimate(oldest);
        }
    }
    at = max64(f->done_own, at == UINT64_MAX ? 0 : at);
    f->running_since = now - min64(age64(f->own, at), now);
    return sure;
}
