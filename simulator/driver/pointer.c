/* Simulated libcuda: what the driver says of an address. */
#define _GNU_SOURCE
#include "heap.h"

#include <string.h>

enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2 }; /* CU_MEMORYTYPE_... */
enum { SYNC_MEMOPS = 6 };                    /* CU_POINTER_ATTRIBUTE_... */

struct place { /* of an address: device memory, pinned host memory or neither */
    bool device, host;
    struct piece piece;
    struct host_range range;
};

static struct place place_of(CUdeviceptr address) {
    struct place p = {0};
    p.device = heap_holding(address, &p.piece);
    p.host = !p.device && host_range(address, &p.range);
    return p;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    TRY(sim_ready());
    struct place p = place_of(address);
    if (!p.device && !p.host)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = p.device ? p.piece.address : p.range.address;
    if (size)
        *size = p.device ? p.piece.size : p.range.bytes;
    return CUDA_SUCCESS;
}

/* The API before CUDA 3.2 has 32-bit addresses; no memory of a 64-bit program has one. */
API CUresult cuMemGetAddressRange(unsigned *base, unsigned *size, unsigned address) {
    (void)base, (void)size, (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* --- attributes: those of managed and pinned memory hold for device and host --- */

static CUresult number(void *data, uint64_t value, size_t bytes) {
    memcpy(data, &value, bytes); /* little endian, as all machines that CUDA runs on */
    return CUDA_SUCCESS;
}

static CUresult attribute_of(const struct place *p, void *data, int attribute, CUdeviceptr address) {
    const struct piece *m = &p->piece;
    bool managed = p->device && m->kind == MANAGED, mapped = p->device && m->kind == MAPPED;
    CUcontext ctx = p->device ? m->ctx : p->range.ctx;
    uint64_t base = p->device ? m->address : p->range.address, size = p->device ? m->size : p->range.bytes;
    switch (attribute) { /* CU_POINTER_ATTRIBUTE_... */
    case 1: return mapped ? CUDA_ERROR_INVALID_VALUE : number(data, (uintptr_t)ctx, sizeof ctx);
    case 2: return number(data, p->host ? HOST_MEMORY : DEVICE_MEMORY, 4);
    case 3: return number(data, address, 8);
    case 4: return p->host || managed ? number(data, address, 8) : CUDA_ERROR_INVALID_VALUE;
    case SYNC_MEMOPS: return number(data, 0, 4);
    case 7:
    case 20: return number(data, base, 8); /* BUFFER_ID, MEMORY_BLOCK_ID */
    case 8: return number(data, managed, 4);
    case 9: return number(data, (uint64_t)(p->device ? m->device : ctx ? ctx->device : 0), 4);
    case 10: return number(data, p->device && m->kind == DEVICE, 4); /* IS_LEGACY_CUDA_IPC_CAPABLE */
    case 11: return number(data, base, 8);
    case 12: return number(data, size, 8);
    case 13: return number(data, 1, 4);                                /* MAPPED */
    case 14: return number(data, mapped && m->exportable, 8);          /* ALLOWED_HANDLE_TYPES */
    case 15: return number(data, 0, 4);                                /* IS_GPU_DIRECT_RDMA_CAPABLE */
    case 16: return number(data, mapped ? (uint64_t)m->access : 3, 4); /* ACCESS_FLAGS */
    case 17: return number(data, (uintptr_t)(p->device ? m->pool : NULL), sizeof(CUmemoryPool));
    case 18: return number(data, size, 8);   /* MAPPING_SIZE */
    case 19: return number(data, base, 8);   /* MAPPING_BASE_ADDR */
    case 21: return number(data, 0, 4);      /* IS_HW_DECOMPRESS_CAPABLE */
    case 5: return CUDA_ERROR_NOT_SUPPORTED; /* P2P_TOKENS */
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    TRY(sim_ready());
    struct place p = place_of(address);
    return data && (p.device || p.host) ? attribute_of(&p, data, attribute, address) : CUDA_ERROR_INVALID_VALUE;
}

static size_t attribute_size(int attribute) {
    switch (attribute) {
    case 2:
    case 6:
    case 8:
    case 9:
    case 10:
    case 13:
    case 15:
    case 16:
    case 21: return 4;
    case 5: return 16;
    default: return 8;
    }
}

/* An attribute that an address does not have is 0 (its device -2, CU_DEVICE_INVALID), and the call succeeds. */
API CUresult cuPointerGetAttributes(unsigned n, const int *attributes, void **data, CUdeviceptr address) {
    TRY(sim_ready());
    if (!n || !attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        if (!data[i] || attributes[i] < 1 || attributes[i] > 21)
            return CUDA_ERROR_INVALID_VALUE;
    struct place p = place_of(address);
    for (unsigned i = 0; i < n; i++)
        if (!(p.device || p.host) || attribute_of(&p, data[i], attributes[i], address)) {
            memset(data[i], 0, attribute_size(attributes[i]));
            if (attributes[i] == 9)
                *(int *)data[i] = -2;
        }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
    TRY(sim_ready());
    struct place p = place_of(address);
    if (!value || attribute != SYNC_MEMOPS || !p.device)
        return CUDA_ERROR_INVALID_VALUE;
    return p.piece.kind == DEVICE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED; /* the order of copies here: always */
}
