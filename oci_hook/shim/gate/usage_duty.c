/* Saturation is learned while nobody else has work: only then are gaps the tenant's own. */
#include "gate/usage.h"
#include "pages/arithmetic.h"
#include "process/atomics.h"

#define OBSERVE_EVERY (2 * GH_MS)
#define ASKED_STEP (100 * GH_MS)
#define ASKED_MORE (GH_PPM / 16)
#define SHORT_BURST (2 * GH_MS) /* about a time slice */

void usage_count(struct usage *u, uint64_t now, uint64_t running, bool full) {
    uint64_t charge = WORD_LOAD_RELAXED(&u->head->charged) + running;
    if (usage_clear_since(u, u->counted_at)) {
        u->clear += now - u->counted_at;
        /* Time in which the next launch waits for the tenant's window counts as used: such gaps are not its own. The
         * charge may have fallen, if what ran was estimated to run for longer. */
        u->clear_charged += full ? now - u->counted_at : charge - u->counted_charge;
    }
    u->counted_at = now;
    u->counted_charge = charge;
}

static void restart(struct usage *u) {
    u->tenure_clear = u->clear;
    u->tenure_charged = u->clear_charged;
    u->unsure = false;
}

static void observe(struct usage *u, bool idle) {
    uint64_t until = idle ? u->clear_at_idle : u->clear, charged = idle ? u->charged_at_idle : u->clear_charged;
    if (until > u->tenure_clear && !u->unsure) {
        int64_t had = (int64_t)(charged - u->tenure_charged);
        uint64_t pending = had > 0 ? (uint64_t)had : 0;
        uint32_t duty = gh_saturation(WORD_LOAD_RELAXED(&u->head->duty), pending, until - u->tenure_clear);
        WORD_STORE_RELEASE(&u->head->duty, duty);
        WORD_STORE_RELEASE(&u->head->saturated, gh_saturated(WORD_LOAD_RELAXED(&u->head->saturated), duty));
    }
    restart(u);
}

void usage_tenure_begin(struct usage *u) {
    if (!u->tenure)
        restart(u);
    u->tenure = true;
}

void usage_tenure_end(struct usage *u, bool idle) {
    observe(u, idle);
    u->tenure = false;
}

void usage_tenure_goes_on(struct usage *u) {
    if (u->tenure && u->clear > u->tenure_clear + OBSERVE_EVERY)
        observe(u, false);
}

void usage_idle(struct usage *u) {
    u->clear_at_idle = u->clear;
    u->charged_at_idle = u->clear_charged;
}

static uint32_t part_of(uint64_t sum, uint64_t before, uint64_t length) {
    return (uint32_t)clamp64(mul64(age64(sum, before), GH_PPM) / length, 1, GH_PPM);
}

static uint64_t held_for_all(const struct usage *u) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < GH_SLOTS; i++)
        sum += WORD_LOAD_RELAXED(&u->head->held_for[i]);
    return sum;
}

uint64_t usage_burst(struct usage *u) {
    struct gh_slot_head *h = u->head;
    uint64_t charged = usage_charged(u), before = WORD_LOAD_RELAXED(&h->burst_charged);
    uint64_t burst = WORD_LOAD_RELAXED(&h->burst);
    if (before)
        burst = burst - burst / 4 + age64(charged, before) / 4;
    WORD_STORE_RELEASE(&h->burst, burst);
    WORD_STORE_RELEASE(&h->burst_charged, charged);
    return burst;
}

void usage_asked(struct usage *u, uint64_t now) {
    struct gh_slot_head *h = u->head;
    uint64_t begin = WORD_LOAD_RELAXED(&h->asked_at), length = age64(now, begin), used = usage_charged(u);
    uint64_t wanted = WORD_LOAD_RELAXED(&h->wanted);
    if (length < ASKED_STEP)
        return;
    uint64_t held = held_for_all(u);
    if (begin) {
        uint32_t duty = part_of(used, h->used, length);
        uint64_t for_others = min64(age64(held, WORD_LOAD_RELAXED(&h->asked_held)), length - 1);
        bool short_ = WORD_LOAD_RELAXED(&h->burst) <= SHORT_BURST;
        WORD_STORE_RELEASE(&h->want,
                           short_ ? part_of(wanted, h->asked + for_others, length - for_others) : (uint32_t)GH_PPM);
        if (duty > WORD_LOAD_RELAXED(&h->duty) + ASKED_MORE)
            WORD_STORE_RELEASE(&h->duty, duty);
    }
    WORD_STORE_RELEASE(&h->asked, wanted);
    WORD_STORE_RELEASE(&h->used, used);
    WORD_STORE_RELEASE(&h->asked_held, held);
    WORD_STORE_RELEASE(&h->asked_at, now);
}
