/* The GPU page that a gate follows, read as a snapshot when it has changed; and the clock that the page scales. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "gate/gate_inside.h"

#define SCALE_MAX 1000u
#define PAGE_TRIES 1000

uint64_t gate_now(const struct gh_gate *g) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * GH_S + (uint64_t)t.tv_nsec) / g->scale;
}

void gate_read_page(struct gh_gate *g) {
    struct gh_gpu_page copy;
    for (int i = 0; g->page && i < PAGE_TRIES; i++) {
        uint32_t seq = __atomic_load_n(&g->page->seq, __ATOMIC_ACQUIRE);
        if (seq & 1)
            continue;
        if (seq == g->seq)
            return;
        memcpy(&copy, g->page, sizeof copy);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (WORD_LOAD_RELAXED(&g->page->seq) != seq)
            continue;
        g->seq = seq;
        if (copy.magic != GH_GPU_MAGIC || copy.version != GH_GPU_VERSION || copy.size != GH_GPU_PAGE_SIZE)
            return;
        if (!g->scale)
            g->scale = copy.time_scale < 1 ? 1 : copy.time_scale > SCALE_MAX ? SCALE_MAX : copy.time_scale;
        g->view.present = copy.present | 1ull << g->me;
        g->tiers = copy.tiers;
        for (unsigned k = 0; k < GH_SLOTS; k++) {
            if (k == g->me && !(copy.present >> k & 1))
                continue; /* our grant has ended, but our processes still run: keep what we know */
            g->view.share[k] = copy.slot[k].share;
            if (g->view.share[k].cap > GH_PPM)
                g->view.share[k].cap = GH_PPM;
            if (!(copy.present >> k & 1) || g->born[k] != copy.slot[k].born) {
                slot_close(&g->peer[k]);
                g->view.slot[k] = (struct gh_slot){0};
                g->peers.beyond[k] = 0;
                g->peers.drained[k] = 0;
            }
            g->born[k] = copy.slot[k].born;
        }
        return;
    }
}
