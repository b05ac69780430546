/* A gate for each GPU that is shared out, and the GPU page that it goes by. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate/gate_inside.h"
#include "pages/layout.h"
#include "process/policy.h"

#define SCALE_MAX 1000u
#define PAGE_TRIES 1000

uint64_t gate_now(const struct gh_gate *g) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * GH_S + (uint64_t)t.tv_nsec) / g->scale;
}

static const struct gh_gpu_page *map_gpu_page(unsigned gpu) {
    size_t at = GH_POLICY_SIZE + (size_t)gpu * GH_GPU_PAGE_SIZE, end = at + GH_GPU_PAGE_SIZE;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_POLICY_FILE, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    struct stat st;
    char *p = MAP_FAILED;
    if (fd < 0)
        return NULL;
    /* From the beginning: a mapping's offset must suit the kernel's page size, which may be 64 KiB (arm64). */
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size >= (off_t)end)
        p = mmap(NULL, end, PROT_READ, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return p == MAP_FAILED ? NULL : (const struct gh_gpu_page *)(p + at);
}

/* The page as it is, unless it cannot be read or is none: then what was known of it stays. */
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
        if (LOAD(&g->page->seq) != seq)
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
                continue; /* our grant is gone, our processes are not yet: as before */
            g->view.share[k] = copy.slot[k].share;
            if (g->view.share[k].cap > GH_PPM)
                g->view.share[k].cap = GH_PPM;
            if (!(copy.present >> k & 1) || g->born[k] != copy.slot[k].born) {
                slot_close(&g->peer[k]);
                g->view.slot[k] = (struct gh_slot){0};
            }
            g->born[k] = copy.slot[k].born;
        }
        return;
    }
}

static const uint32_t no_page; /* its seq */

static struct gh_gate *make_gate(const struct gh_gpu_policy *policy, uint32_t class_, unsigned gpu,
                                 struct gate_fast *fast) {
    struct gh_gate *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return NULL;
    g->gpu = gpu;
    g->me = policy->slot - 1;
    g->fast = fast;
    g->seq = UINT32_MAX;
    g->page = map_gpu_page(gpu);
    gh_rules_default(&g->view.rules);
    g->view.present = 1ull << g->me;
    g->view.share[g->me] = (struct gh_share){
        .class_ = (uint8_t)class_,
        .weight = GH_WEIGHT_ONE,
        .cap = policy->compute_limit && policy->compute_limit < 100 ? policy->compute_limit * (GH_PPM / 100) : 0};
    gate_read_page(g);
    if (!g->scale)
        g->scale = 1;
    if (!slot_attach(&g->own_slot, gpu)) {
        munmap(g, sizeof *g);
        return NULL;
    }
    uint64_t now = gate_now(g);
    g->looked = g->view.seen = g->needed_at = now;
    g->seen[0] = (struct seen){.at = now, .clear_at = now + CLEAR_AFTER, .contexts = 1};
    g->contexts = 1;
    if (g->own_slot.inherited) /* killed in its tenure, and started anew at once: that is not ours */
        gate_yield(g, now);
    fast->seq = g->page ? &g->page->seq : &no_page;
    atomic_store(&fast->open, UINT64_MAX);
    return g;
}

struct gates *gates_make(struct gh_state *st) {
    struct gates *none = NULL,
                 *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct gh_gpu_policy policy;
    uint32_t gpus = 1, class_ = 0;
    if (made == MAP_FAILED)
        return NULL;
    if (!gh_lock(&st->gates_lock))
        return NULL;
    none = atomic_load(&st->gates);
    if (none) {
        gh_unlock(&st->gates_lock);
        munmap(made, sizeof *made);
        return none;
    }
    for (unsigned gpu = 0; gpu < gpus && gpu < GH_POLICY_GPUS; gpu++) {
        if (!gh_policy_gpu(st, gpu, &policy, &gpus, &class_))
            break; /* no policy: no memory either */
        if (gpu >= gpus || !policy.slot || policy.slot > GH_SLOTS || policy.flags & GH_GPU_WHOLE)
            continue;
        struct gh_gate *g = make_gate(&policy, class_, gpu, &made->fast[made->count]);
        if (g) {
            made->of_gpu[gpu] = g;
            made->gate[made->count++] = g;
        }
    }
    atomic_store_explicit(&st->gates, made, memory_order_release);
    gh_unlock(&st->gates_lock);
    return made;
}
