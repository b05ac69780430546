/* Simulated libcuda: external memory: another API's file, such as a Vulkan allocation. It does not count. */
#define _GNU_SOURCE
#include "heap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct external {
    int fd;
    uint64_t size;
};

struct external_desc { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
};

struct external_buffer { /* CUDA_EXTERNAL_MEMORY_BUFFER_DESC */
    unsigned long long offset, size;
    unsigned flags, reserved[16];
};

API CUresult cuImportExternalMemory(struct external **out, const struct external_desc *desc) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !desc || desc->type != 1 || !desc->size) /* an opaque file descriptor */
        return CUDA_ERROR_INVALID_VALUE;
    if (fcntl(desc->handle.fd, F_GETFD) < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    struct external *e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *e = (struct external){desc->handle.fd, desc->size}; /* the driver owns the descriptor now */
    *out = e;
    return CUDA_SUCCESS;
}

API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, struct external *e, const struct external_buffer *desc) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !e || !desc || desc->offset % 4096 || desc->offset > e->size || desc->size > e->size - desc->offset)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t mapped = round_up(desc->size, 4096);
    void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, (off_t)desc->offset);
    if (at == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (uint64_t)(uintptr_t)at;
    return heap_note(
        (struct piece){.address = *out, .size = desc->size, .mapped = mapped, .ctx = ctx, .kind = IMPORTED});
}

API CUresult cuDestroyExternalMemory(struct external *e) {
    TRY(sim_ready());
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    close(e->fd);
    free(e);
    return CUDA_SUCCESS;
}
