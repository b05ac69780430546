#define _GNU_SOURCE
#include "account/shared_slot.h"

#include "account/account.h"
#include "account/slot_lock.h"
#include "process/atomics.h"

#define MOST (GH_ACCOUNT_SLOTS / 2) /* slots in use, beyond which there are none for shared memory */

static bool crowded(struct gh_state *st, struct gh_account_page *page) {
    const _Atomic uint64_t *taken = gh_slots_taken(st, page, false);
    unsigned n = 0;
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS / 64; i++)
        n += (unsigned)__builtin_popcountll(LOAD_ACQUIRE(&taken[i]));
    return n >= MOST;
}

/* A mark is never 0. */
static uint16_t mark_of(uint64_t known_by) { return (uint16_t)(known_by ^ known_by >> 16) | 1; }

/* We are the slot's one writer until its lock is one for reading. */
static bool charge(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t units, uint64_t known_by) {
    uint64_t taken = gh_cache_taken(LOAD_ACQUIRE(&page->free_cache[slot][gpu]));
    struct gh_mine mine = {.units = taken, .tag = gh_tag(LOAD_ACQUIRE(&page->entry[slot][gpu].committed))};
    if (gh_add(page, slot, gpu, &mine, (int64_t)units, GH_UNLIMITED) != GH_RESERVED)
        return false;
    STORE_RELEASE(&page->entry[slot][0].contexts, known_by);
    STORE_RELEASE(&page->shared[slot], mark_of(known_by));
    return true;
}

unsigned gh_shared_make(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t known_by) {
    struct gh_account_page *page = gh_account_attach(st) ? gh_account_page(st) : NULL;
    if (!page || gpu >= GH_ACCOUNT_GPUS || crowded(st, page) || !gh_lock(&st->shared_lock))
        return 0;
    int fd = gh_slot_locks_file(st);
    unsigned slot = fd < 0 ? 0 : gh_slot_take(st, page, fd);
    if (slot && !charge(page, slot, gpu, units, known_by)) {
        gh_slot_unlock(fd, slot); /* the next sweep clears it */
        slot = 0;
    }
    if (slot && !(st->shared_kept[slot] = gh_slot_share(st, fd, slot)))
        slot = 0; /* the same */
    if (slot)
        st->shared_held[slot] = 1;
    gh_unlock(&st->shared_lock);
    if (slot)
        gh_release(st, gpu, units);
    return slot;
}

static bool is_known_by(struct gh_account_page *page, unsigned slot, uint64_t known_by) {
    return LOAD_ACQUIRE(&page->shared[slot]) == mark_of(known_by) &&
           LOAD_ACQUIRE(&page->entry[slot][0].contexts) == known_by;
}

/* With the lock held. What the slot is known by is looked at again once nobody can clear it. */
static bool hold(struct gh_state *st, struct gh_account_page *page, unsigned slot, uint64_t known_by) {
    int fd = gh_slot_locks_file(st);
    if (!st->shared_held[slot]) {
        void *kept = gh_slot_share(st, fd, slot);
        if (!kept)
            return false;
        if (!is_known_by(page, slot, known_by)) {
            gh_slot_unshare(fd, slot, kept);
            return false;
        }
        st->shared_kept[slot] = kept;
    }
    st->shared_held[slot]++;
    return true;
}

unsigned gh_shared_hold(struct gh_state *st, uint64_t known_by) {
    struct gh_account_page *page = gh_account_page(st);
    unsigned held = 0;
    if (!page || !gh_lock(&st->shared_lock))
        return 0;
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS && !held; slot++)
        if (is_known_by(page, slot, known_by) && hold(st, page, slot, known_by))
            held = slot;
    gh_unlock(&st->shared_lock);
    return held;
}

void gh_shared_let_go(struct gh_state *st, unsigned slot) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page || !slot || !gh_lock(&st->shared_lock))
        return;
    bool last = st->shared_held[slot] && !--st->shared_held[slot];
    if (last) {
        int fd = gh_slot_locks_file(st);
        gh_slot_unshare(fd, slot, st->shared_kept[slot]);
        gh_slot_clear(page, fd, slot);
    }
    gh_unlock(&st->shared_lock);
}
