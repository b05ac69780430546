#include "driver/cuda_gpu.h"

#include "driver/real.h"
#include "process/note.h"

static int find_gpu(struct gh_state *st, CUdevice device) {
    static const char digits[] = "0123456789abcdef";
    CUuuid uuid;
    /* _v2 returns the UUID of a MIG instance if there is one, the plain call the GPU's. Before 11.4 there is no _v2. */
    if (REAL(cuDeviceGetUuid_v2)(&uuid, device) && REAL(cuDeviceGetUuid)(&uuid, device))
        return NO_ANSWER;
    char text[37], *t = text;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *t++ = '-';
        *t++ = digits[uuid.bytes[i] >> 4];
        *t++ = digits[uuid.bytes[i] & 15];
    }
    *t = 0;
    return gh_policy_find(st, text);
}

int gpu_of_device(struct gh_state *st, CUdevice device) {
    if (device < 0 || device >= GH_DEVICES)
        return find_gpu(st, device);
    uint32_t known = atomic_load_explicit(&st->device_gpu[device], memory_order_relaxed);
    if (known)
        return (int)known - 1;
    int gpu = find_gpu(st, device);
    if (gpu >= 0)
        atomic_store_explicit(&st->device_gpu[device], (uint32_t)gpu + 1, memory_order_relaxed);
    return gpu;
}

/* ---- contexts ----
 *
 * Whose memory goes with which context is noted by the context's number, since a driver uses handle values again. A
 * thread that still holds the number of a context that has gone notes its memory under that number, and it stays
 * charged until the process ends: never too little. */

/* One word of the cache says all: tag:38 | number:22 | GPU:4. A tag and its place in the cache stand for one handle. */
#define HASH_BITS 47
#define TAG_BITS 38

/* No two handles have the same. False: the handle is unlike any that drivers use, and is not cached. */
static bool hash_of(CUcontext context, uint64_t *hash) {
    uint64_t value = (uintptr_t)context >> 4;
    *hash = value * 0x9e3779b97f4a7c15ull & ((1ull << HASH_BITS) - 1);
    return !(value >> HASH_BITS) && !((uintptr_t)context & 15);
}
static _Atomic uint64_t *cached(struct gh_state *st, uint64_t hash) { return &st->contexts.place[hash >> TAG_BITS]; }
static uint64_t cache_word(uint64_t hash, unsigned number, unsigned gpu) {
    return hash << (64 - TAG_BITS) | (uint64_t)number << 4 | gpu;
}

/* The note of a context, a new one if need be; 0: no granted GPU, or no memory. */
static uint64_t note_of(struct gh_state *st, CUcontext context, CUdevice device) {
    uint64_t key = key_of(PLACE, (uintptr_t)context), note = gh_pointers_get(&st->pointers, key);
    if (note)
        return note;
    int gpu = gpu_of_device(st, device);
    if (gpu < 0)
        return 0;
    uint32_t number = atomic_load(&st->contexts.last);
    while (number < NOTE_OF_MOST && !atomic_compare_exchange_weak(&st->contexts.last, &number, number + 1)) {}
    number = number < NOTE_OF_MOST ? number + 1 : 0;
    note = pack(0, gpu, number, PLACE);
    return gh_pointers_put_new(&st->pointers, key, note) ? note : gh_pointers_get(&st->pointers, key);
}

struct place current_place(struct gh_state *st) {
    CUcontext context = NULL;
    CUdevice device;
    uint64_t hash;
    CUresult r = REAL(cuCtxGetCurrent)(&context);
    if (r)
        return (struct place){.gpu = NO_ANSWER, .error = r};
    if (!context)
        return (struct place){.gpu = NO_CONTEXT};
    bool cacheable = hash_of(context, &hash);
    uint64_t word = cacheable ? atomic_load_explicit(cached(st, hash), memory_order_relaxed) : 0;
    if (word && !((word ^ cache_word(hash, 0, 0)) >> (64 - TAG_BITS)))
        return (struct place){.gpu = (int)(word & 15), .context = word >> 4 & NOTE_OF_MOST};
    if ((r = REAL(cuCtxGetDevice)(&device)))
        return (struct place){.gpu = NO_ANSWER, .error = r};
    uint64_t note = note_of(st, context, device);
    if (!note)
        return (struct place){.gpu = gpu_of_device(st, device)};
    if (cacheable && number_of(note))
        atomic_store_explicit(cached(st, hash), cache_word(hash, number_of(note), gpu_of(note)), memory_order_relaxed);
    return (struct place){.gpu = (int)gpu_of(note), .context = number_of(note)};
}

CUcontext stream_context(CUstream stream, struct gone_to *to) {
    CUcontext of = NULL;
    *to = (struct gone_to){0};
    if (REAL(cuCtxGetCurrent)(&to->from))
        return NULL;
    to->another = (uintptr_t)stream > CU_STREAM_PER_THREAD && !REAL(cuStreamGetCtx)(stream, &of) && of != to->from &&
                  !REAL(cuCtxSetCurrent)(of);
    return to->another ? of : to->from;
}

void stream_context_left(const struct gone_to *to) {
    if (to->another)
        REAL(cuCtxSetCurrent)(to->from);
}

static void uncache(struct gh_state *st, CUcontext context) {
    uint64_t hash;
    if (hash_of(context, &hash))
        atomic_store(cached(st, hash), 0);
}

uint64_t context_leaves(struct gh_state *st, CUcontext context) {
    uint64_t note = gh_pointers_take(&st->pointers, key_of(PLACE, (uintptr_t)context));
    uncache(st, context);
    return note;
}

void context_stays(struct gh_state *st, CUcontext context, uint64_t note) {
    if (note)
        gh_pointers_put_new(&st->pointers, key_of(PLACE, (uintptr_t)context), note);
}

void context_shares(struct gh_state *st, CUcontext context, CUcontext owner, CUdevice device) {
    uint64_t note = note_of(st, owner, device);
    if (note)
        gh_pointers_put(&st->pointers, key_of(PLACE, (uintptr_t)context), note);
    uncache(st, context);
}
