/* Which granted card a context or device is, and charges against it. */
#ifndef GPU_HOOK_CUDA_CARD_H
#define GPU_HOOK_CUDA_CARD_H

#include "account.h"
#include "cuda.h"
#include "policy.h"

#define NO_CARD (-1)    /* a card that is not granted, or nothing can be known: refuse */
#define NO_CONTEXT (-2) /* the driver itself will refuse: let it */

struct place {
    int card;
    unsigned context; /* 1 + its place in st->contexts, 0 not known */
};

struct place current_place(struct gh_state *st);
int card_of_device(struct gh_state *st, CUdevice device);

/* A reservation, between the decision and the driver's answer. */
struct charge {
    struct gh_state *st;
    struct place at;
    uint64_t units;
};

/* Reserve bytes on the current context's card. CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY. */
CUresult charge(struct charge *c, uint64_t bytes);
CUresult charge_at(struct charge *c, struct gh_state *st, struct place at, uint64_t bytes);
void uncharge(struct charge *c);

enum kind { LINEAR = 1 };

/* The driver's answer `r` to an allocation of `key`: keep the charge with it, or undo it. Returns r. */
CUresult settle_alloc(struct charge *c, CUresult r, uint64_t key, enum kind kind);

/* An allocation that is about to be freed; the pair of calls around the driver's. */
struct owed {
    struct gh_state *st;
    uint64_t key, value;
};
struct owed begin_free(uint64_t key);
CUresult end_free(struct owed *o, CUresult r);

/* What the container may have on a card, and what of that is free, in bytes. False: no valid page. */
bool card_memory(struct gh_state *st, int card, uint64_t *free, uint64_t *total, bool *whole);

#endif
