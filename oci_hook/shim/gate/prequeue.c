#define _GNU_SOURCE
#include "gate/prequeue.h"

#include <sys/mman.h>

#include "driver/real.h"

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

static struct prequeue_words *words_of(struct prequeue *p, CUcontext context) {
    struct prequeue_words *bare = NULL;
    for (unsigned i = 0; i < PREQUEUES; i++) {
        if (p->of[i].context == context)
            return &p->of[i];
        if (!bare && !p->of[i].context)
            bare = &p->of[i];
    }
    if (bare)
        bare->context = context;
    return bare;
}

bool prequeue_free(struct prequeue *p, CUcontext context) {
    const struct prequeue_words *w = prequeue_waits(p) ? NULL : words_of(p, context);
    return w && !w->without;
}

/* Maps a page of ours into the context, once. */
static bool ready(struct prequeue_words *w, const struct calls *c) {
    if (w->words)
        return true;
    void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    /* Before Linux 5.9, a store after a fork could go to a copy of the page, and the GPU would read the old one for ever. A
     * child has no use for it. */
    madvise(p, PAGE, MADV_DONTFORK);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* else this would break a capture of another thread */
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    bool ok = !c->attach(p, PAGE, DEVICEMAP) && !c->address(&w->at, p, 0);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (!ok) {
        munmap(p, PAGE);
        return false;
    }
    w->words = p;
    return true;
}

void prequeue_put(struct prequeue *p, struct gh_lock *lock, CUcontext context, CUstream stream, uint64_t estimate) {
    struct calls c;
    if (!gh_lock(lock))
        return;
    struct prequeue_words *w = words_of(p, context);
    gh_unlock(lock);
    bool ok = w && find(&c) && ready(w, &c);
    if (!w || !gh_lock(lock))
        return;
    uint32_t number = ++p->number;
    w->without = !ok;
    p->newest = ok ? w : NULL;
    p->estimate = estimate;
    if (ok)
        __atomic_store_n(&w->words[PREQUEUE_OPEN], !p->closed, __ATOMIC_RELEASE);
    gh_unlock(lock);
    if (!ok)
        return;
    if (c.wait(stream, w->at + 4 * PREQUEUE_OPEN, 1, EQUAL) ||
        c.write(stream, w->at + 4 * PREQUEUE_PASSED, number, 0)) {
        w->without = true;
        __atomic_store_n(&w->words[PREQUEUE_PASSED], number, __ATOMIC_RELEASE);
    }
}

void prequeue_close(struct prequeue *p, bool closed) {
    p->closed = closed;
    if (p->newest)
        __atomic_store_n(&p->newest->words[PREQUEUE_OPEN], !closed, __ATOMIC_RELEASE);
}

void prequeue_leave(struct prequeue *p, CUcontext context) {
    for (unsigned i = 0; i < PREQUEUES; i++) {
        struct prequeue_words *w = &p->of[i];
        if (!w->context || (context && w->context != context))
            continue;
        if (w->words)
            __atomic_store_n(&w->words[PREQUEUE_OPEN], 1, __ATOMIC_RELEASE);
        if (p->newest == w)
            p->newest = NULL;
    }
}

void prequeue_forget(struct prequeue *p, CUcontext context) {
    prequeue_leave(p, context);
    for (unsigned i = 0; i < PREQUEUES; i++)
        if (p->of[i].context == context)
            p->of[i] = (struct prequeue_words){0}; /* not unmapped: the GPU may still read it */
}
