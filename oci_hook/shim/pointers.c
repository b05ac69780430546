#define _GNU_SOURCE
#include "pointers.h"

#include <string.h>
#include <sys/mman.h>

#include "state.h"

#define FIRST_BITS 8

/* Device pointers are multiples of 256 or more, handles are small numbers: multiply, then use the high bits. */
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

/* Backward-shift deletion: no tombstones, so that a map that lives long stays quick. */
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

static bool put(struct gh_pointers *map, uint64_t key, uint64_t value, bool replace) {
    uint64_t hash = mix(key);
    struct gh_shard *s = shard_of(map, hash);
    if (!key || !take(s))
        return false;
    bool room = (s->bits && s->used + 1 <= (1u << s->bits) / 4 * 3) || grow(s);
    if (room) {
        struct gh_pointer *cell = find(s, key, hash);
        room = replace || !cell->key;
        s->used += !cell->key;
        if (room)
            *cell = (struct gh_pointer){key, value};
    }
    give(s);
    return room;
}

bool gh_pointers_put(struct gh_pointers *map, uint64_t key, uint64_t value) { return put(map, key, value, true); }
bool gh_pointers_put_new(struct gh_pointers *map, uint64_t key, uint64_t value) { return put(map, key, value, false); }

uint64_t gh_pointers_get(struct gh_pointers *map, uint64_t key) {
    uint64_t hash = mix(key), value = 0;
    struct gh_shard *s = shard_of(map, hash);
    if (!key || !take(s))
        return 0;
    if (s->bits) {
        struct gh_pointer *cell = find(s, key, hash);
        value = cell->key ? cell->value : 0;
    }
    give(s);
    return value;
}

uint64_t gh_pointers_take(struct gh_pointers *map, uint64_t key) {
    uint64_t hash = mix(key), value = 0;
    struct gh_shard *s = shard_of(map, hash);
    if (!key || !take(s))
        return 0;
    if (s->bits) {
        struct gh_pointer *cell = find(s, key, hash);
        if (cell->key) {
            value = cell->value;
            remove_at(s, (uint32_t)(cell - s->cell));
        }
    }
    give(s);
    return value;
}

void gh_pointers_filter(struct gh_pointers *map, bool (*drop)(uint64_t, uint64_t, void *), void *with) {
    for (int n = 0; n < GH_SHARDS; n++) {
        struct gh_shard *s = &map->shard[n];
        if (!take(s))
            continue;
        /* A removal may shift a later pair into place i, or wrap one behind us: look again until nothing goes. */
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
