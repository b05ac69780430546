#define _GNU_SOURCE
#include "memory/piece.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "account/shared_slot.h"
#include "memory/late_free.h"

struct vmm *vmm_if_any(struct gh_state *st) { return st ? atomic_load_explicit(&st->vmm, memory_order_acquire) : NULL; }

struct vmm *vmm_of(struct gh_state *st) {
    struct vmm *v = vmm_if_any(st), *none = NULL;
    if (v || !st || !(v = calloc(1, sizeof *v)))
        return v;
    if (atomic_compare_exchange_strong(&st->vmm, &none, v))
        return v;
    free(v);
    return none;
}

/* ---- a piece ends ---- */

static void end_piece(struct gh_state *st, struct vmm *v, struct piece *p) {
    for (struct watch *w = p->exports; w; w = p->exports) {
        p->exports = w->next;
        watch_end(&v->observers, w);
    }
    if (p->units)
        gh_release(st, p->gpu, p->units);
    gh_shared_let_go(st, p->slot);
    if (p->imported)
        let_go_of_open_file(p->descriptor, p->inode);
    free(p);
}

static void drop_if_free(struct gh_state *st, struct vmm *v, struct piece *p);

static void end_bond(struct gh_state *st, struct vmm *v, struct bond *b) {
    b->memory->maps--;
    drop_if_free(st, v, b->memory);
    free(b);
}

/* With the lock held: a multicast object goes. Another process may still have an imported one, and with it our memory. */
static void end_bonds(struct gh_state *st, struct vmm *v, struct piece *object) {
    for (struct bond *b; (b = object->bonds);) {
        object->bonds = b->next;
        b->memory->permanent |= object->imported;
        end_bond(st, v, b);
    }
}

/* With the lock held. A piece that nobody in this process uses any more ends, or waits for its exports to be closed. */
static void drop_if_free(struct gh_state *st, struct vmm *v, struct piece *p) {
    if (p->handles || p->maps || p->calls || p->permanent)
        return;
    if (!p->exports) {
        end_bonds(st, v, p);
        end_piece(st, v, p);
        return;
    }
    p->next = v->waiting;
    v->waiting = p;
    atomic_fetch_add(&v->waits, 1);
}

/* Forgets exports that were closed. True: none is left. */
static bool exports_closed(struct vmm *v, struct piece *p) {
    for (struct watch *w; (w = p->exports); watch_end(&v->observers, w)) {
        if (!watch_says_closed(&v->observers, w))
            return false;
        p->exports = w->next;
    }
    return true;
}

/* The list is taken out of the vmm while the kernel is asked, as that takes microseconds for each piece. Nothing else
 * knows of a waiting piece. */
bool pieces_reclaim(struct gh_state *st) {
    struct vmm *v = vmm_if_any(st);
    bool any = false;
    if (!v || !atomic_load(&v->waits) || !gh_lock(&v->lock))
        return false;
    struct piece *list = v->waiting, *open = NULL, *last = NULL;
    v->waiting = NULL;
    gh_unlock(&v->lock);
    for (struct piece *p = list, *next; p; p = next) {
        next = p->next;
        if (exports_closed(v, p)) {
            if (p->bonds && gh_lock(&v->lock)) { /* without it, they stay charged until the process ends */
                end_bonds(st, v, p);
                gh_unlock(&v->lock);
            }
            end_piece(st, v, p);
            atomic_fetch_sub(&v->waits, 1);
            any = true;
            continue;
        }
        last = last ? last : p;
        p->next = open;
        open = p;
    }
    if (open && gh_lock(&v->lock)) { /* without the lock they stay charged until the process ends */
        last->next = v->waiting;
        v->waiting = open;
        gh_unlock(&v->lock);
    }
    return any;
}

void pieces_reclaim_now_and_then(struct gh_state *st) {
    struct vmm *v = vmm_if_any(st);
    struct timespec now;
    if (!v || !atomic_load(&v->waits))
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ms = now.tv_sec * 1000ll + now.tv_nsec / 1000000, last = atomic_load(&v->looked_ms);
    if (ms - last >= RECLAIM_EVERY_MS && atomic_compare_exchange_strong(&v->looked_ms, &last, ms))
        pieces_reclaim(st);
}

/* ---- handles ---- */

static struct handle_uses *uses_of(struct gh_state *st, CUmemHandle handle) {
    return (struct handle_uses *)(uintptr_t)gh_pointers_get(&st->pointers, key_of(HANDLE, handle));
}

struct piece *piece_of(struct gh_state *st, CUmemHandle handle) {
    struct handle_uses *h = uses_of(st, handle);
    return h ? h->piece : NULL;
}

