/* Makes the gates: one for each GPU whose time is shared. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate/gate_inside.h"
#include "pages/layout.h"
#include "process/policy.h"

static const struct gh_gpu_page *map_gpu_page(unsigned gpu) {
    size_t at = GH_POLICY_SIZE + (size_t)gpu * GH_GPU_PAGE_SIZE, end = at + GH_GPU_PAGE_SIZE;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_POLICY_FILE, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    struct stat st;
    char *p = MAP_FAILED;
    if (fd < 0)
        return NULL;
    /* From offset 0, since an offset must be a multiple of the kernel's page size, which may be 64 KiB (arm64). */
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size >= (off_t)end)
        p = mmap(NULL, end, PROT_READ, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return p == MAP_FAILED ? NULL : (const struct gh_gpu_page *)(p + at);
}

static const uint32_t no_page; /* the word that stands for its seq */

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
    uint64_t now = gate_now(g), never = 0;
    /* A container has saved up no GPU time before its first process; a process that ended leaves what it did not pay. */
    __atomic_compare_exchange_n(&gate_head(g)->credit, &never, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    if (g->own_slot.unpaid)
        gate_take_credit(g, now, (int64_t)min64(g->own_slot.unpaid, 10 * GH_S));
    g->looked = g->view.seen = g->needed_at = now;
    g->seen[0] = (struct seen){.at = now, .clear_at = now + CLEAR_AFTER, .contexts = 1};
    g->contexts = 1;
    if (g->own_slot.inherited) /* a process was killed in its tenure and started again at once: end that tenure */
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
            break; /* without a policy all memory is refused */
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
