#include "account/operation.h"

#include "account/free_cache.h"
#include "process/atomics.h"

#define TRIES 100000 /* of a compare-and-swap; each failure means that another process succeeded: never reached */
#define PAUSES 48    /* pause instructions after the first failure; twice and four times as many after the next */

static bool carries(uint64_t total, unsigned slot, uint64_t tag) {
    return gh_word_slot(total) == slot && gh_tag(total) == tag;
}

bool gh_took_effect(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t tag) {
    /* A process overwrites the total only after it has acknowledged the operation there: so read the total first, then
     * the ack. */
    uint64_t w = LOAD_ACQUIRE(&page->gpu[gpu].total);
    return carries(w, slot, tag) || LOAD_ACQUIRE(&page->entry[slot][gpu].ack) == tag;
}

/* If the compare-and-swap fails, a delayed process acknowledged an earlier operation: try again. */
void gh_acknowledge(struct gh_account_page *page, unsigned gpu, uint64_t w, unsigned me) {
    unsigned slot = (unsigned)gh_word_slot(w);
    if (!slot || slot == me)
        return; /* an owner commits each operation before it begins the next */
    struct gh_account_entry *e = &page->entry[slot][gpu];
    if (gh_tag(LOAD_ACQUIRE(&e->committed)) == gh_tag(w))
        return;
    uint64_t was = LOAD_ACQUIRE(&e->ack);
    for (int i = 0; i < TRIES && was != gh_tag(w) && LOAD_ACQUIRE(&page->gpu[gpu].total) == w; i++)
        if (CAS_ACQ_REL(&e->ack, &was, gh_tag(w)))
            return;
}

/* The next tag. Tags wrap, so skip those that the total or the ack still hold for this slot; 0 is never used. */
static uint64_t next_tag(uint64_t total, uint64_t ack, unsigned slot, uint64_t tag) {
    do {
        tag = (tag + 1) & GH_TAG_MASK;
    } while (!tag || carries(total, slot, tag) || ack == tag);
    return tag;
}

enum gh_reservation gh_add(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                           int64_t delta, uint64_t limit) {
    struct gh_account_entry *e = &page->entry[slot][gpu];
    _Atomic uint64_t *total = &page->gpu[gpu].total;
    uint64_t more = delta > 0 && limit < GH_UNLIMITED ? LOAD_ACQUIRE(&page->gpu[gpu].surcharge) : 0;
    uint64_t w = LOAD_ACQUIRE(total), tag = next_tag(w, LOAD_ACQUIRE(&e->ack), slot, mine->tag);
    enum gh_reservation done = GH_NO_ACCOUNT;
    STORE_RELEASE(&e->announce, (uint64_t)delta << GH_TAG_BITS | tag);
    for (int i = 0; i < TRIES; i++) {
        int64_t value = (int64_t)gh_word_value(w) + delta;
        if (value < 0)
            value = 0; /* a process has written garbage; the next sweep repairs it */
        if (delta > 0 && ((uint64_t)value > limit || more > limit - (uint64_t)value)) {
            done = GH_NO_ROOM;
            break;
        }
        gh_acknowledge(page, gpu, w, slot);
        if (CAS_ACQ_REL(total, &w, gh_word((uint64_t)value, slot, tag))) {
            done = GH_RESERVED;
            mine->units += (uint64_t)delta;
            break;
        }
        /* A process on another core writes the same word. While the word is in its cache it does many operations
         * quickly; pausing costs both processes less than taking the cache line back at once. */
        if (delta > 0)
            gh_free_cache_begin(page, gpu, mine, (uint64_t)value + more, limit);
        for (int k = 0; k < PAUSES << (i < 2 ? i : 2); k++)
            gh_relax();
        w = LOAD_ACQUIRE(total);
    }
    mine->tag = tag;
    STORE_RELEASE(&e->committed, mine->units << GH_TAG_BITS | tag);
    return done;
}

static uint64_t charged(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t *cache) {
    struct gh_account_entry *e = &page->entry[slot][gpu];
    uint64_t c = LOAD_ACQUIRE(&e->committed);
    for (int i = 0; i < 1000; i++) {
        uint64_t a = LOAD_ACQUIRE(&e->announce), again;
        bool counts = gh_tag(a) != gh_tag(c) && gh_took_effect(page, slot, gpu, gh_tag(a));
        *cache = LOAD_ACQUIRE(&page->free_cache[slot][gpu]);
        if ((again = LOAD_ACQUIRE(&e->committed)) == c)
            return (gh_committed_units(c) + (counts ? (uint64_t)gh_delta(a) : 0) - gh_cache_taken(*cache)) &
                   GH_VALUE_MAX;
        c = again;
    }
    return (gh_committed_units(c) - gh_cache_taken(*cache)) & GH_VALUE_MAX;
}

uint64_t gh_account_slot_charged(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    uint64_t cache;
    return charged(page, slot, gpu, &cache);
}

uint64_t gh_account_slot_used(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    uint64_t cache, units = charged(page, slot, gpu, &cache);
    return units > gh_cache_idle(cache) ? units - gh_cache_idle(cache) : 0;
}
