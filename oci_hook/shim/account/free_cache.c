#include "account/free_cache.h"

#include "process/atomics.h"

/* from one meeting on the total; then the total is asked again whether others are at it */
#define OPERATIONS 4096
#define MOST_UNITS (64u << 11) /* 64 MiB, */
#define MOST_PART 64           /* and no more than this part of the limit */
#define PLENTY(limit) ((limit) - (limit) / 8)

/* Others change the word only by making what is idle taken, so the sum is ours alone to change. */
static uint64_t sum(uint64_t spare) { return (gh_idle(spare) + gh_taken(spare)) & GH_SPARE_MASK; }

static uint64_t counted(struct gh_account_page *page, unsigned gpu) {
    return gh_word_value(LOAD(&page->gpu[gpu].total)) + LOAD(&page->gpu[gpu].surcharge);
}

void gh_spare_begin(struct gh_account_page *page, unsigned gpu, struct gh_mine *mine, uint64_t used, uint64_t limit) {
    if (used > PLENTY(limit))
        return;
    mine->most = limit / MOST_PART < MOST_UNITS ? limit / MOST_PART : MOST_UNITS;
    mine->keeps = OPERATIONS;
    if (!LOAD(&page->gpu[gpu].lent))
        STORE(&page->gpu[gpu].lent, 1);
}

bool gh_spare_do(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine, int64_t delta,
                 uint64_t limit) {
    _Atomic uint64_t *spare = &page->spare[slot][gpu];
    uint64_t w = LOAD(spare), idle = gh_idle(w), units = (uint64_t)(delta < 0 ? -delta : delta);
    if (sum(w) != mine->lent) {
        gh_spare_restate(page, slot, gpu, mine);
        return false;
    }
    if (delta < 0 ? units > mine->most || idle > mine->most - units : units > idle)
        return false;
    if (delta > 0) { /* the limit may be lower than it was, and the room less */
        uint64_t used = counted(page, gpu);
        if (used > PLENTY(limit))
            mine->keeps = 1;
        if (used > limit)
            return false;
    }
    if (!CAS(spare, &w, gh_spare(idle - (uint64_t)delta, gh_taken(w))))
        return false;
    mine->lent = (mine->lent - (uint64_t)delta) & GH_SPARE_MASK;
    return true;
}

uint64_t gh_spare_end(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine) {
    uint64_t w = LOAD(&page->spare[slot][gpu]), idle = gh_idle(w);
    mine->keeps = 0;
    if (sum(w) != mine->lent || !idle || !CAS(&page->spare[slot][gpu], &w, gh_spare(0, gh_taken(w))))
        return 0;
    mine->lent = (mine->lent - idle) & GH_SPARE_MASK;
    return idle;
}

void gh_spare_restate(struct gh_account_page *page, unsigned slot, unsigned gpu, const struct gh_mine *mine) {
    uint64_t w = LOAD(&page->spare[slot][gpu]);
    if (sum(w) != mine->lent)
        STORE(&page->spare[slot][gpu], gh_spare(0, mine->lent));
    else if (gh_idle(w))
        STORE(&page->gpu[gpu].lent, 1);
}

uint64_t gh_spare_settle(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    _Atomic uint64_t *spare = &page->spare[slot][gpu];
    uint64_t w = LOAD(spare);
    for (int i = 0; i < 100 && gh_idle(w); i++) /* fails once, against one who takes; oftener if someone scribbles */
        if (CAS(spare, &w, gh_spare(0, gh_taken(w))))
            break;
    return gh_taken(w);
}

void gh_spare_take(struct gh_account_page *page, unsigned gpu) {
    if (!LOAD(&page->gpu[gpu].lent))
        return;
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++) {
        _Atomic uint64_t *spare = &page->spare[slot][gpu];
        uint64_t w = LOAD(&page->owner[slot]) ? LOAD(spare) : 0;
        for (int i = 0; i < 100 && gh_idle(w); i++) /* each failure is its owner's success */
            if (CAS(spare, &w, gh_spare(0, sum(w))))
                break;
    }
}

uint64_t gh_spare_sum(struct gh_account_page *page, unsigned gpu) {
    uint64_t all = 0;
    if (LOAD(&page->gpu[gpu].lent))
        for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
            if (LOAD(&page->owner[slot]))
                all += gh_idle(LOAD(&page->spare[slot][gpu]));
    return all;
}
