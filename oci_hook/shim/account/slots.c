#define _GNU_SOURCE
#include "account/slots.h"

#include <errno.h>
#include <time.h>

#include "account/free_cache.h"
#include "account/operation.h"
#include "account/account_file.h"
#include "account/slot_lock.h"
#include "process/atomics.h"

#define SWEEP_EVERY_MS 100
#define LOOK_REST 20 /* before a figure is shown, a look for exited processes waits so many times the last one's time */

/* A process that is killed between the two has no memory in the slot yet, or no more. */
static void set_owner(struct gh_account_page *page, unsigned slot, uint64_t owner) {
    STORE_RELEASE(&page->owner[slot], owner);
    atomic_fetch_add(&page->owners, 1);
}

/* ---- a slot whose memory has gone ---- */

/* Sets a slot to zero. We have its lock, so only we write it. If we are killed at any step, the next process that has the
 * lock can do all of it again. */
static void empty_slot(struct gh_account_page *page, unsigned slot) {
    atomic_fetch_and(&page->fixed[slot / 64], ~(1ull << slot % 64));
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_account_entry *e = &page->entry[slot][gpu];
        uint64_t a = LOAD_ACQUIRE(&e->announce), c = LOAD_ACQUIRE(&e->committed),
                 taken = gh_free_cache_close(page, slot, gpu);
        struct gh_mine mine = {.units = gh_committed_units(c), .tag = gh_tag(c)};
        if (gh_tag(a) != mine.tag) {
            if (gh_took_effect(page, slot, gpu, gh_tag(a)))
                mine.units = (mine.units + (uint64_t)gh_delta(a)) & GH_VALUE_MAX;
            mine.tag = gh_tag(a);
            STORE_RELEASE(&e->committed, mine.units << GH_TAG_BITS | mine.tag);
        }
        uint64_t left = (mine.units - taken) & GH_VALUE_MAX;
        if (left)
            gh_add(page, slot, gpu, &mine, -(int64_t)left, 0);
        STORE_RELEASE(&e->contexts, 0);
    }
}

void gh_slot_clear(struct gh_account_page *page, int fd, unsigned slot) {
    if (!gh_slot_lock(fd, slot))
        return;
    if (LOAD_ACQUIRE(&page->owner[slot])) {
        STORE_RELEASE(&page->shared[slot], 0);
        empty_slot(page, slot);
        set_owner(page, slot, 0);
    }
    gh_slot_unlock(fd, slot);
}

/* ---- sweeping ---- */

/* Sets a total to the sum of its slots: if they differ while no operation takes effect, a process wrote garbage. */
static void repair(struct gh_account_page *page, unsigned gpu) {
    _Atomic uint64_t *total = &page->gpu[gpu].total;
    for (int i = 0; i < 100; i++) {
        uint64_t w = LOAD_ACQUIRE(total), sum = 0;
        for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
            if (LOAD_ACQUIRE(&page->owner[slot]))
                sum += gh_account_slot_charged(page, slot, gpu);
        if (LOAD_ACQUIRE(total) != w)
            continue;
        if (sum == gh_word_value(w) || sum > GH_VALUE_MAX)
            return;
        gh_acknowledge(page, gpu, w, 0);
        CAS_ACQ_REL(total, &w, gh_word(sum, 0, (gh_tag(w) + 1) & GH_TAG_MASK));
        /* go on and check again, since slots with garbage may have changed meanwhile */
    }
}

/* Writes our own slot again, in case a process has overwritten it. */
static void restate(struct gh_state *st, struct gh_account_page *page) {
    unsigned slot = LOAD_ACQUIRE(&st->slot);
    for (unsigned gpu = 0; slot && gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_mine *mine = &st->mine[gpu];
        if (!gh_lock(&mine->lock))
            continue;
        uint64_t right = mine->units << GH_TAG_BITS | mine->tag;
        struct gh_account_entry *e = &page->entry[slot][gpu];
        if (LOAD_ACQUIRE(&page->owner[slot]) == st->me && LOAD_ACQUIRE(&st->slot) == slot &&
            (LOAD_ACQUIRE(&e->committed) != right || gh_tag(LOAD_ACQUIRE(&e->announce)) != mine->tag)) {
            STORE_RELEASE(&e->announce, mine->tag);
            STORE_RELEASE(&e->committed, right);
        }
        if (LOAD_ACQUIRE(&page->owner[slot]) == st->me && LOAD_ACQUIRE(&st->slot) == slot)
            gh_free_cache_restate(page, slot, gpu, mine);
        gh_unlock(&mine->lock);
    }
}

