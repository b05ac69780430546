/* Tier 0.5: one command more than the window holds is put into the stream, behind a wait for a word of ours in host
 * memory, where `gpu-hook gpus --probe` found that streams wait well. The GPU goes from one long command to the next
 * without asking; when a higher class comes, a store keeps the next one off the GPU, as the window would have.
 *
 * The word is the process's own and is flipped by its threads: a neighbour's page could hold the stream for ever. If
 * they get no processor, one more command runs than should, by time slices. At most one command is behind a word. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/real.h"
#include "gate/gate_inside.h"

enum { GATE, PASSED }; /* words: not 0 open; the last command that came by */
enum { DEVICEMAP = 2, EQUAL = 1 };
#define PAGE 4096u

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

/* Behind the word, as far as is known. */
static bool kept(const struct gh_gate *g) {
    return g->front && __atomic_load_n(&g->front->words[PASSED], __ATOMIC_ACQUIRE) != g->front_number;
}

static struct front *front_of(struct gh_gate *g, CUcontext context) {
    struct front *bare = NULL;
    for (unsigned i = 0; i < FRONTS; i++) {
        if (g->fronts[i].context == context)
            return &g->fronts[i];
        if (!bare && !g->fronts[i].context)
            bare = &g->fronts[i];
    }
    if (bare)
        bare->context = context;
    return bare;
}

bool front_may(struct gh_gate *g, const struct gh_decision *d, CUcontext context, CUstream stream,
               const struct cost *cost) {
    const struct gh_rules *r = &g->view.rules;
    uint64_t window = gh_window(&g->view, g->me), estimate = gh_cost_of(&cost->cost);
    if (!(g->tiers & GH_TIER_MEMOPS) || d->go || d->on != GH_ON_OWN_DONE || d->mode != GH_GUARDED || !g->pacer ||
        window >= r->window || g->launched - g->done != 1 || kept(g) || cost->collective)
        return false;
    /* What is shorter fits before the GPU runs dry; for what is longer, asking each time costs little. */
    if (estimate <= window || estimate > r->drain_max)
        return false;
    struct front *f = front_of(g, context);
    unsigned track = f && !f->without ? marks_track(g, context, stream) : 0;
    return track && !g->track[track - 1].batch; /* it is seen when what is before it is done */
}

/* Memory of ours that the GPU sees, once per context. */
static bool ready(struct front *f, const struct calls *c) {
    if (f->words)
        return true;
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* registering would break another thread's capture */
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

void front_put(struct gh_gate *g, CUcontext context, CUstream stream, uint64_t estimate) {
    struct calls c;
    if (!gh_lock(&g->lock))
        return;
    struct front *f = front_of(g, context);
    gh_unlock(&g->lock);
    bool ok = f && find(&c) && ready(f, &c);
    if (!f || !gh_lock(&g->lock))
        return;
    uint32_t number = ++g->front_number;
    f->without = !ok;
    g->front = ok ? f : NULL;
    g->front_estimate = estimate;
    if (ok)
        __atomic_store_n(&f->words[GATE], !g->closed, __ATOMIC_RELEASE);
    gh_unlock(&g->lock);
    if (!ok)
        return;
    if (c.wait(stream, f->at + 4 * GATE, 1, EQUAL) || c.write(stream, f->at + 4 * PASSED, number, 0)) {
        f->without = true;
        __atomic_store_n(&f->words[PASSED], number, __ATOMIC_RELEASE);
    }
}

void front_close(struct gh_gate *g, bool closed) {
    g->closed = closed;
    if (g->front)
        __atomic_store_n(&g->front->words[GATE], !closed, __ATOMIC_RELEASE);
}

unsigned front_watched(const struct gh_gate *g) {
    unsigned found = GH_SLOTS;
    if (kept(g) && !g->closed)
        for (uint64_t left = g->view.present; left; left &= left - 1) {
            unsigned i = (unsigned)__builtin_ctzll(left);
            if (g->view.share[i].class_ > g->view.share[g->me].class_ && !g->view.slot[i].dead &&
                (found == GH_SLOTS || g->view.slot[i].active_at > g->view.slot[found].active_at))
                found = i;
        }
    return found;
}

unsigned front_kept(const struct gh_gate *g) { return g->closed && kept(g); }

uint64_t front_behind(const struct gh_gate *g) { return kept(g) ? g->front_estimate : 0; }

void front_leave(struct gh_gate *g, CUcontext context) {
    for (unsigned i = 0; i < FRONTS; i++) {
        struct front *f = &g->fronts[i];
        if (!f->context || (context && f->context != context))
            continue;
        if (f->words)
            __atomic_store_n(&f->words[GATE], 1, __ATOMIC_RELEASE); /* stays mapped: the GPU may still look at it */
        if (g->front == f)
            g->front = NULL;
        *f = (struct front){0};
    }
}
