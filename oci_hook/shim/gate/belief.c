#include "gate/belief.h"

#include "pages/arithmetic.h"

#define EACH_SLOT(mask, i) \
    for (uint64_t left_ = (mask), i = 0; left_ && ((i = (uint64_t)__builtin_ctzll(left_)), 1); left_ &= left_ - 1)

void belief_forget(struct belief *b, unsigned slot) {
    b->room[slot] = (int64_t)BELIEF_ROOM;
    b->part[slot] = b->owed[slot] = 0;
}

static uint64_t weight_of(const struct gh_share *share) { return share->weight ? share->weight : 1; }

/* By weight, among those of our class that want the GPU. While a higher class has work, all of the time is its own. */
static uint32_t owed_to(const struct gh_gpu *gpu, unsigned me, unsigned i, const struct gh_wanting *w) {
    if (gpu->share[i].class_ > gpu->share[me].class_)
        return GH_PPM;
    uint64_t own = weight_of(&gpu->share[i]), all = w->weights + (w->mask >> i & 1 ? 0 : own);
    return (uint32_t)(own * GH_PPM / all);
}

/* Slices are equal among processes with work. Those who have used up what they are owed keep to it; a word of theirs takes
 * nothing from what the others are believed to have. */
static uint32_t divide(struct belief *b, uint64_t mask, const uint8_t claimed[GH_SLOTS], uint64_t ours) {
    uint64_t left = GH_PPM, contexts = ours, sum = 0;
    EACH_SLOT (mask, i) {
        uint64_t part = claimed[i] * (uint64_t)GH_PPM / (ours + claimed[i]);
        b->part[i] = (uint32_t)min64(part, b->owed[i]);
        if (b->room[i] > 0)
            contexts += claimed[i];
        else
            left -= min64(left, b->part[i]);
    }
    EACH_SLOT (mask, i) {
        if (b->room[i] > 0)
            b->part[i] = (uint32_t)(claimed[i] * left / contexts);
        sum += b->part[i];
    }
    return (uint32_t)min64(sum, GH_PPM);
}

uint32_t belief_look(struct belief *b, const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t elapsed, bool busy,
                     const uint8_t claimed[GH_SLOTS], uint32_t ours) {
    struct gh_wanting w = gh_wanting(gpu, me, now);
    uint64_t others = gpu->present & ~(1ull << me);
    elapsed = min64(elapsed, GH_S);
    EACH_SLOT (others, i) {
        int64_t change = (int64_t)b->owed[i] - (busy ? (int64_t)b->part[i] : 0);
        b->room[i] += change * (int64_t)elapsed / (int64_t)GH_PPM;
        b->room[i] = b->room[i] > (int64_t)BELIEF_ROOM ? (int64_t)BELIEF_ROOM : b->room[i];
        b->owed[i] = owed_to(gpu, me, (unsigned)i, &w);
    }
    return divide(b, others, claimed, ours);
}
