#include "gate/belief.h"

#include "pages/arithmetic.h"

#define EACH_SLOT(mask, i) \
    for (uint64_t left_ = (mask), i = 0; left_ && ((i = (uint64_t)__builtin_ctzll(left_)), 1); left_ &= left_ - 1)

void belief_forget(struct belief *b, unsigned slot) {
    b->room[slot] = (int64_t)BELIEF_ROOM;
    b->part[slot] = b->owed[slot] = 0;
    b->spent &= ~(1ull << slot);
}

static uint64_t weight_of(const struct gh_share *share) { return share->weight ? share->weight : 1; }

/* By weight. Those that want the GPU have what they are owed now. The others save up what of their own part these leave: so
 * those that rest by turns have no more, all together, than if they all wanted it. While a higher class has work, all of the
 * time is its own. */
static void owe(struct belief *b, const struct gh_gpu *gpu, unsigned me, uint64_t now) {
    struct gh_wanting w = gh_wanting(gpu, me, now);
    uint64_t own = weight_of(&gpu->share[me]), resting = 0, others = gpu->present & ~(1ull << me);
    EACH_SLOT (others & ~w.mask, i)
        resting += gpu->share[i].class_ > gpu->share[me].class_ ? 0 : weight_of(&gpu->share[i]);
    uint64_t rest = own * GH_PPM / w.weights - own * GH_PPM / (w.weights + resting);
    EACH_SLOT (others, i) {
        uint64_t weight = weight_of(&gpu->share[i]);
        if (gpu->share[i].class_ > gpu->share[me].class_)
            b->owed[i] = GH_PPM;
        else
            b->owed[i] = (uint32_t)(w.mask >> i & 1 ? weight * GH_PPM / w.weights : rest * weight / resting);
    }
}

/* Slices are equal among processes with work. Those who have used up what they are owed keep to it; a word of theirs takes
 * nothing from what the others are believed to have. */
static struct believed divide(struct belief *b, uint64_t mask, const uint8_t claimed[GH_SLOTS], uint64_t ours) {
    uint64_t left = GH_PPM, contexts = ours, claiming = 0, sum = 0, one = 0;
    EACH_SLOT (mask, i) {
        uint64_t part = claimed[i] * (uint64_t)GH_PPM / (ours + claimed[i]);
        b->part[i] = (uint32_t)min64(part, b->owed[i]);
        claiming += claimed[i] > 0;
        if (!(b->spent >> i & 1))
            contexts += claimed[i];
        else
            left -= min64(left, b->part[i]);
    }
    EACH_SLOT (mask, i) {
        if (!(b->spent >> i & 1))
            b->part[i] = (uint32_t)(claimed[i] * left / contexts);
        sum += b->part[i];
        one += min64(b->part[i], GH_PPM / (ours + claiming));
    }
    return (struct believed){(uint32_t)min64(sum, GH_PPM), (uint32_t)min64(one, GH_PPM)};
}

struct believed belief_look(struct belief *b, const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t elapsed,
                            bool busy, const uint8_t claimed[GH_SLOTS], uint32_t ours) {
    uint64_t others = gpu->present & ~(1ull << me);
    elapsed = min64(elapsed, GH_S);
    EACH_SLOT (others, i) {
        int64_t change = (int64_t)b->owed[i] - (busy ? (int64_t)b->part[i] : 0);
        b->room[i] += change * (int64_t)elapsed / (int64_t)GH_PPM;
        b->room[i] = b->room[i] > (int64_t)BELIEF_ROOM ? (int64_t)BELIEF_ROOM : b->room[i];
        if (b->room[i] <= 0)
            b->spent |= 1ull << i;
        else if (b->room[i] >= (int64_t)BELIEF_ROOM / 2)
            b->spent &= ~(1ull << i);
    }
    owe(b, gpu, me, now);
    return divide(b, others, claimed, ours);
}