const _Atomic uint64_t *gh_slots_taken(struct gh_state *st, struct gh_account_page *page, bool anew) {
    uint32_t owners = LOAD_ACQUIRE(&page->owners) + 1;
    if (!anew && owners && LOAD_ACQUIRE(&st->owners_seen) == owners)
        return st->taken;
    for (unsigned first = 0; first < GH_ACCOUNT_SLOTS; first += 64) {
        uint64_t bits = 0;
        for (unsigned i = 0; i < 64; i++)
            bits |= (uint64_t)(first + i && LOAD_ACQUIRE(&page->owner[first + i])) << i;
        STORE_RELEASE(&st->taken[first / 64], bits);
    }
    STORE_RELEASE(&st->owners_seen, owners);
    return st->taken;
}

/* The bits of word `i` of st->taken but for our own slot. */
static uint64_t others(const struct gh_state *st, unsigned i, unsigned own) {
    return LOAD_ACQUIRE(&st->taken[i]) & ~(own / 64 == i ? 1ull << own % 64 : 0);
}

static unsigned count_others(const struct gh_state *st) {
    unsigned own = LOAD_ACQUIRE(&st->slot), count = 0;
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS / 64; i++)
        count += (unsigned)__builtin_popcountll(others(st, i, own));
    return count;
}

/* Clears the slots of exited processes among those in st->taken. */
static void reclaim_exited(struct gh_state *st, struct gh_account_page *page) {
    unsigned own = LOAD_ACQUIRE(&st->slot);
    int fd = -1;
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS / 64; i++)
        for (uint64_t left = others(st, i, own); left; left &= left - 1) {
            if (fd < 0)
                fd = gh_slot_locks_open(st);
            if (fd < 0)
                return;
            gh_slot_clear(page, fd, 64 * i + (unsigned)__builtin_ctzll(left));
        }
    gh_slot_locks_close(fd);
}

void gh_sweep(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page)
        return;
    gh_slots_taken(st, page, true);
    reclaim_exited(st, page);
    restate(st, page);
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        gh_free_cache_take_all(page, gpu);
        repair(page, gpu);
    }
}

#define FEW 4

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Nothing that others write tells of a process that was killed, only its lock, and to ask for 40 locks takes longer than
 * all else that a figure needs. So beside more than FEW a program that asks all the time looks for a twentieth of its time. */
static void look_for_exited(struct gh_state *st, struct gh_account_page *page) {
    gh_slots_taken(st, page, false);
    unsigned count = count_others(st);
    if (count <= FEW) {
        if (count)
            reclaim_exited(st, page);
        return;
    }
    int64_t begin = now_ns(), after = atomic_load(&st->look_after);
    if (begin < after || !atomic_compare_exchange_strong(&st->look_after, &after, INT64_MAX))
        return;
    reclaim_exited(st, page);
    int64_t end = now_ns();
    atomic_store(&st->look_after, end + LOOK_REST * (end - begin));
}

void gh_sweep_before_shown(struct gh_state *st) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    int64_t ms = now.tv_sec * 1000ll + now.tv_nsec / 1000000, last = atomic_load(&st->swept_ms);
    if (ms - last >= SWEEP_EVERY_MS && atomic_compare_exchange_strong(&st->swept_ms, &last, ms)) {
        gh_sweep(st);
        return;
    }
    struct gh_account_page *page = gh_account_page(st);
    if (page)
        look_for_exited(st, page);
}

/* ---- our slot ---- */

/* Lock first, owner word after: an owner word without a lock is
 * that of an owner who has gone. */
