/* The note of an allocation in st->pointers, by which its charge is found when it is freed. */
#ifndef GPU_HOOK_ALLOCATION_H
#define GPU_HOOK_ALLOCATION_H

#include "driver/cuda.h"
#include "driver/cuda_gpu.h"

/* GRAPHED: memory of a graph, which is charged through its pool. PAGE: a page of the GPU, with the number of pieces of
 * pools that begin or end in it. */
enum kind { LINEAR = 1, POOLED, GRAPHED, ARRAY, MIPMAP, EXTERNAL, HANDLE, EXEC, CONTEXT, LIMIT, PAGE };

/* The key of an allocation. Device pointers, and the handles of each kind, have separate ranges of keys. */
static inline uint64_t key_of(enum kind kind, uint64_t handle) {
    return kind <= GRAPHED ? handle : handle ^ (uint64_t)kind << 58;
}

/* units:34 | GPU:4 | context or pool:10 | kind:4 */
static inline uint64_t pack(uint64_t units, int gpu, unsigned of, enum kind kind) {
    return units << 18 | (uint64_t)gpu << 14 | (uint64_t)of << 4 | kind;
}
static inline uint64_t units_of(uint64_t value) { return value >> 18; }
static inline unsigned gpu_of(uint64_t value) { return value >> 14 & 15; }
static inline unsigned context_of(uint64_t value) { return value >> 4 & 0x3ff; }
static inline enum kind kind_of(uint64_t value) { return (enum kind)(value & 15); }

/* Whether memory at this location is host memory. */
static inline bool on_host(const CUmemLocation *l) { return l->type >= 2 && l->type <= 4; }

#endif
