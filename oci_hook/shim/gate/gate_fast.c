/* The fast path: while nobody else uses the GPU and no cap counts our work, launches bypass the gate. */
#define _GNU_SOURCE
#include "gate/gate_state.h"

/* Measures how fast the fast path's clock ticks, and lets it use what we know of the others for as long as one look is
 * valid. False: not known yet. */
static bool measure_ticks(struct gh_gate *g, uint64_t tick, uint64_t now) {
    uint32_t scale = peers_scale(&g->peers);
    if (!g->tick0) {
        g->tick0 = tick;
        g->clock0 = now;
        return false;
    }
    uint64_t ns = (now - g->clock0) * scale;
    if (ns < GH_MS || tick <= g->tick0)
        return false;
    double rate = (double)(tick - g->tick0) / (double)ns;
    uint64_t fresh = (uint64_t)(rate * (double)(PEERS_LOOK_EVERY * scale)) | 1;
    atomic_store_explicit(&g->fast->fresh, fresh, memory_order_relaxed);
    return true;
}

void gate_note_brief(struct gh_gate *g, uint64_t key, const struct cost *cost) {
    _Atomic uint64_t *word = &g->brief[key % GATE_KEYS / 64];
    uint64_t bit = 1ull << key % 64;
    bool brief = cost_is_brief(cost), was = atomic_load_explicit(word, memory_order_relaxed) & bit;
    if (brief != was)
        brief ? atomic_fetch_or(word, bit) : atomic_fetch_and(word, ~bit);
}

void gate_set_open(struct gh_gate *g, uint64_t now) {
    uint64_t tick = gate_ticks();
    bool ready = true;
    g->wanting = 0;
    inflight_counts(&g->inflight, now);
    slot_idle(&g->own_slot, now);
    slot_active(&g->own_slot, now);
    slot_alive(&g->own_slot, now);
    if (peers_others(&g->peers))
        ready = measure_ticks(g, tick, now);
    else
        atomic_store_explicit(&g->fast->fresh, 0, memory_order_relaxed);
    atomic_store_explicit(&g->fast->looked, tick, memory_order_relaxed);
    atomic_store_explicit(&g->fast->open, ready ? peers_seq(&g->peers) : UINT64_MAX, memory_order_release);
}

void gate_set_closed(struct gh_gate *g, uint64_t now) {
    if (atomic_load_explicit(&g->fast->open, memory_order_relaxed) != UINT64_MAX)
        inflight_counts(&g->inflight, now);
    atomic_store_explicit(&g->fast->open, UINT64_MAX, memory_order_relaxed);
}
