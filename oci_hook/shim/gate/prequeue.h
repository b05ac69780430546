/* Tier 0.5, on GPUs where `gpu-hook gpus --probe` found that streams can wait for a word in host memory: one command
 * more than the window allows is launched, behind a wait for such a word. So the GPU goes from one long command to the
 * next without a pause. When a higher class has work, a store to the word keeps the next command off the GPU, as the
 * window would have.
 *
 * The word belongs to the process, and only its threads change it: a word in another container's memory could block the
 * stream for ever. If those threads get no processor, one command runs that should not. At most one command waits. The
 * gate's lock is held, except for prequeue_put. */
#ifndef GPU_HOOK_PREQUEUE_H
#define GPU_HOOK_PREQUEUE_H

#include "driver/cuda.h"
#include "process/state.h"

#define PREQUEUES 8u

/* Words of a context, for which its streams wait. */
struct prequeue_words {
    CUcontext context; /* NULL: free */
    uint32_t *words;   /* NULL: not made yet */
    CUdeviceptr at;    /* their address on the GPU */
    bool without;      /* the driver refused them */
};
/* The words: not 0 lets the command pass; the number of the last command that passed. */
enum { PREQUEUE_OPEN, PREQUEUE_PASSED };

struct prequeue {
    struct prequeue_words of[PREQUEUES];
    const struct prequeue_words *newest; /* with the newest command behind its word */
    uint32_t number;                     /* of that command */
    uint64_t estimate;                   /* its GPU time */
    bool closed;
};

/* A command is behind the word, as far as is known. */
static inline bool prequeue_waits(const struct prequeue *p) {
    return p->newest && __atomic_load_n(&p->newest->words[PREQUEUE_PASSED], __ATOMIC_ACQUIRE) != p->number;
}
/* Number of commands that a closed word keeps off the GPU: 0 or 1. */
static inline unsigned prequeue_blocked(const struct prequeue *p) { return p->closed && prequeue_waits(p); }
/* Estimated GPU time of the command behind the word, open or closed; 0 for none. */
static inline uint64_t prequeue_pending(const struct prequeue *p) { return prequeue_waits(p) ? p->estimate : 0; }
/* A command waits behind an open word, which must be closed in time. */
static inline bool prequeue_armed(const struct prequeue *p) { return !p->closed && prequeue_waits(p); }

/* True if a command in that context could be put behind a word now. */
bool prequeue_free(struct prequeue *p, CUcontext context);
/* Before the launch, without the lock: what comes into the stream from now on is behind the word. */
void prequeue_put(struct prequeue *p, struct gh_lock *lock, CUcontext context, CUstream stream, uint64_t estimate);
void prequeue_close(struct prequeue *p, bool closed);
/* Before the context (NULL: every one) is destroyed: opens its word, so that nothing stays behind it. */
void prequeue_leave(struct prequeue *p, CUcontext context);
/* It has been destroyed. */
void prequeue_forget(struct prequeue *p, CUcontext context);

#endif
