/* What is noted of an allocation in st->pointers, by which it is found again when it is freed. */
#ifndef GPU_HOOK_ALLOCATION_H
#define GPU_HOOK_ALLOCATION_H

#include "driver/cuda.h"
#include "driver/cuda_gpu.h"

/* GRAPHED: a graph's, charged with its pool. PAGE: of the GPU, how many ends of pieces of pools lie in it. */
enum kind { LINEAR = 1, POOLED, GRAPHED, ARRAY, MIPMAP, EXTERNAL, HANDLE, EXEC, CONTEXT, LIMIT, PAGE };

/* What an allocation is known by: device pointers and each kind of handle have ranges of their own. */
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

/* Whether memory at this location is the host's. */
static inline bool on_host(const CUmemLocation *l) { return l->type >= 2 && l->type <= 4; }

#endif
