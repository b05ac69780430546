#include "account/free_cache.h"

#include "process/atomics.h"

#define OPERATIONS 4096        /* served from the cache after one conflict on the total */
#define MOST_UNITS (64u << 11) /* a cache has at most 64 MiB */
#define MOST_PART 64           /* a cache has at most limit / MOST_PART */
#define PLENTY(limit) ((limit) - (limit) / 8)

/* Others only turn idle units into taken ones, so only the owner changes the sum. */
static uint64_t sum(uint64_t cache) { return (gh_cache_idle(cache) + gh_cache_taken(cache)) & GH_CACHE_MASK; }

static uint64_t counted(struct gh_account_page *page, unsigned gpu) {
    return gh_word_value(LOAD_ACQUIRE(&page->gpu[gpu].total)) + LOAD_ACQUIRE(&page->gpu[gpu].surcharge);
}

void gh_free_cache_begin(struct gh_account_page *page, unsigned gpu, struct gh_mine *mine, uint64_t used,
                         uint64_t limit) {
    if (used > PLENTY(limit))
        return;
    mine->cache_most = limit / MOST_PART < MOST_UNITS ? limit / MOST_PART : MOST_UNITS;
    mine->cache_operations = OPERATIONS;
    if (!LOAD_ACQUIRE(&page->gpu[gpu].cached))
        STORE_RELEASE(&page->gpu[gpu].cached, 1);
}

bool gh_free_cache_change(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                          int64_t delta, uint64_t limit) {
    _Atomic uint64_t *cache = &page->free_cache[slot][gpu];
    uint64_t w = LOAD_ACQUIRE(cache), idle = gh_cache_idle(w), units = (uint64_t)(delta < 0 ? -delta : delta);
    if (sum(w) != mine->cached) {
        gh_free_cache_restate(page, slot, gpu, mine);
        return false;
    }
    if (delta < 0 ? units > mine->cache_most || idle > mine->cache_most - units : units > idle)
        return false;
    if (delta > 0) { /* the limit may have been lowered, and others may use more */
        uint64_t used = counted(page, gpu);
        if (used > PLENTY(limit))
            mine->cache_operations = 1;
        if (used > limit)
            return false;
    }
    if (!CAS_ACQ_REL(cache, &w, gh_cache_word(idle - (uint64_t)delta, gh_cache_taken(w))))
        return false;
    mine->cached = (mine->cached - (uint64_t)delta) & GH_CACHE_MASK;
    return true;
}

uint64_t gh_free_cache_end(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine) {
    uint64_t w = LOAD_ACQUIRE(&page->free_cache[slot][gpu]), idle = gh_cache_idle(w);
    mine->cache_operations = 0;
    if (sum(w) != mine->cached || !idle ||
        !CAS_ACQ_REL(&page->free_cache[slot][gpu], &w, gh_cache_word(0, gh_cache_taken(w))))
        return 0;
    mine->cached = (mine->cached - idle) & GH_CACHE_MASK;
    return idle;
}

void gh_free_cache_restate(struct gh_account_page *page, unsigned slot, unsigned gpu, const struct gh_mine *mine) {
    uint64_t w = LOAD_ACQUIRE(&page->free_cache[slot][gpu]);
    if (sum(w) != mine->cached)
        STORE_RELEASE(&page->free_cache[slot][gpu], gh_cache_word(0, mine->cached));
    else if (gh_cache_idle(w))
        STORE_RELEASE(&page->gpu[gpu].cached, 1);
}

uint64_t gh_free_cache_close(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    _Atomic uint64_t *cache = &page->free_cache[slot][gpu];
    uint64_t w = LOAD_ACQUIRE(cache);
    for (int i = 0; i < 100 && gh_cache_idle(w); i++) /* fails once if a process takes, or if one writes garbage */
        if (CAS_ACQ_REL(cache, &w, gh_cache_word(0, gh_cache_taken(w))))
            break;
    return gh_cache_taken(w);
}

void gh_free_cache_take_all(struct gh_account_page *page, unsigned gpu) {
    if (!LOAD_ACQUIRE(&page->gpu[gpu].cached))
        return;
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++) {
        _Atomic uint64_t *cache = &page->free_cache[slot][gpu];
        uint64_t w = LOAD_ACQUIRE(&page->owner[slot]) ? LOAD_ACQUIRE(cache) : 0;
        for (int i = 0; i < 100 && gh_cache_idle(w); i++) /* each failure means that the owner has changed it */
            if (CAS_ACQ_REL(cache, &w, gh_cache_word(0, sum(w))))
                break;
    }
}

uint64_t gh_free_cache_sum(struct gh_account_page *page, unsigned gpu, const _Atomic uint64_t *slots) {
    uint64_t all = 0;
    if (LOAD_ACQUIRE(&page->gpu[gpu].cached))
        for (unsigned first = 0; first < GH_ACCOUNT_SLOTS; first += 64)
            for (uint64_t left = LOAD_ACQUIRE(&slots[first / 64]); left; left &= left - 1)
                all += gh_cache_idle(LOAD_ACQUIRE(&page->free_cache[first + (unsigned)__builtin_ctzll(left)][gpu]));
    return all;
}
