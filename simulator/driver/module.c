/* Simulated libcuda: modules and functions, which say how long a kernel runs. Kernels compute nothing. */
#define _GNU_SOURCE
#include "module.h"
#include "../model/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An image may be anything. In text (PTX), only functions whose names occur in it are found, and words in it say how
 * long its kernels run; "WORD NAME=N" is for one kernel, "WORD=N" for all:
 *   sim_us=N      the duration; without it, a name that ends in "_Nus" runs N us, any other the GPU's default
 *   sim_sigma=S   log-normal durations with that mean; the same random draws in every run of the program
 *   sim_seed=N    other draws
 *   sim_param     the duration is the first parameter, 64 bits of nanoseconds
 *   sim_spin=1    the first parameter is the address of 32 bits: runs until they are not 0
 * A cubin is read as a text that has the names of its kernels and variables (cubin.c).
 * Variables of a module (".global .align 4 .b8 NAME[BYTES];") take memory at the first use of one of its functions or
 * variables; with CUDA_MODULE_LOADING=EAGER, when the module is loaded. */

enum { LONGEST = 4095 }; /* name of a function */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool is_text(const char *image) {
    for (int i = 0; i < 4; i++)
        if (!(image[i] >= ' ' && image[i] <= '~') && !strchr("\n\r\t", image[i]))
            return false;
    return image[0] != 'P' || (unsigned char)image[1] != 0xed; /* a fatbinary begins with 50 ed 55 ba */
}

/* The next variable in the text: its name and bytes; where the text goes on, NULL: there are no more. */
static const char *variable(const char *text, const char **name, size_t *length, uint64_t *bytes) {
    for (const char *at = text; at && (at = strstr(at, ".global")); at += 7) {
        const char *end = strchr(at, ';'), *open = end ? memchr(at, '[', (size_t)(end - at)) : NULL;
        if (!open)
            continue;
        const char *from = open;
        while (from > at && from[-1] != ' ')
            from--;
        *name = from;
        *length = (size_t)(open - from);
        *bytes = strtoull(open + 1, NULL, 10);
        return end;
    }
    return NULL;
}

/* Loads the variables if they are not yet. Mutex held. */
static CUresult load_variables(struct module *m) {
    const char *name;
    uint64_t all = 0, bytes;
    size_t length;
    if (m->variables)
        return CUDA_SUCCESS;
    for (const char *at = m->text; (at = variable(at, &name, &length, &bytes));)
        all += round_up(bytes, GRAIN);
    return all ? heap_allocate(&m->variables, m->ctx, all, VARIABLES) : CUDA_SUCCESS;
}

static CUresult load(CUmodule *out, const void *image) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->text = is_text(image) ? strdup(image) : cubin_text(image);
    sim_context_wait(ctx); /* loading a module waits for the context, as freeing memory does */
    m->ctx = ctx;
    const char *mode = getenv("CUDA_MODULE_LOADING");
    CUresult r = mode && !strcmp(mode, "EAGER") ? load_variables(m) : CUDA_SUCCESS;
    if (r) {
        free(m->text);
        free(m);
        return r;
    }
    *out = m;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image) { return load(out, image); }
API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return load(out, image); }

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, int *options, void **values) {
    (void)n, (void)options, (void)values;
    return load(out, image);
}

API CUresult cuModuleLoad(CUmodule *out, const char *path) {
    FILE *f = path ? fopen(path, "re") : NULL;
    if (!f)
        return CUDA_ERROR_FILE_NOT_FOUND;
    long size = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    rewind(f);
    char *image = size < 0 ? NULL : calloc(1, (size_t)size + 8);
    size_t n = image ? fread(image, 1, (size_t)size, f) : 0;
    fclose(f);
    CUresult r = n ? load(out, image) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return r;
}

API CUresult cuModuleUnload(CUmodule m) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!m)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(sim_context_wait(ctx));
    while (m->functions) {
        struct function *f = m->functions;
        m->functions = f->next;
        free(f);
    }
    heap_free(m->variables);
    free(m->text);
    free(m);
    return CUDA_SUCCESS;
}

