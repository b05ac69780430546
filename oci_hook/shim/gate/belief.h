/* Part of the time that other containers are believed to have had while our commands ran. They say themselves how many
 * processes of theirs have work, so their word counts no further than what their weight is owed. Whatever they write, our
 * charges are at most that much too small, and those who share what is left lose nothing. Pure. */
#ifndef GPU_HOOK_BELIEF_H
#define GPU_HOOK_BELIEF_H

#include <stdbool.h>

#include "gate/decide.h"

#define BELIEF_ROOM (50 * GH_MS) /* most that a container can save up of what it is owed */

struct belief {
    int64_t room[GH_SLOTS];  /* ns that we may still believe that the container in that slot has beside us */
    uint32_t part[GH_SLOTS]; /* ppm of the time that we have believed it to have since the last look */
    uint32_t owed[GH_SLOTS]; /* ppm of the time that its weight was owed then */
    uint64_t spent; /* bit i: it has used up its room, and keeps to what it is owed until half is there again */
};

/* A container in that slot is another one from now on. */
void belief_forget(struct belief *b, unsigned slot);
/* At a look, `elapsed` after the last one; busy: our container had work in flight since. claimed: processes with work, by the
 * word of each container; ours: the same of our own. Returns what others are believed to have up to the next look. */
struct believed {
    uint32_t part; /* ppm of the time */
    uint32_t
        one; /* the same, if no container had more than one process with work: so it is over any longer time, since the
                      processes of a container share its window, and launch long commands one by one */
};
struct believed belief_look(struct belief *b, const struct gh_gpu *gpu, unsigned me, uint64_t now, uint64_t elapsed,
                            bool busy, const uint8_t claimed[GH_SLOTS], uint32_t ours);

#endif
