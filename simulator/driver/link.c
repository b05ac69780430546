/* Simulated libcuda: the linker. What it makes is the text of its inputs one behind the other, as kernels need no code. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_MAGIC 0x6c696e6b2d73696dull
enum { INPUTS = 6, PTX = 1 };                                          /* CU_JIT_INPUT_... */
enum { INFO_LOG = 3, INFO_BYTES = 4, ERROR_LOG = 5, ERROR_BYTES = 6 }; /* CU_JIT_..._LOG_BUFFER, _SIZE_BYTES */

struct link {
    uint64_t magic;
    char *text;
    size_t bytes; /* without the NUL behind it */
};

static CUresult valid(const struct link *l) {
    TRY(sim_ready());
    return l && l->magic == LINK_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The logs that the program asked for are empty. */
static void no_logs(unsigned n, const int *options, void **values) {
    for (unsigned i = 0; options && values && i < n; i++)
        if (options[i] == INFO_BYTES || options[i] == ERROR_BYTES)
            values[i] = NULL; /* the driver writes the length of the log here */
}

static CUresult create(unsigned n, const int *options, void **values, struct link **out) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || (n && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        if ((options[i] == INFO_LOG || options[i] == ERROR_LOG) && values[i])
            *(char *)values[i] = 0;
    no_logs(n, options, values);
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return CUDA_ERROR_OUT_OF_MEMORY;
    l->magic = LINK_MAGIC;
    *out = l;
    return CUDA_SUCCESS;
}

static CUresult add(struct link *l, int type, const void *data, size_t bytes) {
    TRY(valid(l));
    if (type < 0 || type >= INPUTS || !data || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == PTX && !((const char *)data)[bytes - 1])
        bytes--;
    char *more = realloc(l->text, l->bytes + bytes + 2);
    if (!more)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(more + l->bytes, data, bytes);
    l->text = more;
    l->bytes += bytes;
    more[l->bytes++] = '\n';
    more[l->bytes] = 0;
    return CUDA_SUCCESS;
}

static CUresult add_file(struct link *l, int type, const char *path) {
    TRY(valid(l));
    FILE *f = path ? fopen(path, "re") : NULL;
    if (!f)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    char *data = malloc(1 << 24); /* the most that is read of a file */
    size_t n = data ? fread(data, 1, 1 << 24, f) : 0;
    fclose(f);
    CUresult r = n ? add(l, type, data, n) : CUDA_ERROR_INVALID_IMAGE;
    free(data);
    return r;
}

API CUresult cuLinkCreate(unsigned n, int *options, void **values, struct link **out) {
    return create(n, options, values, out);
}
API CUresult cuLinkCreate_v2(unsigned n, int *options, void **values, struct link **out) {
    return create(n, options, values, out);
}
API CUresult cuLinkAddData(struct link *l, int type, void *data, size_t bytes, const char *name, unsigned n,
                           int *options, void **values) {
    return (void)name, (void)n, (void)options, (void)values, add(l, type, data, bytes);
}
API CUresult cuLinkAddData_v2(struct link *l, int type, void *data, size_t bytes, const char *name, unsigned n,
                              int *options, void **values) {
    return (void)name, (void)n, (void)options, (void)values, add(l, type, data, bytes);
}
API CUresult cuLinkAddFile(struct link *l, int type, const char *path, unsigned n, int *options, void **values) {
    return (void)n, (void)options, (void)values, add_file(l, type, path);
}
API CUresult cuLinkAddFile_v2(struct link *l, int type, const char *path, unsigned n, int *options, void **values) {
    return (void)n, (void)options, (void)values, add_file(l, type, path);
}

API CUresult cuLinkComplete(struct link *l, void **image, size_t *bytes) {
    TRY(valid(l));
    if (!image || !l->text)
        return CUDA_ERROR_INVALID_VALUE;
    *image = l->text; /* the linker's until it is destroyed */
    if (bytes)
        *bytes = l->bytes + 1;
    return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(struct link *l) {
    TRY(valid(l));
    l->magic = 0;
    free(l->text);
    free(l);
    return CUDA_SUCCESS;
}
