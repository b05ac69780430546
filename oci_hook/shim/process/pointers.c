#define _GNU_SOURCE
#include "process/pointers.h"

#include <string.h>
#include <sys/mman.h>

#include "process/state.h"

#define FIRST_BITS 8

/* Device pointers are multiples of 256 or more and handles are small numbers, so the low bits say little: multiply,
 * and use the high bits. */
static uint64_t mix(uint64_t key) { return (key ^ key >> 32) * 0x9e3779b97f4a7c15ull; }
static struct gh_shard *shard_of(struct gh_pointers *map, uint64_t hash) { return &map->shard[hash >> 60]; }
static uint32_t home(const struct gh_shard *s, uint64_t hash) { return hash << 4 >> (64 - s->bits); }

static bool take(struct gh_shard *s) { return gh_lock((struct gh_lock *)&s->taken); }
static void give(struct gh_shard *s) { gh_unlock((struct gh_lock *)&s->taken); }

static struct gh_pointer *find(struct gh_shard *s, uint64_t key, uint64_t hash) {
    uint32_t mask = (1u << s->bits) - 1, i = home(s, hash);
    while (s->cell[i].key && s->cell[i].key != key)
        i = (i + 1) & mask;
    return &s->cell[i];
}

static bool grow(struct gh_shard *s) {
    struct gh_shard bigger = {.bits = s->bits ? s->bits + 1 : FIRST_BITS};
    size_t bytes = sizeof *s->cell << bigger.bits;
    bigger.cell = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bigger.cell == MAP_FAILED)
        return false;
    for (uint32_t i = 0; s->bits && i < 1u << s->bits; i++)
        if (s->cell[i].key)
            *find(&bigger, s->cell[i].key, mix(s->cell[i].key)) = s->cell[i];
    if (s->bits)
        munmap(s->cell, sizeof *s->cell << s->bits);
    s->bits = bigger.bits;
    s->cell = bigger.cell;
    return true;
}

/* Backward-shift deletion leaves no tombstones, so a map stays quick however long it lives. */
static void remove_at(struct gh_shard *s, uint32_t hole) {
    uint32_t mask = (1u << s->bits) - 1;
    for (uint32_t i = (hole + 1) & mask; s->cell[i].key; i = (i + 1) & mask) {
        uint32_t at = home(s, mix(s->cell[i].key));
        if (((i - at) & mask) >= ((i - hole) & mask)) {
            s->cell[hole] = s->cell[i];
            hole = i;
        }
    }
    s->cell[hole].key = 0;
    s->used--;
}

/* Locks the shard of a key and returns its cell. `make`: a new key gets an empty cell. NULL, with the shard unlocked,
 * when there is no such key or no memory. */
static struct gh_pointer *cell_of(struct gh_pointers *map, uint64_t key, bool make, struct gh_shard **shard) {
    uint64_t hash = mix(key);
    struct gh_shard *s = *shard = shard_of(map, hash);
    if (!key || !take(s))
        return NULL;
    bool room = make ? (s->bits && s->used + 1 <= (1u << s->bits) / 4 * 3) || grow(s) : s->bits != 0;
    struct gh_pointer *cell = room ? find(s, key, hash) : NULL;
    if (cell && (cell->key || make))
        return cell;
    give(s);
    return NULL;
}

static bool put(struct gh_pointers *map, uint64_t key, uint64_t value, bool replace) {
    struct gh_shard *s;
    struct gh_pointer *cell = cell_of(map, key, true, &s);
    bool done = cell && (replace || !cell->key);
    if (!cell)
        return false;
    s->used += !cell->key;
    if (done)
        *cell = (struct gh_pointer){key, value};
    give(s);
    return done;
}

bool gh_pointers_put(struct gh_pointers *map, uint64_t key, uint64_t value) { return put(map, key, value, true); }
bool gh_pointers_put_new(struct gh_pointers *map, uint64_t key, uint64_t value) { return put(map, key, value, false); }

static uint64_t look_up(struct gh_pointers *map, uint64_t key, bool remove) {
    struct gh_shard *s;
    struct gh_pointer *cell = cell_of(map, key, false, &s);
    uint64_t value = cell ? cell->value : 0;
    if (!cell)
        return 0;
    if (remove)
        remove_at(s, (uint32_t)(cell - s->cell));
    give(s);
    return value;
}

uint64_t gh_pointers_get(struct gh_pointers *map, uint64_t key) { return look_up(map, key, false); }
uint64_t gh_pointers_take(struct gh_pointers *map, uint64_t key) { return look_up(map, key, true); }

int64_t gh_pointers_count(struct gh_pointers *map, uint64_t key, int64_t more) {
    struct gh_shard *s;
    struct gh_pointer *cell = cell_of(map, key, more > 0, &s);
    if (!cell)
        return -1;
    s->used += !cell->key;
    int64_t value = (cell->key ? (int64_t)cell->value : 0) + more;
    *cell = (struct gh_pointer){key, (uint64_t)value};
    if (value <= 0)
        remove_at(s, (uint32_t)(cell - s->cell));
    give(s);
    return value;
}

void gh_pointers_filter(struct gh_pointers *map, bool (*drop)(uint64_t, uint64_t, void *), void *with) {
    for (int n = 0; n < GH_SHARDS; n++) {
        struct gh_shard *s = &map->shard[n];
        if (!take(s))
            continue;
        /* A removal may move a later pair into place i, or an earlier place: repeat until nothing is removed. */
        for (bool again = true; again && s->bits;) {
            again = false;
            for (uint32_t i = 0; i < 1u << s->bits;) {
                if (s->cell[i].key && drop(s->cell[i].key, s->cell[i].value, with)) {
                    remove_at(s, i);
                    again = true;
                } else {
                    i++;
                }
            }
        }
        give(s);
    }
}
