/* Shared by the two files of inflight. The gate's lock is held. */
#ifndef GPU_HOOK_INFLIGHT_TRACKS_H
#define GPU_HOOK_INFLIGHT_TRACKS_H

#include "gate/inflight.h"

#define EMPTY_SAMPLES 8u
#define EMPTY_MOST (3 * GH_US)
enum { EMPTY_UNKNOWN, EMPTY_RECORDED, EMPTY_KNOWN }; /* inflight.empty_state */

void inflight_give_marker(struct inflight *f, unsigned marker);
/* The marker is behind the track's newest commands. */
void inflight_link(struct inflight *f, unsigned track, unsigned marker);
/* The oldest marker of the track is done. False: it has none. */
bool inflight_first_done(struct inflight *f, unsigned track, uint64_t at, struct finished *out);
/* Time in which nothing of this process ran, between two times. */
uint64_t inflight_halted_for(const struct inflight *f, uint64_t since, uint64_t now);

#endif
