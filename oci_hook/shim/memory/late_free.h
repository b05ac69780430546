/* Memory that is no pool's, and that a stream frees when it gets there: charged until then. */
#ifndef GPU_HOOK_LATE_FREE_H
#define GPU_HOOK_LATE_FREE_H

#include "driver/cuda.h"
#include "process/state.h"

/* The stream is about to free what this note says. False: the driver cannot tell when. */
bool free_later(struct gh_state *st, CUstream stream, uint64_t value);
/* Releases what has been freed. True: there was some. */
bool late_reclaim(struct gh_state *st);

#endif
