/* Entry in st->pointers for an allocation, a context or a pool: its key, and a value of one word. */
#ifndef GPU_HOOK_NOTE_H
#define GPU_HOOK_NOTE_H

#include <stdint.h>

/* The first are kinds of keys and of values, the others of keys only. */
enum kind {
    LINEAR = 1,
    POOLED,
    GRAPHED, /* memory of a graph, which is charged through its pool */
    ARRAY,   /* or mip-map */
    EXTERNAL,
    CONTEXT, /* what a context itself is charged */
    LIMIT,
    PLACE, /* a context's GPU and number */
    POOL,
    SHARED,  /* linear memory that others may keep: its charge is in a piece (memory/piece.h) */
    OPENED,  /* memory of another process, by an IPC handle: how often << 10 | its shared slot, in place of units */
    MANAGED, /* charged on several GPUs, from the first one in the policy page to the noted one */
    HANDLE = 16,
    EXEC,
    PAGE, /* a page of the GPU, with the number of pieces of pools that begin or end in it */
    GRAPH_POOL,
    STRANGE, /* memory/piece.h */
    LATE,    /* memory that a stream has yet to free: memory/late_free.h */
    ATTACHED /* to a context: how often cuCtxAttach has counted it up, in steps of 16, so that kind_of() is 0 */
};

/* The key of an allocation. Device pointers, and the handles of each kind, have separate ranges of keys. They are
 * addresses, of 57 bits at most, or small numbers. What a program makes up beyond that has no note: its key is 0. */
static inline uint64_t key_of(enum kind kind, uint64_t handle) {
    return handle >> 58 ? 0 : kind <= GRAPHED ? handle : handle ^ (uint64_t)kind << 58;
}

/* units:34 | GPU:4 | number of the context or pool that it belongs to:22, 0 none | kind:4 */
#define NOTE_OF_MOST ((1u << 22) - 1)
static inline uint64_t pack(uint64_t units, int gpu, unsigned of, enum kind kind) {
    return units << 30 | (uint64_t)gpu << 26 | (uint64_t)of << 4 | kind;
}
static inline uint64_t units_of(uint64_t value) { return value >> 30; }
static inline unsigned gpu_of(uint64_t value) { return value >> 26 & 15; }
static inline unsigned number_of(uint64_t value) { return value >> 4 & NOTE_OF_MOST; }
static inline enum kind kind_of(uint64_t value) { return (enum kind)(value & 15); }

static inline unsigned opened_slot(uint64_t value) { return units_of(value) & 1023; }
static inline uint64_t opened_times(uint64_t value) { return units_of(value) >> 10; }

#endif
