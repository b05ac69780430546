/* Simulated libcuda: tensor maps (GPUs of compute capability 9.0). The 128 bytes of a map are a driver's own; here they
 * hold only the address, which is all that can change later. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

enum { FEWEST = 1, MOST = 5, TYPES = 16 };

struct map { /* CUtensorMap, aligned to 64 bytes */
    uint64_t address, dims[MOST];
    uint32_t type, rank, kind;
    uint8_t rest[68];
};
_Static_assert(sizeof(struct map) == 128, "CUtensorMap");

static CUresult encode(struct map *out, unsigned kind, int type, uint32_t rank, const void *address,
                       const uint64_t *dims, const uint64_t *strides, const uint32_t *elements) {
    TRY(sim_ready());
    if (!out || (uintptr_t)out % 64 || type < 0 || type >= TYPES || rank < FEWEST || rank > MOST ||
        (uintptr_t)address % 16 || !dims || (rank > 1 && !strides) || !elements)
        return CUDA_ERROR_INVALID_VALUE;
    struct map m = {.address = (uintptr_t)address, .type = (uint32_t)type, .rank = rank, .kind = kind};
    for (uint32_t i = 0; i < rank; i++) {
        if (!dims[i] || dims[i] > 1ull << 32 || !elements[i] || elements[i] > 8)
            return CUDA_ERROR_INVALID_VALUE;
        if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40))
            return CUDA_ERROR_INVALID_VALUE;
        m.dims[i] = dims[i];
    }
    memcpy(out, &m, sizeof m);
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeTiled(struct map *out, int type, uint32_t rank, void *address, const uint64_t *dims,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *elements,
                                    int interleave, int swizzle, int promotion, int fill) {
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    for (uint32_t i = 0; box && i < rank && i < MOST; i++)
        if (!box[i] || box[i] > 256)
            return CUDA_ERROR_INVALID_VALUE;
    return box ? encode(out, 0, type, rank, address, dims, strides, elements) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuTensorMapEncodeIm2col(struct map *out, int type, uint32_t rank, void *address, const uint64_t *dims,
                                     const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                                     uint32_t pixels, const uint32_t *elements, int interleave, int swizzle,
                                     int promotion, int fill) {
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (rank < 3 || !lower || !upper || channels > 256 || pixels > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    return encode(out, 1, type, rank, address, dims, strides, elements);
}

API CUresult cuTensorMapReplaceAddress(struct map *map, void *address) {
    TRY(sim_ready());
    if (!map || (uintptr_t)map % 64 || (uintptr_t)address % 16)
        return CUDA_ERROR_INVALID_VALUE;
    map->address = (uintptr_t)address;
    return CUDA_SUCCESS;
}
