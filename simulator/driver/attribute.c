/* Simulated libcuda: attributes of launches (CUlaunchAttribute), which streams and kernel nodes keep. They change nothing
 * here. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTES = 20, BYTES = 64 }; /* ids, and the size of a CUlaunchAttributeValue */

struct attributes {
    uint8_t value[ATTRIBUTES][BYTES];
};

CUresult attribute_get(const struct attributes *a, int id, void *out) {
    if (id < 1 || id >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (a)
        memcpy(out, a->value[id], BYTES);
    else
        memset(out, 0, BYTES);
    return CUDA_SUCCESS;
}

CUresult attribute_set(struct attributes **a, int id, const void *value) {
    if (id < 1 || id >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (!*a && !(*a = calloc(1, sizeof **a)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy((*a)->value[id], value, BYTES);
    return CUDA_SUCCESS;
}

struct attributes *attributes_copy(const struct attributes *a) {
    struct attributes *copy = a ? malloc(sizeof *copy) : NULL;
    if (copy)
        *copy = *a;
    return copy;
}

void attributes_free(struct attributes *a) { free(a); }

/* --- of streams: the window of accesses (1), how a wait waits (3), the priority (8), domains (9, 10) --- */

enum { PRIORITY = 8 };

static bool of_streams(int id) { return id == 1 || id == 3 || (id >= PRIORITY && id <= 10); }

static CUresult get(CUstream handle, int id, void *out) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!out || !of_streams(id))
        return CUDA_ERROR_INVALID_VALUE;
    TRY(attribute_get(s->attributes, id, out));
    if (id == PRIORITY)
        memcpy(out, &s->priority, sizeof s->priority);
    return CUDA_SUCCESS;
}

static CUresult set(CUstream handle, int id, const void *value) {
    struct stream *s;
    TRY(sim_stream(handle, &s));
    if (!value || !of_streams(id))
        return CUDA_ERROR_INVALID_VALUE;
    return attribute_set(&s->attributes, id, value);
}

static CUresult copy(CUstream to, CUstream from) {
    struct stream *a, *b;
    TRY(sim_stream(to, &a));
    TRY(sim_stream(from, &b));
    struct attributes *copied = attributes_copy(b->attributes);
    attributes_free(a->attributes);
    a->attributes = copied;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetAttribute(CUstream s, int id, void *out) { return get(s, id, out); }
API CUresult cuStreamGetAttribute_ptsz(CUstream s, int id, void *out) { return get(PER_THREAD(s), id, out); }
API CUresult cuStreamSetAttribute(CUstream s, int id, const void *value) { return set(s, id, value); }
API CUresult cuStreamSetAttribute_ptsz(CUstream s, int id, const void *value) { return set(PER_THREAD(s), id, value); }
API CUresult cuStreamCopyAttributes(CUstream to, CUstream from) { return copy(to, from); }
API CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from) { return copy(PER_THREAD(to), PER_THREAD(from)); }
