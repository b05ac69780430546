/* Where the bytes of cuMemCreate's memory lie: in one file of the process, until the memory is exported; then in a piece
 * (piece.c), which counts once for all processes that hold it. No descriptor is kept for each. */
#ifndef GPU_HOOK_SIM_BACKING_H
#define GPU_HOOK_SIM_BACKING_H

#include "heap.h"

struct backing {
    uint64_t size;
    uint64_t offset;     /* in the process's file */
    unsigned file;       /* which of them: there is another after the program has closed one */
    int piece;           /* its number; -1: it is not exported */
    uint32_t generation; /* of the piece */
    void *kept;          /* a mapping of the piece, which keeps it in use */
};

/* Makes a backing, counted on the GPU. False: the GPU or the host is full. */
bool backing_make(struct gpu *gpu, uint64_t size, struct backing *out);
/* Makes a backing of what a descriptor of the GPU's file holds, another process's or ours. */
bool backing_adopt(struct gpu *gpu, int fd, struct backing *out);
/* It becomes a piece; the caller maps it again where it was mapped. */
bool backing_share(struct gpu *gpu, struct backing *b);
/* mmap at a fixed address. */
void *backing_map(struct gpu *gpu, const struct backing *b, void *at, uint64_t size, uint64_t offset, int protection);
/* A descriptor of the piece, an open file of its own; -1: there is none. */
int backing_open(struct gpu *gpu, const struct backing *b);
void backing_drop(struct gpu *gpu, struct backing *b);

#endif