bool add_use(struct gh_state *st, CUmemHandle handle, struct piece *p) {
    struct handle_uses *h = uses_of(st, handle);
    if (h && h->piece == p) {
        h->times++;
    } else if (h) { /* another thread has released this value, and has not noted that yet */
        *h = (struct handle_uses){p, 1};
    } else {
        if (!(h = malloc(sizeof *h)))
            return false;
        *h = (struct handle_uses){p, 1};
        if (!gh_pointers_put(&st->pointers, key_of(HANDLE, handle), (uintptr_t)h)) {
            free(h);
            return false;
        }
    }
    p->handles++;
    return true;
}

/* Never 0, which would be no note, and kind_of() of it is 0. */
static uint64_t strange_since(uint64_t clock) { return (clock + 1) << 4; }

static void note_strange(struct gh_state *st, CUmemHandle handle, uint64_t clock) {
    gh_pointers_put(&st->pointers, key_of(STRANGE, handle), strange_since(clock));
}

static bool is_strange(struct gh_state *st, CUmemHandle handle, uint64_t since) {
    return gh_pointers_get(&st->pointers, key_of(STRANGE, handle)) > strange_since(since);
}

void use_unknown(const struct piece_call *c, CUmemHandle handle) { note_strange(c->st, handle, UINT64_MAX >> 5); }

void used_by_handle(const struct piece_call *c, CUmemHandle handle) {
    struct piece *now = piece_of(c->st, handle);
    uint64_t clock = ++c->v->clock;
    if (c->piece)
        c->piece->touched = clock;
    if (now && now == c->piece)
        return;
    note_strange(c->st, handle, clock);
    if (now)
        now->permanent = true;
    if (c->piece)
        c->piece->permanent = true;
}

/* With the lock held: whether a piece made since `began`, with this handle value, may be in use without our knowledge. */
static bool used_unseen(struct gh_state *st, CUmemHandle handle, uint64_t began) {
    const struct piece *before = piece_of(st, handle);
    return is_strange(st, handle, began) || (before && (before->calls > 1 || before->touched > began));
}

struct piece *note_piece(struct gh_state *st, struct vmm *v, CUmemHandle handle, struct piece like, uint64_t began) {
    struct piece *p = malloc(sizeof *p);
    if (!p || !gh_lock(&v->lock)) {
        free(p);
        return NULL;
    }
    *p = like;
    p->permanent = used_unseen(st, handle, began);
    if (!add_use(st, handle, p)) {
        free(p);
        p = NULL;
    }
    gh_unlock(&v->lock);
    return p;
}

uint64_t vmm_clock(struct vmm *v) {
    uint64_t now = 0; /* without the lock: any strange mapping counts as one made since */
    if (gh_lock(&v->lock)) {
        now = v->clock;
        gh_unlock(&v->lock);
    }
    return now;
}

/* ---- calls ---- */

void hold(struct piece_call *c, struct piece *p) {
    c->piece = p;
    c->began = c->v->clock;
    if (p)
        p->calls++;
}

struct piece_call begin_by_handle(CUmemHandle handle) {
    struct gh_state *st = gh_here();
    struct piece_call c = {st, vmm_if_any(st), NULL, 0};
    if (c.v && gh_lock(&c.v->lock)) {
        hold(&c, piece_of(st, handle));
        gh_unlock(&c.v->lock);
    }
    return c;
}

void note_export(const struct piece_call *c, struct watch *w) {
    struct watch **end = &c->piece->exports;
    for (struct watch *first; (first = *end) && watch_says_closed(&c->v->observers, first);
         watch_end(&c->v->observers, first))
        *end = first->next;
    while (*end)
        end = &(*end)->next;
    w->next = NULL;
    *end = w;
}

void let_go(const struct piece_call *c) {
    c->piece->calls--;
    drop_if_free(c->st, c->v, c->piece);
}

void release_use(const struct piece_call *c, CUmemHandle handle) {
    struct handle_uses *h = uses_of(c->st, handle);
    if (h && h->piece == c->piece && !--h->times) {
        gh_pointers_take(&c->st->pointers, key_of(HANDLE, handle));
        free(h);
    }
    if (c->piece->touched > c->began)
        note_strange(c->st, handle, ++c->v->clock);
    if (c->piece->handles)
        c->piece->handles--;
}

/* ---- mappings ---- */

struct piece *piece_at(const struct vmm *v, uint64_t address) {
    for (size_t i = 0; i < v->count; i++)
        if (address - v->map[i].at < v->map[i].size)
            return v->map[i].piece;
    return NULL;
}

