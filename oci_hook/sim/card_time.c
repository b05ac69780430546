/* The simulated card's time as processes share it: a live state that whoever looks replaces by a later one. */
#define _GNU_SOURCE
#include "card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REAP_NS 1000000ull   /* real time between two looks for the dead */
#define LOOK_NS 2000000ull   /* real time: a waiter looks again, in case a neighbour died or was stopped */
#define TRIES 16             /* neighbours that are quicker; a hostile one may always be */

static const struct card_state *live_state(const struct card_file *f, uint64_t live)
{
    return &f->state[(live & 0xffff) % (CARD_SLOTS * CARD_STATES)];
}

bool card_picture(const struct card_file *f, struct card_state *out, uint64_t *live)
{
    for (int i = 0; i < TRIES; i++) {
        *live = atomic_load_explicit(&f->head.live, memory_order_acquire);
        memcpy(out, live_state(f, *live), offsetof(struct card_state, queue) + card_queues(f) * sizeof *out->queue);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&f->head.live, memory_order_relaxed) == *live)
            return true;
    }
    return false;
}

/* Marks' times into the rings. May be done twice, by two. */
static void apply_log(struct card_file *f, const struct card_state *s)
{
    for (unsigned i = 0; i < s->logged && i < CARD_LOG; i++) {
        const struct card_logged *l = &s->log[i];
        struct card_work *w = &f->queue[l->queue % CARD_QUEUES].ring[l->seq % CARD_RING];
        if (atomic_load(&w->seq1) == l->seq + 1)
            w->done_ns = l->done_ns;
    }
}

void card_advance(struct card *card, bool front)
{
    struct card_file *f = card->file;
    unsigned base = (unsigned)card->slot * CARD_STATES + (front ? 2 : 0);
    for (int i = 0; i < TRIES; i++) {
        uint64_t live = atomic_load_explicit(&f->head.live, memory_order_acquire);
        unsigned mine = base + ((live & 0xffff) == base);
        struct card_state *s = &f->state[mine];
        if (!card_picture(f, s, &live) || (live & 0xffff) == mine)
            continue;
        apply_log(f, s);
        s->logged = 0;
        memset(s->dead, 0, sizeof s->dead);
        bool whole = engine_run(f, s, card_now(f));
        if (!atomic_compare_exchange_strong(&f->head.live, &live, ((live >> 16) + 1) << 16 | mine))
            continue;
        apply_log(f, s);
        if (whole)
            return;
        i = 0;
    }
}

uint64_t card_head_of(const struct card_file *f, int queue)
{
    uint64_t head = 0;
    for (int i = 0; i < TRIES; i++) {
        uint64_t live = atomic_load_explicit(&f->head.live, memory_order_acquire);
        head = *(const volatile uint64_t *)&live_state(f, live)->queue[queue].head;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&f->head.live, memory_order_relaxed) == live)
            break;
    }
    return head;
}

/* Mutex held. */
static struct card_state *scratch(struct card *card)
{
    if (!card->scratch)
        card->scratch = malloc(sizeof *card->scratch);
    return card->scratch;
}

uint64_t card_mark_ns(struct card *card, int queue, uint64_t seq)
{
    uint64_t live;
    pthread_mutex_lock(&card->mutex);
    struct card_state *s = scratch(card);
    if (s && card_picture(card->file, s, &live))
        apply_log(card->file, s); /* whoever computed it may have been stopped before it did */
    pthread_mutex_unlock(&card->mutex);
    const struct card_work *w = &card->file->queue[queue].ring[seq % CARD_RING];
    return atomic_load(&w->seq1) == seq + 1 ? w->done_ns : 0;
}

uint64_t card_ahead_ns(struct card *card, int queue, uint64_t seq, uint64_t most)
{
    uint64_t live, scale = card_scale(card->file), now = card_now(card->file), end = now + most / scale + 1;
    pthread_mutex_lock(&card->mutex);
    struct card_state *s = scratch(card);
    if (s && card_picture(card->file, s, &live)) {
        do
            s->logged = 0;
        while (!engine_run_until(card->file, s, end, queue, seq) && s->now_ns < end);
        end = s->queue[queue].head > seq ? s->now_ns : end;
    }
    pthread_mutex_unlock(&card->mutex);
    uint64_t ns = end > now ? (end - now) * scale : 0;
    return ns < most ? ns : most;
}

static void sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static void look(struct card *card)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    pthread_mutex_lock(&card->mutex);
    if (now - card->reaped_ns >= REAP_NS) {
        card->reaped_ns = now;
        card_reap(card);
    }
    card_advance(card, false);
    pthread_mutex_unlock(&card->mutex);
}

bool card_done(struct card *card, int queue, uint64_t seq)
{
    if (card_head_of(card->file, queue) > seq)
        return true;
    look(card);
    return card_head_of(card->file, queue) > seq;
}

void card_wait(struct card *card, int queue, uint64_t seq)
{
    uint64_t wake = card->file->head.wake_ns < 10000000 ? card->file->head.wake_ns * card_scale(card->file) : 0;
    bool late = false; /* slept until its end and the time of waking up */
    while (!card_done(card, queue, seq)) {
        uint64_t ns = card_ahead_ns(card, queue, seq, LOOK_NS);
        late = ns < LOOK_NS;
        sleep_ns(late ? ns + wake : ns);
        wake = late ? 0 : wake;
    }
}
