/* Reads the policy page, which says what this container may use. */
#ifndef GPU_HOOK_POLICY_H
#define GPU_HOOK_POLICY_H

#include "process/state.h"

struct gh_limit {
    uint64_t bytes; /* most device memory that the container may use on this GPU */
    uint64_t context_bytes;
    uint64_t request_bytes; /* what of it is always there; the rest may be lent. 0: all of it */
    uint32_t block_bytes;   /* in which the driver takes linear memory; 0: as asked */
    bool whole;             /* the container has the whole GPU: no limit */
};

/* True if there is a valid page. If not, a line was written to stderr. */
bool gh_policy_usable(struct gh_state *st);
/* The index of the granted GPU with this UUID ("GPU-..."). -1: not granted, or no valid page (a line was written). */
int gh_policy_find(struct gh_state *st, const char *uuid);
/* The present limit. False: no valid page; the caller refuses. */
bool gh_policy_limit(struct gh_state *st, unsigned gpu, struct gh_limit *out);
/* Waits while the container is suspended: then its memory is not on the GPU, which others may fill. */
void gh_policy_wait(struct gh_state *st);
/* The same before a call that is charged nothing, and may have memory come to the GPU all the same. */
void gh_policy_wait_here(void);
/* Seconds that an allocation waits for room; 0: it fails at once. */
uint32_t gh_policy_memory_wait(struct gh_state *st);
/* The record of a GPU, the number of GPUs and the container's class. False, with no line written: no valid page. */
bool gh_policy_gpu(struct gh_state *st, unsigned gpu, struct gh_gpu_policy *out, uint32_t *ngpus, uint32_t *class_);
/* True if the head of a page is valid. The fuzzer calls it, too. */
bool gh_policy_valid(const struct gh_policy_page *page);

#endif
