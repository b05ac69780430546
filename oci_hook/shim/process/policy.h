/* Reads the policy page: what this container may use. */
#ifndef GPU_HOOK_POLICY_H
#define GPU_HOOK_POLICY_H

#include "process/state.h"

struct gh_limit {
    uint64_t bytes; /* of this GPU for this container */
    uint64_t context_bytes;
    bool whole; /* nothing is limited */
};

/* Whether there is a valid page; else a line was written. */
bool gh_policy_usable(struct gh_state *st);
/* The granted GPU of that UUID ("GPU-..."), or -1: not granted, or no valid page (then a line was written). */
int gh_policy_find(struct gh_state *st, const char *uuid);
/* The limit as it is now. False: no valid page; the caller refuses. */
bool gh_policy_limit(struct gh_state *st, unsigned gpu, struct gh_limit *out);
/* A GPU's whole record, and how many there are; false without a word when there is no valid page. */
bool gh_policy_gpu(struct gh_state *st, unsigned gpu, struct gh_gpu_policy *out, uint32_t *ngpus, uint32_t *class_);
/* Checks a page that was read from anywhere; used for the mapped page and by the fuzzer. */
bool gh_policy_valid(const struct gh_policy_page *page);

#endif
