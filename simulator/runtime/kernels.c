/* The simulator's CUDA runtime: kernels and variables, registered by what nvcc puts into programs.
 *
 * The code in a program's fat binary is not looked at. When a kernel or variable is used on a device for the first time,
 * it becomes a small PTX module of its own with its name, which the simulated driver loads: a kernel that does nothing. */
#define _GNU_SOURCE
#include "kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_NAME = 100, RELAXED = 2 }; /* the simulated driver knows names of up to 127 characters */

struct on_device {
    bool loaded;
    unsigned age; /* of the context in which this lives */
    CUfunction function;
    CUdeviceptr at;
};

struct library { /* what __cudaRegisterFatBinary hands out */
    struct symbol *symbols;
};

static struct {
    struct symbol **slots; /* open addressing by host address; a power of two of them */
    size_t room, used;
    pthread_mutex_t mutex;
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct symbol removed; /* marks a slot whose symbol's library was unloaded */

static size_t slot_of(const void *host, size_t room) {
    return (size_t)(((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (room - 1);
}

static void put(struct symbol **slots, size_t room, struct symbol *s) {
    size_t i = slot_of(s->host, room);
    while (slots[i])
        i = (i + 1) & (room - 1);
    slots[i] = s;
}

/* Room for one more. Mutex held. */
static bool grow(void) {
    if (table.used * 2 < table.room)
        return true;
    size_t room = table.room ? table.room * 2 : 1024, used = 0;
    struct symbol **slots = calloc(room, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < table.room; i++)
        if (table.slots[i] && table.slots[i] != &removed) {
            put(slots, room, table.slots[i]);
            used++;
        }
    free(table.slots);
    table.slots = slots;
    table.room = room;
    table.used = used;
    return true;
}

/* The slot of a host address; NULL: there is none. Mutex held. */
static struct symbol **slot(const void *host) {
    if (!table.room)
        return NULL;
    for (size_t i = slot_of(host, table.room); table.slots[i]; i = (i + 1) & (table.room - 1))
        if (table.slots[i] != &removed && table.slots[i]->host == host)
            return &table.slots[i];
    return NULL;
}

struct symbol *symbol_of(const void *host) {
    pthread_mutex_lock(&table.mutex);
    struct symbol **found = slot(host), *s = found ? *found : NULL;
    pthread_mutex_unlock(&table.mutex);
    return s;
}

static void add(struct library *library, const void *host, const char *name, size_t bytes) {
    struct symbol *s = calloc(1, sizeof *s);
    pthread_mutex_lock(&table.mutex);
    if (s && library && !slot(host) && grow()) {
        *s = (struct symbol){.host = host, .name = name, .bytes = bytes, .next = library->symbols};
        library->symbols = s;
        put(table.slots, table.room, s);
        table.used++;
        s = NULL;
    }
    pthread_mutex_unlock(&table.mutex);
    free(s); /* registered before, or no memory */
}

API void **__cudaRegisterFatBinary(void *image) {
    (void)image;
    return calloc(1, sizeof(struct library));
}

API void __cudaRegisterFatBinaryEnd(void **library) { (void)library; }
API char __cudaInitModule(void **library) { return (void)library, 1; }

API void __cudaUnregisterFatBinary(void **handle) {
    struct library *library = (struct library *)handle;
    if (!library)
        return;
    pthread_mutex_lock(&table.mutex);
    for (struct symbol *s = library->symbols, *next; s; s = next) {
        struct symbol **at = slot(s->host);
        if (at)
            *at = &removed;
        next = s->next;
        free(s->devices);
        free(s);
    }
    pthread_mutex_unlock(&table.mutex);
    free(library);
}

API void __cudaRegisterFunction(void **library, const char *host, char *device_name, const char *name, int limit,
                                void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)device_name, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    add((struct library *)library, host, name, 0);
}

API void __cudaRegisterVar(void **library, char *host, char *address, const char *name, int ext, size_t bytes,
                           int constant, int global) {
    (void)address, (void)ext, (void)constant, (void)global;
    add((struct library *)library, host, name, bytes ? bytes : 1);
}

API void __cudaRegisterManagedVar(void **library, void **host, char *address, const char *name, int ext, size_t bytes,
                                  int constant, int global) {
    (void)address, (void)ext, (void)constant, (void)global;
    add((struct library *)library, host, name, bytes ? bytes : 1);
}

/* Loads the module of one symbol into the current context. */
static int load(const struct symbol *s, struct on_device *out) {
    char text[512], name[LONGEST_NAME + 1];
    CUmodule m;
    snprintf(name, sizeof name, "%s", s->name);
    const char *head = ".version 7.0\n.target sm_50\n.address_size 64\n";
    if (s->bytes)
        snprintf(text, sizeof text, "%s.visible .global .align 16 .b8 %s[%zu];\n", head, name, s->bytes);
    else
        snprintf(text, sizeof text, "%s.visible .entry %s() { ret; }\n", head, name);
    int mode = RELAXED; /* loading is allowed while a stream of this thread is captured */
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    int r = driver.cuModuleLoadData(&m, text);
    if (!r)
        r = s->bytes ? driver.cuModuleGetGlobal(&out->at, NULL, m, name)
                     : driver.cuModuleGetFunction(&out->function, m, name);
    driver.cuThreadExchangeStreamCaptureMode(&mode);
    return r;
}

/* The symbol on the current device. */
static int on_device(const void *host, bool variable, struct on_device *out, size_t *bytes) {
    int device, r = ready();
    if (r || (r = current_device(&device)))
        return r;
    struct symbol *s = symbol_of(host);
    if (!s || !s->bytes == variable)
        return variable ? cudaErrorInvalidSymbol : cudaErrorInvalidDeviceFunction;
    if (device >= MAX_DEVICES)
        return cudaErrorInvalidDevice;
    *bytes = s->bytes;
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&loading);
    if (!s->devices && !(s->devices = calloc(MAX_DEVICES, sizeof *s->devices)))
        r = cudaErrorMemoryAllocation;
    struct on_device *known = r ? NULL : &s->devices[device];
    if (known && (!known->loaded || known->age != context_age(device))) {
        *known = (struct on_device){.age = context_age(device)};
        r = load(s, known);
        known->loaded = !r;
    }
    if (!r)
        *out = *known;
    pthread_mutex_unlock(&loading);
    return r;
}

int function_of(const void *host, CUfunction *out) {
    struct on_device d;
    size_t none;
    int r = on_device(host, false, &d, &none);
    if (!r)
        *out = d.function;
    return r;
}

int variable_of(const void *host, CUdeviceptr *out, size_t *bytes) {
    struct on_device d;
    int r = on_device(host, true, &d, bytes);
    if (!r)
        *out = d.at;
    return r;
}
