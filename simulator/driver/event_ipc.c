/* Simulated libcuda: events that several processes have (CU_EVENT_INTERPROCESS). Where such an event was recorded last
 * is one word in a piece (piece.c) of its maker: every process with the GPU can ask how far a queue is. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORDS = 8192, BYTES = WORDS * 8 }; /* of a process's piece on one GPU */
enum { INTERPROCESS = 4 };                /* CU_EVENT_INTERPROCESS */
#define IPC_MAGIC 0x6576656e746970ull

struct event_handle { /* CUipcEventHandle */
    uint64_t magic;
    int32_t pid, piece;
    uint32_t generation, word;
    char uuid[32];
    uint64_t unused;
};
_Static_assert(sizeof(struct event_handle) == 64, "CUipcEventHandle");

struct shared_event {
    _Atomic uint64_t *word; /* queue << 56 | sequence number + 1; 0: never recorded */
    void *imported;         /* another process's words, mapped for this event; NULL: the words are ours */
    struct event_handle handle;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct words { /* of the events that this process made */
    _Atomic uint64_t *all;
    int piece;
    unsigned next;
    bool used[WORDS];
} *words[GPU_MAX];

/* Mutex held. The words of our events on that GPU, made at first use. */
static struct words *words_of(int device) {
    struct gpu *gpu = &sim_gpu[device];
    if (words[device])
        return words[device];
    struct words *w = calloc(1, sizeof *w);
    int fd = w ? gpu_piece_make(gpu) : -1;
    void *all = gpu_piece_map(gpu, fd, NULL, BYTES, 0, PROT_READ | PROT_WRITE); /* keeps the piece */
    if (all != MAP_FAILED) {
        w->all = all;
        w->piece = gpu_piece_of(gpu, fd);
        sim_shares = true;
    }
    gpu_piece_close(gpu, fd);
    if (all == MAP_FAILED) {
        free(w);
        return NULL;
    }
    return words[device] = w;
}

/* Mutex held. An unused word; one that was freed just now comes last, as somebody may still have its handle. */
static int take_word(struct words *w) {
    for (unsigned i = 0; i < WORDS; i++) {
        unsigned at = (w->next + i) % WORDS;
        if (!w->used[at]) {
            w->used[at] = true;
            w->next = at + 1;
            atomic_store(&w->all[at], 0);
            return (int)at;
        }
    }
    return -1;
}

static struct shared_event *share(CUevent e) {
    struct gpu *gpu = &sim_gpu[e->device];
    struct words *w = words_of(e->device);
    struct shared_event *s = w ? calloc(1, sizeof *s) : NULL;
    int at = s ? take_word(w) : -1;
    if (at < 0) {
        free(s);
        return NULL;
    }
    s->word = &w->all[at];
    s->handle =
        (struct event_handle){IPC_MAGIC, getpid(), w->piece, gpu_piece_generation(gpu, w->piece), (uint32_t)at, "", 0};
    memcpy(s->handle.uuid, gpu->file->head.uuid + 4, sizeof s->handle.uuid);
    return s;
}

API CUresult cuIpcGetEventHandle(struct event_handle *out, CUevent e) {
    TRY(event_valid(e));
    if (!out || !(e->flags & INTERPROCESS))
        return out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct shared_event *s = e->shared ? e->shared : share(e);
    if (s)
        *out = s->handle;
    bool first = s && !e->shared;
    if (first)
        e->shared = s;
    pthread_mutex_unlock(&mutex);
    if (first)
        event_publish(e); /* it may have been recorded before */
    return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuIpcOpenEventHandle(CUevent *out, struct event_handle handle) {
    CUcontext ctx;
    CUevent e;
    char path[64];
    TRY(sim_context(&ctx));
    if (!out || handle.magic != IPC_MAGIC || handle.word >= WORDS)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = sim_gpu_of(ctx);
    if (memcmp(handle.uuid, gpu->file->head.uuid + 4, sizeof handle.uuid))
        return CUDA_ERROR_INVALID_DEVICE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;                         /* a process cannot open its own handle */
    snprintf(path, sizeof path, "/proc/%d/fd/.", (int)handle.pid); /* only for who may look at the maker */
    int fd = access(path, X_OK) ? -1 : gpu_piece_open(gpu, handle.piece, handle.generation);
    void *all = gpu_piece_map(gpu, fd, NULL, BYTES, 0, PROT_READ | PROT_WRITE);
    gpu_piece_close(gpu, fd);
    if (all == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    struct shared_event *s = calloc(1, sizeof *s);
    if (!s || event_new(&e, ctx, INTERPROCESS | 2)) {
        munmap(all, BYTES);
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_shares = true;
    *s = (struct shared_event){(_Atomic uint64_t *)all + handle.word, all, handle};
    e->shared = s;
    *out = e;
    return CUDA_SUCCESS;
}

void shared_event_gone(CUevent e) {
    struct shared_event *s = e->shared;
    if (!s)
        return;
    pthread_mutex_lock(&mutex);
    if (s->imported)
        munmap(s->imported, BYTES);
    else
        words[e->device]->used[s->handle.word] = false;
    pthread_mutex_unlock(&mutex);
    free(s);
}

void shared_event_marked(CUevent e) {
    const struct channel *ch = e->mark.channel;
    if (e->shared && ch && ch->gpu == &sim_gpu[e->device])
        atomic_store(e->shared->word, (uint64_t)ch->queue << 56 | (e->mark.seq + 1));
}

/* Where it was recorded last. False: nowhere, or something wrote what no event writes. */
static bool recorded(CUevent e, int *queue, uint64_t *seq) {
    uint64_t word = atomic_load(e->shared->word);
    *queue = (int)(word >> 56);
    *seq = (word & ((1ull << 56) - 1)) - 1;
    return word && (unsigned)*queue < gpu_queues(sim_gpu[e->device].file);
}

bool shared_event_done(CUevent e) {
    int queue;
    uint64_t seq;
    return !recorded(e, &queue, &seq) || gpu_done(&sim_gpu[e->device], queue, seq);
}

void shared_event_wait(CUevent e) {
    int queue;
    uint64_t seq;
    if (recorded(e, &queue, &seq))
        gpu_wait(&sim_gpu[e->device], queue, seq);
}

CUresult shared_event_order(CUevent e, struct stream *s) {
    int queue;
    uint64_t seq;
    const struct channel *own = channel_now(s);
    struct gpu *gpu = &sim_gpu[e->device];
    if (!recorded(e, &queue, &seq) || (own && own->gpu == gpu && own->queue == queue))
        return CUDA_SUCCESS;
    if (gpu != sim_gpu_of(s->ctx)) { /* the event is another GPU's: the caller itself waits */
        gpu_wait(gpu, queue, seq);
        return CUDA_SUCCESS;
    }
    return channel_submit(s, (struct gpu_work){.kind = WORK_AFTER, .other = (uint32_t)queue, .seq = seq}, NULL, NULL);
}
