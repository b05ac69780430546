/* Charges for device memory: made before the driver is called, kept or undone according to its answer. */
#ifndef GPU_HOOK_CHARGE_H
#define GPU_HOOK_CHARGE_H

#include "account/account.h"
#include "driver/cuda_gpu.h"
#include "driver/real.h"
#include "process/note.h"

/* A charge made, while the driver has not answered yet. */
struct charge {
    struct gh_state *st;
    struct place at;
    uint64_t units;
};

/* The driver is asked for this much, with the program's other arguments, after a charge was refused. No GPU has it, and
 * there are no addresses for it. A driver looks at arguments, contexts and captures before it looks for memory, and an error of
 * its own is the program's answer. */
#define IMPOSSIBLE (1ull << 62)
/* That answer, given the driver's. A driver that lacks the function that was asked has said nothing of the arguments. */
static inline CUresult refused(CUresult asked) {
    return asked == CUDA_SUCCESS || asked == GH_MISSING ? CUDA_ERROR_OUT_OF_MEMORY : asked;
}
/* The same, of a call whose amount a driver may take for invalid. good: its answer for as much with good arguments, which
 * is asked for only then. */
#define REFUSED(asked, good) refused_for((asked), (asked) == CUDA_ERROR_INVALID_VALUE ? (good) : CUDA_SUCCESS)
static inline CUresult refused_for(CUresult asked, CUresult good) {
    return refused(asked == CUDA_ERROR_INVALID_VALUE && good == asked ? CUDA_SUCCESS : asked);
}

/* The driver had no room for memory that is within the limit. True: there may be some now, try again; else it takes too
 * long, nobody makes room, or the driver says that the GPU has as much, and has refused for another reason. It waits a
 * moment and tells the host, which moves containers that have more than their request. *waited: milliseconds, 0 at first. */
bool wait_for_room(struct gh_state *st, int gpu, uint64_t units, unsigned *waited);
/* The same with a charge, which it undoes, and the driver's answer. */
bool charge_again(struct charge *c, CUresult r, unsigned *waited);
/* Tells the host that this wait, of so many milliseconds, is over. wait_for_room does where it returns false. */
void end_wait(struct gh_state *st, int gpu, unsigned waited);
/* Charges, asks the driver, and does both again as long as room is made: the answer is in r, and the charge is made if that is
 * CUDA_SUCCESS. Where the charge is refused, the answer is what `refusing` says. */
#define CHARGE_AND_ASK(r, c, charging, asking, refusing)        \
    for (unsigned waited_ms = 0;;) {                            \
        if (((r) = (charging)))                                 \
            (r) = (refusing);                                   \
        else if (charge_again((c), (r) = (asking), &waited_ms)) \
            continue;                                           \
        break;                                                  \
    }

/* Charges bytes on the current context's GPU. CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY; then nothing is charged. */
CUresult charge(struct charge *c, uint64_t bytes);
/* The same for linear memory, which a driver takes in whole blocks. */
CUresult charge_linear(struct charge *c, uint64_t bytes);
CUresult charge_at(struct charge *c, struct gh_state *st, struct place at, uint64_t bytes);
/* Changes the charge to what the driver says that linear memory has become. */
CUresult recharge_linear(struct charge *c, uint64_t bytes);
void uncharge(struct charge *c);

/* Given the driver's answer `r`: notes the charge for `handle`, or undoes it. Returns r. */
CUresult finish_alloc(struct charge *c, CUresult r, enum kind kind, uint64_t handle);

/* An allocation that is about to be freed: begin_free before the driver's call, end_free with its answer. */
struct owed {
    struct gh_state *st;
    uint64_t key, value;
};
struct owed begin_free(enum kind kind, uint64_t handle);
CUresult end_free(struct owed *o, CUresult r);

/* Charges bytes on each of the container's GPUs; the note of such memory is MANAGED if they are several. */
CUresult charge_everywhere(struct charge *c, uint64_t bytes);
CUresult finish_everywhere(struct charge *c, CUresult r, uint64_t pointer);
/* Releases what a note says is charged. */
static inline void release_note(struct gh_state *st, uint64_t value) {
    unsigned last = gpu_of(value);
    for (unsigned gpu = kind_of(value) == MANAGED ? 0 : last; gpu <= last; gpu++)
        gh_release(st, gpu, units_of(value));
}

/* The limit on a GPU and how much of it is free, in bytes; whole: there is no limit. False: no valid page. */
bool gpu_memory(struct gh_state *st, int gpu, uint64_t *free, uint64_t *total, bool *whole);

#endif