/* With the lock held: the index of the first mapping at or above an address. The list is sorted. */
static size_t position(const struct vmm *v, uint64_t at) {
    size_t low = 0, high = v->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->map[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(struct vmm *v, struct mapping m) {
    if (v->count == v->room) {
        size_t room = v->room ? v->room * 2 : 64;
        struct mapping *more = realloc(v->map, room * sizeof *more);
        if (!more)
            return false;
        v->map = more;
        v->room = room;
    }
    size_t i = position(v, m.at);
    memmove(v->map + i + 1, v->map + i, (v->count - i) * sizeof *v->map);
    v->map[i] = m;
    v->count++;
    return true;
}

void note_map(struct vmm *v, struct piece *p, uint64_t at, uint64_t bytes) {
    if (insert(v, (struct mapping){at, bytes, ++v->clock, p}))
        p->maps++;
    else
        p->permanent = true;
}

void note_unmap(struct gh_state *st, struct vmm *v, uint64_t at, uint64_t bytes, uint64_t began) {
    for (size_t i = position(v, at); i < v->count && v->map[i].at + v->map[i].size <= at + bytes;) {
        struct mapping m = v->map[i];
        if (m.made > began) {
            i++;
            continue;
        }
        v->count--;
        memmove(v->map + i, v->map + i + 1, (v->count - i) * sizeof *v->map);
        m.piece->maps--;
        drop_if_free(st, v, m.piece);
    }
}

/* ---- multicast objects and logical endpoints ---- */

void note_bond(struct vmm *v, struct bond **list, struct bond like) {
    struct bond *b = malloc(sizeof *b);
    if (!b) {
        like.memory->permanent = true;
        return;
    }
    *b = like;
    b->made = ++v->clock;
    b->next = *list;
    *list = b;
    b->memory->maps++;
}

/* CUDA's manual demands the range of the binding for a multicast object, and one that encloses it for a logical endpoint. */
void note_unbind(struct gh_state *st, struct vmm *v, struct bond **list, struct bond where, uint64_t began) {
    bool of_endpoint = list == &v->endpoints;
    for (struct bond *b; (b = *list);) {
        bool enclosed =
            b->at >= where.at && b->at - where.at <= where.size && b->size <= where.size - (b->at - where.at);
        bool same = b->at == where.at && b->size == where.size;
        if ((of_endpoint ? enclosed : same) && where.gpu >= 0 && b->gpu == where.gpu && b->endpoint == where.endpoint &&
            b->made <= began) {
            *list = b->next;
            end_bond(st, v, b);
        } else
            list = &b->next;
    }
}

/* ---- linear memory ---- */

/* Between the two notes, a free by another thread finds none, and the memory stays charged until the process ends. */
struct piece *share_linear(struct gh_state *st, uint64_t address) {
    uint64_t key = key_of(SHARED, address), note = gh_pointers_get(&st->pointers, address);
    if (kind_of(note) == SHARED)
        return (struct piece *)(uintptr_t)gh_pointers_get(&st->pointers, key);
    if (kind_of(note) != LINEAR || !(note = gh_pointers_take(&st->pointers, address)))
        return NULL;
    struct piece *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    *p = (struct piece){.units = units_of(note), .gpu = gpu_of(note), .handles = 1};
    gh_pointers_put(&st->pointers, key, (uintptr_t)p);
    gh_pointers_put(&st->pointers, address, pack(units_of(note), (int)gpu_of(note), number_of(note), SHARED));
    return p;
}

void give_slot(struct gh_state *st, struct piece *p, uint64_t known) {
    if (p->slot && p->known != known) /* some who know it otherwise may hold it without our knowledge */
        p->permanent = true;
    if (p->slot || !p->units)
        return;
    p->slot = gh_shared_make(st, p->gpu, p->units, known);
    p->known = known;
    if (p->slot)
        p->units = 0;
}

struct lost {
    unsigned context;
    uint64_t key; /* 0: none */
};

static bool find_lost(uint64_t key, uint64_t value, void *with) {
    struct lost *l = with;
    enum kind kind = kind_of(value);
    if ((kind == SHARED || kind == OPENED) && number_of(value) == l->context)
        l->key = key;
    return false;
}

static uint64_t take_lost(struct gh_state *st, struct vmm *v, struct lost *l) {
    l->key = 0;
    if (!gh_lock(&v->lock))
        return 0;
    gh_pointers_filter(&st->pointers, find_lost, l);
    uint64_t value = gh_pointers_take(&st->pointers, l->key);
    gh_unlock(&v->lock);
    return value;
}

void shared_lost(struct gh_state *st, unsigned context) {
    struct vmm *v = vmm_if_any(st);
    struct lost l = {context, 0};
    for (uint64_t value; v && (value = take_lost(st, v, &l));) {
        if (kind_of(value) == SHARED)
            shared_freed(st, late_address(st, l.key));
        for (uint64_t n = kind_of(value) == OPENED ? opened_times(value) : 0; n; n--)
            gh_shared_let_go(st, opened_slot(value));
    }
}

void shared_freed(struct gh_state *st, uint64_t address) {
    struct vmm *v = vmm_if_any(st);
    if (!v || !gh_lock(&v->lock))
        return;
    struct piece *p = (struct piece *)(uintptr_t)gh_pointers_take(&st->pointers, key_of(SHARED, address));
    if (p) {
        p->handles = 0;
        drop_if_free(st, v, p);
    }
    gh_unlock(&v->lock);
    pieces_reclaim_now_and_then(st);
}