/* The text after "WORD NAME=", else after "WORD="; NULL if there is none. */
static const char *said(const struct module *m, const char *word, const char *name) {
    char key[LONGEST + 16];
    const char *at;
    if (!m->text)
        return NULL;
    snprintf(key, sizeof key, "%s %s=", word, name);
    if (!(at = strstr(m->text, key))) {
        snprintf(key, sizeof key, "%s=", word);
        at = strstr(m->text, key);
    }
    return at ? at + strlen(key) : NULL;
}

static uint64_t duration(const struct module *m, const char *name) {
    const char *text = said(m, "sim_us", name);
    if (text)
        return strtoull(text, NULL, 10) * 1000;
    size_t n = strlen(name), digits = n;
    if (n > 3 && !strcmp(name + n - 2, "us")) {
        for (digits = n - 2; digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9';)
            digits--;
        if (digits > 0 && digits < n - 2 && name[digits - 1] == '_')
            return strtoull(name + digits, NULL, 10) * 1000;
    }
    return 0;
}

/* Mutex held. */
static void describe(struct function *f, const struct module *m) {
    const char *sigma = said(m, "sim_sigma", f->name), *seed = said(m, "sim_seed", f->name);
    const char *spin = said(m, "sim_spin", f->name);
    f->duration_ns = duration(m, f->name);
    f->by_parameter = m->text && strstr(m->text, "sim_param");
    f->spins = spin && *spin == '1';
    f->threads = 1;
    f->seed = seed ? strtoull(seed, NULL, 10) : 1;
    for (const char *c = f->name; *c; c++) /* FNV-1a */
        f->seed = (f->seed ^ (unsigned char)*c) * 0x100000001b3ull;
    /* Not by strtod, which depends on the program's locale. */
    double value = 0, unit = 1;
    for (bool point = false; sigma && ((*sigma >= '0' && *sigma <= '9') || (*sigma == '.' && !point)); sigma++)
        if (*sigma == '.')
            point = true;
        else {
            value = value * 10 + (*sigma - '0');
            unit *= point ? 10 : 1;
        }
    if (value > 0 && value / unit <= 3)
        f->spread = lognormal_table(value / unit);
}

bool function_fits(CUfunction f, CUcontext ctx) { return f->module->library || f->module->ctx->memory == ctx->memory; }

CUresult kernel_of(CUfunction f, int device, uint64_t blocks, void **params, struct kernel *out) {
    uint32_t sms = sim_gpu[device].file->head.sm_count;
    uint64_t first = f->parameter;
    if (params && params[0] && (f->by_parameter || f->spins))
        first = *(const uint64_t *)params[0];
    *out = (struct kernel){
        .duration_ns = f->by_parameter && !f->spins ? first
                       : f->duration_ns             ? f->duration_ns
                                                    : sim_gpu[device].file->head.kernel_ns,
        .spread = f->spread,
        .seed = f->seed,
        .spin = f->spins ? first : 0,
        .width = blocks < sms ? (uint32_t)blocks : sms,
    };
    return f->spins && !first ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

uint64_t kernel_ns(const struct kernel *k) {
    static _Atomic uint64_t draws[64];
    if (!k->spread)
        return k->duration_ns;
    struct rng rng = {k->seed + 0x9e3779b97f4a7c15ull * atomic_fetch_add(&draws[k->seed % 64], 1)};
    return (uint64_t)((double)k->duration_ns * k->spread[rng_next(&rng) % LOGNORMAL_STEPS]);
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    TRY(sim_ready());
    if (!out || !m || !name || !*name || strlen(name) > LONGEST)
        return CUDA_ERROR_INVALID_VALUE;
    if (m->text && !strstr(m->text, name))
        return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&mutex);
    CUresult r = load_variables(m);
    struct function *f = r ? NULL : m->functions;
    while (f && strcmp(f->name, name))
        f = f->next;
    if (!r && !f && (f = calloc(1, sizeof *f + strlen(name) + 1))) {
        f->name = strcpy((char *)(f + 1), name);
        describe(f, m);
        f->module = m;
        f->next = m->functions;
        m->functions = f;
    }
    pthread_mutex_unlock(&mutex);
    *out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, CUmodule m, const char *wanted) {
    const char *name;
    uint64_t size, before = 0;
    size_t length;
    TRY(sim_ready());
    if (!m || !wanted || (!out && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult r = load_variables(m);
    pthread_mutex_unlock(&mutex);
    TRY(r);
    for (const char *at = m->text; (at = variable(at, &name, &length, &size)); before += round_up(size, GRAIN))
        if (strlen(wanted) == length && !strncmp(wanted, name, length)) {
            if (out)
                *out = m->variables + before;
            if (bytes)
                *bytes = size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetLoadingMode(int *mode) {
    TRY(sim_ready());
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; /* CU_MODULE_LAZY_LOADING */
    return CUDA_SUCCESS;
}

/* Here a library is a module whose kernels, its functions, run in any context. */
static CUresult as_library(CUresult loaded, CUmodule *out) {
    if (loaded == CUDA_SUCCESS)
        (*out)->library = true;
    return loaded;
}

API CUresult cuLibraryLoadData(CUmodule *out, const void *image, int *jit, void **jit_values, unsigned jit_n,
                               int *options, void **values, unsigned n) {
    (void)jit, (void)jit_values, (void)jit_n, (void)options, (void)values, (void)n;
    return as_library(load(out, image), out);
}

API CUresult cuLibraryUnload(CUmodule library) { return cuModuleUnload(library); }

API CUresult cuLibraryGetKernel(CUfunction *out, CUmodule library, const char *name) {
    return cuModuleGetFunction(out, library, name);
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *bytes, CUmodule library, const char *name) {
    return cuModuleGetGlobal_v2(out, bytes, library, name);
}

API CUresult cuLibraryGetModule(CUmodule *out, CUmodule library) {
    TRY(sim_ready());
    if (!out || !library)
        return out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *out = library;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal(unsigned *out, unsigned *bytes, CUmodule m, const char *name) {
    (void)out, (void)bytes, (void)m, (void)name;
    return CUDA_ERROR_NOT_SUPPORTED; /* 32-bit addresses */
}

API CUresult cuLibraryLoadFromFile(CUmodule *out, const char *path, int *jit, void **jit_values, unsigned jit_n,
                                   int *options, void **values, unsigned n) {
    (void)jit, (void)jit_values, (void)jit_n, (void)options, (void)values, (void)n;
    return as_library(cuModuleLoad(out, path), out);
}

/* A module here has no variables in managed memory, and no functions that host and GPU share. */
API CUresult cuLibraryGetManaged(CUdeviceptr *out, size_t *bytes, CUmodule library, const char *name) {
    TRY(sim_ready());
    return (!out && !bytes) || !library || !name ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuLibraryGetUnifiedFunction(void **out, CUmodule library, const char *name) {
    TRY(sim_ready());
    return !out || !library || !name ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}

/* --- the functions of a module: those that its text declares by ".entry NAME" --- */

static const char *entry(const char *text, char name[LONGEST + 1]) {
    for (const char *at = text; at && (at = strstr(at, ".entry"));) {
        at += 6 + strspn(at + 6, " \t\n\r");
        size_t n = strcspn(at, "( \t\n\r;/");
        if (n && n <= LONGEST) {
            memcpy(name, at, n);
            name[n] = 0;
            return at + n;
        }
    }
    return NULL;
}

static CUresult count(unsigned *out, const struct module *m) {
    char name[LONGEST + 1];
    TRY(sim_ready());
    if (!out || !m)
        return CUDA_ERROR_INVALID_VALUE;
    *out = 0;
    for (const char *at = m->text; (at = entry(at, name));)
        ++*out;
    return CUDA_SUCCESS;
}

static CUresult enumerate(CUfunction *out, unsigned n, struct module *m) {
    char name[LONGEST + 1];
    TRY(sim_ready());
    if (!out || !n || !m)
        return CUDA_ERROR_INVALID_VALUE;
    for (const char *at = m->text; n && (at = entry(at, name)); n--)
        TRY(cuModuleGetFunction(out++, m, name));
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunctionCount(unsigned *out, CUmodule m) { return count(out, m); }
API CUresult cuLibraryGetKernelCount(unsigned *out, CUmodule library) { return count(out, library); }
API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned n, CUmodule m) { return enumerate(out, n, m); }
API CUresult cuLibraryEnumerateKernels(CUfunction *out, unsigned n, CUmodule m) { return enumerate(out, n, m); }
