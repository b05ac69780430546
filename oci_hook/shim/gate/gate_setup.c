/* Makes the gates: one for each GPU whose time is shared; and finds the one of a stream. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "driver/cuda_gpu.h"
#include "driver/real.h"
#include "gate/gate_state.h"

static struct gh_gate *make_gate(const struct gh_gpu_policy *policy, uint32_t class_, unsigned gpu,
                                 struct gate_fast *fast, _Atomic uint64_t *brief) {
    struct gh_gate *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return NULL;
    g->fast = fast;
    g->brief = brief;
    peers_begin(&g->peers, policy, class_, gpu);
    if (!slot_attach(&g->own_slot, gpu)) {
        munmap(g, sizeof *g);
        return NULL;
    }
    uint64_t now = gate_now(g);
    inflight_begin(&g->inflight, peers_scale(&g->peers));
    usage_begin(&g->usage, slot_head(&g->own_slot), now);
    pacer_used(g, now);
    peers_look(&g->peers, now, 1); /* opens their files */
    gate_take_credit(g, now, (int64_t)min64(slot_unpaid(&g->own_slot), UNPAID_MOST));
    if (slot_inherited(
            &g->own_slot)) /* a process was killed in its tenure and started again at once: end that tenure */
        gate_yield(g, now);
    fast->seq = peers_seq_word(&g->peers);
    atomic_store(&fast->open, UINT64_MAX);
    return g;
}

static void make_all(struct gh_state *st, struct gates *made) {
    struct gh_gpu_policy policy;
    uint32_t gpus = 1, class_ = 0;
    for (unsigned gpu = 0; gpu < gpus && gpu < GH_POLICY_GPUS; gpu++) {
        if (!gh_policy_gpu(st, gpu, &policy, &gpus, &class_))
            break; /* without a policy all memory is refused */
        if (gpu >= gpus || !policy.slot || policy.slot > GH_SLOTS || policy.flags & GH_GPU_WHOLE)
            continue;
        struct gh_gate *g = make_gate(&policy, class_, gpu, &made->fast[made->count], made->brief);
        if (g) {
            made->of_gpu[gpu] = g;
            made->gate[made->count++] = g;
        }
    }
}

struct gates *gates_make(struct gh_state *st) {
    struct gates *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || !gh_lock(&st->gates_lock))
        return NULL;
    struct gates *there = atomic_load(&st->gates);
    if (there) {
        munmap(made, sizeof *made);
    } else {
        make_all(st, made);
        atomic_store_explicit(&st->gates, made, memory_order_release);
        there = made;
    }
    gh_unlock(&st->gates_lock);
    return there;
}

struct gh_gate *gate_of(CUstream stream, CUcontext *context, struct gone_to *to) {
    struct gh_state *st = gh_here();
    struct gates *all = gates_here();
    *to = (struct gone_to){0};
    if (!st || !all || !(*context = stream_context(stream, to)))
        return NULL;
    struct place at = current_place(st);
    return at.gpu < 0 || at.gpu >= GH_POLICY_GPUS ? NULL : all->of_gpu[at.gpu];
}
