#include "account/account.h"

#include "account/free_cache.h"
#include "process/atomics.h"

static enum gh_reservation change(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                                  int64_t delta, uint64_t limit) {
    if (mine->cache_operations) {
        if (gh_free_cache_change(page, slot, gpu, mine, delta, limit))
            delta = 0;
        if (!--mine->cache_operations) {
            uint64_t idle = gh_free_cache_end(page, slot, gpu, mine);
            if (idle)
                gh_add(page, slot, gpu, mine, -(int64_t)idle, 0);
        }
    }
    return delta ? gh_add(page, slot, gpu, mine, delta, limit) : GH_RESERVED;
}

static enum gh_reservation change_charge(struct gh_state *st, unsigned gpu, int64_t delta, uint64_t limit) {
    for (int i = 0; i < 3 && gpu < GH_ACCOUNT_GPUS; i++) {
        struct gh_mine *mine = &st->mine[gpu];
        if (!gh_lock(&mine->lock))
            return GH_NO_ACCOUNT;
        unsigned slot = LOAD_ACQUIRE(&st->slot);
        struct gh_account_page *page = slot ? LOAD_ACQUIRE(&st->account) : NULL;
        bool ours = page && LOAD_ACQUIRE(&page->owner[slot]) == st->me;
        enum gh_reservation done = ours ? change(page, slot, gpu, mine, delta, limit) : GH_NO_ACCOUNT;
        gh_unlock(&mine->lock);
        if (ours)
            return done;
        if (!gh_account_attach(st)) /* it has no slot yet, or its owner word is garbage */
            return GH_NO_ACCOUNT;
    }
    return GH_NO_ACCOUNT;
}

enum gh_reservation gh_reserve(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t limit) {
    if (units > GH_VALUE_MAX)
        return GH_NO_ROOM;
    enum gh_reservation done = change_charge(st, gpu, (int64_t)units, limit);
    if (done == GH_NO_ROOM && units <= limit) {
        gh_sweep(st);
        done = change_charge(st, gpu, (int64_t)units, limit);
    }
    return done;
}

void gh_release(struct gh_state *st, unsigned gpu, uint64_t units) {
    if (units)
        change_charge(st, gpu, -(int64_t)units, 0);
}

uint64_t gh_total(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page || gpu >= GH_ACCOUNT_GPUS)
        return GH_VALUE_MAX;
    uint64_t total = gh_word_value(LOAD_ACQUIRE(&page->gpu[gpu].total)), more = LOAD_ACQUIRE(&page->gpu[gpu].surcharge);
    uint64_t idle = gh_free_cache_sum(page, gpu, gh_slots_taken(st, page, false));
    total = total > idle ? total - idle : 0;
    return more < GH_VALUE_MAX - total ? total + more : GH_VALUE_MAX;
}

uint64_t gh_own_units(struct gh_state *st, unsigned gpu) {
    return (st->mine[gpu].units - st->mine[gpu].cached) & GH_VALUE_MAX;
}

void gh_press(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    if (page)
        atomic_store(&st->pressure_seen[gpu], atomic_fetch_add(&page->gpu[gpu].pressure, 1) + 1);
}

bool gh_pressed(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    uint64_t now = page ? LOAD_ACQUIRE(&page->gpu[gpu].pressure) : 0;
    return now != atomic_exchange(&st->pressure_seen[gpu], now);
}

void gh_note_waiting(struct gh_state *st, unsigned gpu, uint64_t units) {
    struct gh_account_page *page = gh_account_page(st);
    if (page && gpu < GH_ACCOUNT_GPUS) {
        STORE_RELEASE(&page->gpu[gpu].waiting, units);
        atomic_fetch_add(&page->gpu[gpu].waits, 1);
    }
}

static bool any_fixed(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    uint64_t any = page ? 0 : 1;
    for (unsigned i = 0; page && i < GH_ACCOUNT_SLOTS / 64; i++)
        any |= LOAD_ACQUIRE(&page->fixed[i]);
    return any;
}

uint64_t gh_most_units(struct gh_state *st, const struct gh_limit *limit, bool fixed) {
    if (limit->whole)
        return GH_UNLIMITED;
    bool lent = limit->request_bytes && limit->request_bytes < limit->bytes;
    return (lent && (fixed || any_fixed(st)) ? limit->request_bytes : limit->bytes) >> GH_UNIT_SHIFT;
}

void gh_note_fixed(struct gh_state *st) {
    if (gh_account_attach(st)) {
        unsigned slot = LOAD_ACQUIRE(&st->slot);
        atomic_fetch_or(&LOAD_ACQUIRE(&st->account)->fixed[slot / 64], 1ull << slot % 64);
    }
}

void gh_count_contexts(struct gh_state *st, unsigned gpu, int more) {
    if (gpu < GH_ACCOUNT_GPUS && gh_account_attach(st))
        atomic_fetch_add(&LOAD_ACQUIRE(&st->account)->entry[LOAD_ACQUIRE(&st->slot)][gpu].contexts,
                         (uint64_t)(int64_t)more);
}