unsigned gh_slot_take(struct gh_state *st, struct gh_account_page *page, int fd) {
    unsigned from = gh_owner_pid(st->me), own = LOAD_ACQUIRE(&st->slot);
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS; i++) {
        unsigned slot = (from + i) % GH_ACCOUNT_SLOTS;
        if (slot && slot != own && !LOAD_ACQUIRE(&page->owner[slot]) && gh_slot_lock(fd, slot)) {
            empty_slot(page, slot);
            set_owner(page, slot, st->me);
            return slot;
        }
    }
    return 0;
}

static bool publish_slot(struct gh_state *st, struct gh_account_page *page, unsigned slot) {
    unsigned locked = 0;
    while (locked < GH_ACCOUNT_GPUS && gh_lock(&st->mine[locked].lock))
        locked++;
    bool ours = locked == GH_ACCOUNT_GPUS;
    for (unsigned gpu = 0; ours && gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_mine *mine = &st->mine[gpu];
        /* empty_slot() has left the slot charged with nothing but these */
        mine->units = mine->cached = gh_cache_taken(LOAD_ACQUIRE(&page->free_cache[slot][gpu]));
        mine->cache_operations = 0;
        mine->tag = gh_tag(LOAD_ACQUIRE(&page->entry[slot][gpu].committed));
    }
    STORE_RELEASE(&st->slot, ours ? slot : 0);
    while (locked--)
        gh_unlock(&st->mine[locked].lock);
    return ours;
}

enum attached { ATTACHED, NO_LOCKS, NO_SLOT, TOO_LATE };

static enum attached attach(struct gh_state *st, struct gh_account_page *page) {
    int fd = gh_slot_locks_open(st);
    if (fd < 0)
        return NO_LOCKS;
    unsigned slot = gh_slot_take(st, page, fd);
    if (!slot) {
        gh_sweep(st);
        slot = gh_slot_take(st, page, fd);
    }
    if (!slot) {
        bool none = gh_slot_locks_work(fd);
        gh_slot_locks_close(fd);
        errno = ENOLCK;
        return none ? NO_SLOT : NO_LOCKS;
    }
    st->slot_lock = gh_slot_keep(st, fd, slot);
    if (!st->slot_lock) {
        gh_slot_locks_close(fd);
        return NO_LOCKS;
    }
    st->slot_fd = gh_slot_locks_keep(fd);
    return publish_slot(st, page, slot) ? ATTACHED : NO_LOCKS;
}

/* Takes our slot. It stays ours as long as we live, since the lock does. */
static enum attached attach_once(struct gh_state *st, struct gh_account_page *page) {
    if (LOAD_ACQUIRE(&st->slot))
        return ATTACHED;
    /* Children that were forked since the driver was opened have its open file, but would not have our lock. */
    if (atomic_load(&st->driver_opened))
        return TOO_LATE;
    if (!gh_lock(&st->attach))
        return NO_LOCKS;
    enum attached done = LOAD_ACQUIRE(&st->slot) ? ATTACHED : attach(st, page);
    gh_unlock(&st->attach);
    return done;
}

static enum attached attach_or_say(struct gh_state *st, struct gh_account_page *page) {
    errno = 0;
    enum attached done = attach_once(st, page);
    if (done == NO_LOCKS)
        gh_account_unusable(errno);
    else if (done == NO_SLOT)
        gh_say(GH_SAID_FULL, "gpu-hook: GH-308: the account page has no free slot: more than 1000 processes of this "
                             "container use the GPU; this one may not before some of them have ended\n");
    return done; /* TOO_LATE: cuInit has written the line */
}

bool gh_account_attach(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page || attach_or_say(st, page) != ATTACHED)
        return false;
    unsigned slot = LOAD_ACQUIRE(&st->slot);
    if (LOAD_ACQUIRE(&page->owner[slot]) != st->me) {
        set_owner(page, slot, st->me); /* a process wrote garbage; the slot's lock is still ours */
        gh_sweep(st);
    }
    return true;
}

bool gh_account_before_driver(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    if (page && attach_or_say(st, page) == NO_SLOT)
        return false;
    atomic_store(&st->driver_opened, true);
    return true;
}
