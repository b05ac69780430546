/* Tier 0.5, on GPUs where `gpu-hook gpus --probe` found that streams can wait for a word in host memory: one command
 * more than the window allows is launched, behind a wait for such a word. So the GPU goes from one long command to the
 * next without a pause. When a higher class has work, a store to the word keeps the next command off the GPU, as the
 * window would have.
 *
 * The word belongs to the process, and only its threads change it: a word in another container's memory could block the
 * stream for ever. If those threads get no processor, one command runs that should not. At most one command waits. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/real.h"
#include "gate/gate_inside.h"

enum { DEVICEMAP = 2, EQUAL = 1 };
#define PAGE 4096u
#define LONGEST (700 * GH_US) /* a command that may be put behind a word; for a longer one the pause costs little */

struct calls {
    CUresult (*attach)(void *, size_t, unsigned);
    CUresult (*address)(CUdeviceptr *, void *, unsigned);
    CUresult (*wait)(CUstream, CUdeviceptr, uint32_t, unsigned);
    CUresult (*write)(CUstream, CUdeviceptr, uint32_t, unsigned);
};

static bool find(struct calls *c) {
    *(void **)&c->attach = gh_real_find("cuMemHostRegister_v2");
    *(void **)&c->address = gh_real_find("cuMemHostGetDevicePointer_v2");
    *(void **)&c->wait = gh_real_find("cuStreamWaitValue32_v2");
    *(void **)&c->write = gh_real_find("cuStreamWriteValue32_v2");
    return c->attach && c->address && c->wait && c->write;
}

static struct prequeue *prequeue_of(struct gh_gate *g, CUcontext context) {
    struct prequeue *bare = NULL;
    for (unsigned i = 0; i < PREQUEUES; i++) {
        if (g->prequeues[i].context == context)
            return &g->prequeues[i];
        if (!bare && !g->prequeues[i].context)
            bare = &g->prequeues[i];
    }
    if (bare)
        bare->context = context;
    return bare;
}

bool prequeue_allows(struct gh_gate *g, const struct gh_decision *d, CUcontext context, CUstream stream,
                     const struct cost *cost) {
    const struct gh_rules *r = &g->view.rules;
    uint64_t window = gh_window(&g->view, g->me), estimate = gh_cost_of(&cost->cost);
    if (!(g->tiers & GH_TIER_MEMOPS) || d->go || d->on != GH_ON_OWN_DONE || d->mode != GH_GUARDED || !g->pacer ||
        window >= r->window || g->launched - g->done != 1 || prequeue_waits(g) || cost->collective)
        return false;
    /* A shorter command fits into the window; for a longer one, the pause before it costs little. */
    if (estimate <= window || estimate > LONGEST)
        return false;
    struct prequeue *f = prequeue_of(g, context);
    unsigned track = f && !f->without ? markers_track(g, context, stream) : 0;
    return track && !g->track[track - 1].batch; /* markers tell when the command before it is done */
}

/* Maps a page of ours into the context, once. */
static bool ready(struct prequeue *f, const struct calls *c) {
    if (f->words)
        return true;
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* else this would break a capture of another thread */
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    bool ok = !c->attach(p, PAGE, DEVICEMAP) && !c->address(&f->at, p, 0);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (!ok) {
        munmap(p, PAGE);
        return false;
    }
    f->words = p;
    return true;
}

void prequeue_put(struct gh_gate *g, CUcontext context, CUstream stream, uint64_t estimate) {
    struct calls c;
    if (!gh_lock(&g->lock))
        return;
    struct prequeue *f = prequeue_of(g, context);
    gh_unlock(&g->lock);
    bool ok = f && find(&c) && ready(f, &c);
    if (!f || !gh_lock(&g->lock))
        return;
    uint32_t number = ++g->prequeue_number;
    f->without = !ok;
    g->prequeue = ok ? f : NULL;
    g->prequeue_estimate = estimate;
    if (ok)
        __atomic_store_n(&f->words[PREQUEUE_OPEN], !g->closed, __ATOMIC_RELEASE);
    gh_unlock(&g->lock);
    if (!ok)
        return;
    if (c.wait(stream, f->at + 4 * PREQUEUE_OPEN, 1, EQUAL) ||
        c.write(stream, f->at + 4 * PREQUEUE_PASSED, number, 0)) {
        f->without = true;
        __atomic_store_n(&f->words[PREQUEUE_PASSED], number, __ATOMIC_RELEASE);
    }
}

void prequeue_close(struct gh_gate *g, bool closed) {
    g->closed = closed;
    if (g->prequeue)
        __atomic_store_n(&g->prequeue->words[PREQUEUE_OPEN], !closed, __ATOMIC_RELEASE);
}

unsigned prequeue_watched(const struct gh_gate *g) {
    unsigned found = GH_SLOTS;
    if (prequeue_waits(g) && !g->closed)
        for (uint64_t left = g->view.present; left; left &= left - 1) {
            unsigned i = (unsigned)__builtin_ctzll(left);
            if (g->view.share[i].class_ > g->view.share[g->me].class_ && !g->view.slot[i].ended &&
                (found == GH_SLOTS || g->view.slot[i].active_at > g->view.slot[found].active_at))
                found = i;
        }
    return found;
}

void prequeue_leave(struct gh_gate *g, CUcontext context) {
    for (unsigned i = 0; i < PREQUEUES; i++) {
        struct prequeue *f = &g->prequeues[i];
        if (!f->context || (context && f->context != context))
            continue;
        if (f->words)
            __atomic_store_n(&f->words[PREQUEUE_OPEN], 1,
                             __ATOMIC_RELEASE); /* not unmapped: the GPU may still read it */
        if (g->prequeue == f)
            g->prequeue = NULL;
        *f = (struct prequeue){0};
    }
}
