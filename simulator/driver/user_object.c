/* Simulated libcuda: user objects: a program's own things, which graphs hold and which are destroyed with their last
 * reference. The real driver calls the destructor from a thread of its own; here the call that drops it does. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 }; /* CU_USER_OBJECT_..., CU_GRAPH_USER_OBJECT_MOVE */
#define USER_MAGIC 0x757365726f626a21ull
#define MOST 0x7fffffffu

struct user_object {
    uint64_t magic;
    void *data;
    void (*destroy)(void *);
    uint64_t references;
};

struct held_object {
    struct user_object *object;
    unsigned references;
    struct held_object *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void drop(struct user_object *o, unsigned n) {
    pthread_mutex_lock(&mutex);
    o->references -= n;
    bool last = !o->references;
    if (last)
        o->magic = 0;
    pthread_mutex_unlock(&mutex);
    if (!last)
        return;
    o->destroy(o->data);
    free(o);
}

static CUresult valid(const struct user_object *o, unsigned n) {
    TRY(sim_ready());
    return o && o->magic == USER_MAGIC && n && n <= MOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuUserObjectCreate(struct user_object **out, void *data, void (*destroy)(void *), unsigned n,
                                unsigned flags) {
    TRY(sim_ready());
    if (!out || !destroy || !n || n > MOST || flags != NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user_object *o = malloc(sizeof *o);
    if (!o)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *o = (struct user_object){USER_MAGIC, data, destroy, n};
    *out = o;
    return CUDA_SUCCESS;
}

static void more(struct user_object *o, unsigned n) {
    pthread_mutex_lock(&mutex);
    o->references += n;
    pthread_mutex_unlock(&mutex);
}

API CUresult cuUserObjectRetain(struct user_object *o, unsigned n) {
    TRY(valid(o, n));
    more(o, n);
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectRelease(struct user_object *o, unsigned n) {
    TRY(valid(o, n));
    if (n > o->references)
        return CUDA_ERROR_INVALID_VALUE;
    drop(o, n);
    return CUDA_SUCCESS;
}

static CUresult hold(struct held_object **list, struct user_object *o, unsigned n) {
    struct held_object *h = malloc(sizeof *h);
    if (!h)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct held_object){o, n, *list};
    *list = h;
    return CUDA_SUCCESS;
}

/* MOVE: the graph takes over references of the caller. */
API CUresult cuGraphRetainUserObject(struct graph *g, struct user_object *o, unsigned n, unsigned flags) {
    TRY(graph_valid(g));
    TRY(valid(o, n));
    if (flags & ~(unsigned)MOVE || (flags & MOVE && n > o->references))
        return CUDA_ERROR_INVALID_VALUE;
    TRY(hold(&g->objects, o, n));
    if (!(flags & MOVE))
        more(o, n);
    return CUDA_SUCCESS;
}

API CUresult cuGraphReleaseUserObject(struct graph *g, struct user_object *o, unsigned n) {
    TRY(graph_valid(g));
    TRY(valid(o, n));
    for (struct held_object **p = &g->objects, *h; (h = *p); p = &h->next)
        if (h->object == o && h->references >= n) {
            h->references -= n;
            if (!h->references) {
                *p = h->next;
                free(h);
            }
            drop(o, n);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult user_objects_copy(struct held_object **out, const struct held_object *list) {
    for (const struct held_object *h = list; h; h = h->next) {
        TRY(hold(out, h->object, h->references));
        more(h->object, h->references);
    }
    return CUDA_SUCCESS;
}

void user_objects_release(struct held_object **list) {
    for (struct held_object *h = *list, *next; h; h = next) {
        next = h->next;
        drop(h->object, h->references);
        free(h);
    }
    *list = NULL;
}
