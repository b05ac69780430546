#define _GNU_SOURCE
#include "gate/peers.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pages/arithmetic.h"
#include "pages/layout.h"
#include "process/atomics.h"

#define SCALE_MAX 1000u
#define PAGE_TRIES 1000

/* ---- the GPU page ---- */

static const struct gh_gpu_page *map_page(unsigned gpu) {
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

/* One slot of a page that has changed. A slot with another grant has another file. */
static void take_over(struct peers *p, const struct gh_gpu_page *page, unsigned slot) {
    bool present = page->present >> slot & 1;
    struct peer *peer = &p->peer[slot];
    if (slot == p->me && !present)
        return; /* our grant has ended, but our processes still run: keep what we know */
    p->view.share[slot] = page->slot[slot].share;
    if (p->view.share[slot].cap > GH_PPM)
        p->view.share[slot].cap = GH_PPM;
    if (!present || peer->born != page->slot[slot].born) {
        slot_close(&peer->slot);
        p->view.slot[slot] = (struct gh_slot){0};
        gh_peers_forget(&p->costs, slot);
        belief_forget(&p->belief, slot);
    }
    peer->born = page->slot[slot].born;
}

/* Takes over the GPU page if it has changed. */
static void read_page(struct peers *p) {
    struct gh_gpu_page copy;
    for (int i = 0; p->page && i < PAGE_TRIES; i++) {
        uint32_t seq = __atomic_load_n(&p->page->seq, __ATOMIC_ACQUIRE);
        if (seq & 1)
            continue;
        if (seq == p->seq)
            return;
        memcpy(&copy, p->page, sizeof copy);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (WORD_LOAD_RELAXED(&p->page->seq) != seq)
            continue;
        p->seq = seq;
        if (copy.magic != GH_GPU_MAGIC || copy.version != GH_GPU_VERSION || copy.size != GH_GPU_PAGE_SIZE)
            return;
        if (!p->scale)
            p->scale = copy.time_scale < 1 ? 1 : copy.time_scale > SCALE_MAX ? SCALE_MAX : copy.time_scale;
        p->view.present = copy.present | 1ull << p->me;
        p->tiers = copy.tiers;
        for (unsigned k = 0; k < GH_SLOTS; k++)
            take_over(p, &copy, k);
        return;
    }
}

void peers_begin(struct peers *p, const struct gh_gpu_policy *policy, uint32_t class_, unsigned gpu) {
    uint32_t limit = policy->compute_limit;
    p->gpu = gpu;
    p->me = p->asked = policy->slot - 1;
    p->seq = UINT32_MAX;
    p->page = map_page(gpu);
    gh_rules_default(&p->view.rules);
    p->view.present = 1ull << p->me;
    p->view.share[p->me] = (struct gh_share){
        .class_ = (uint8_t)class_, .weight = GH_WEIGHT_ONE, .cap = limit && limit < 100 ? limit * (GH_PPM / 100) : 0};
    read_page(p);
    if (!p->scale)
        p->scale = 1;
    p->view.seen = peers_now(p);
}

const uint32_t *peers_page_word(const struct peers *p, uint32_t *seen) {
    *seen = p->seq;
    return p->page ? &p->page->seq : NULL;
}

const uint32_t *peers_seq_word(const struct peers *p) {
    static const uint32_t no_page;
    return p->page ? &p->page->seq : &no_page;
}

/* ---- the other slots ---- */

/* Most processes of the container in that slot that may be believed to have work. */
static unsigned most_contexts(const struct peers *p, unsigned slot, uint64_t now) {
    if (!p->page || mul64(now, p->scale) >= WORD_LOAD_RELAXED(&p->page->counted_until))
        return GH_SLOT_PROCESSES;
    unsigned counted = WORD_LOAD_RELAXED(&p->page->contexts[slot]);
    return counted ? counted : 1;
}

struct peers_said peers_look(struct peers *p, uint64_t now, uint32_t ours) {
    if (p->page && WORD_LOAD_RELAXED(&p->page->seq) != p->seq)
        read_page(p);
    struct gh_slot *slot = p->view.slot;
    uint64_t elapsed = now - p->view.seen, top = slot[p->me].v;
    uint8_t claimed[GH_SLOTS] = {0};
    struct peers_said said = {0};
    bool busy = slot[p->me].launched != slot[p->me].done;
    for (uint64_t left = p->view.present; left; left &= left - 1)
        top = max64(top, slot[__builtin_ctzll(left)].v);
    for (uint64_t left = peers_others(p); left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left), theirs;
        struct gh_slot before = slot[i];
        slot[i] = slot_read(&p->peer[i].slot, p->gpu, i, p->peer[i].born, now, &p->view.rules, &before, elapsed, top,
                            &theirs);
        unsigned most = most_contexts(p, i, now);
        theirs = (unsigned)min64(theirs, most);
        slot[i].processes = (uint8_t)min64(slot[i].processes, most);
        claimed[i] = (uint8_t)theirs;
        said.contexts += theirs;
    }
    p->view.seen = now;
    said.believed = belief_look(&p->belief, &p->view, p->me, now, elapsed, busy, claimed, ours);
    return said;
}

bool peers_count(struct peers *p, const struct gh_decision *last, uint64_t now, uint64_t charged) {
    uint64_t before = p->costs.ignorings;
    gh_peers_count(&p->costs, &p->view, p->me, last, now, charged);
    return p->costs.ignorings != before;
}

uint64_t peers_lower_residue(const struct peers *p) {
    uint64_t most = 0;
    for (uint64_t left = p->view.present; left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        const struct gh_slot *s = &p->view.slot[i];
        if (p->view.share[i].class_ < p->view.share[p->me].class_ && s->launched != s->done)
            most = max64(most, s->residue);
    }
    return min64(most, p->view.rules.linger_max);
}

bool peers_awake(const struct peers *p) {
    for (uint64_t left = peers_others(p); left; left &= left - 1) {
        const struct gh_slot *s = &p->view.slot[__builtin_ctzll(left)];
        uint64_t last = max64(s->heartbeat, s->active_at);
        if (last && !s->ended && age64(p->view.seen, last) < p->view.rules.active_within)
            return true;
    }
    return false;
}

bool peers_any_lower(const struct peers *p) {
    for (uint64_t left = p->view.present; left; left &= left - 1)
        if (p->view.share[__builtin_ctzll(left)].class_ < p->view.share[p->me].class_)
            return true;
    return false;
}

unsigned peers_higher(const struct peers *p) {
    unsigned found = GH_SLOTS;
    for (uint64_t left = p->view.present; left; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctzll(left);
        if (p->view.share[i].class_ > p->view.share[p->me].class_ && !p->view.slot[i].ended &&
            (found == GH_SLOTS || p->view.slot[i].active_at > p->view.slot[found].active_at))
            found = i;
    }
    return found;
}

const uint32_t *peers_slot_word(const struct peers *p, unsigned slot, uint32_t *seen) {
    const struct slot_peer *peer = &p->peer[slot % GH_SLOTS].slot;
    *seen = peer->word;
    return slot < GH_SLOTS && peer->mapped ? &peer->mapped->head.word : NULL;
}

/* ---- which of them run ---- */

bool peers_to_ask(const struct peers *p) {
    if (clock_ns() < p->ask_at)
        return false;
    for (uint64_t left = peers_others(p); left; left &= left - 1)
        if (slot_may_ask(&p->peer[__builtin_ctzll(left)].slot))
            return true;
    return false;
}

void peers_ask(struct peers *p, struct gh_lock *lock) {
    if (clock_ns() < p->ask_at)
        return;
    for (unsigned i = 1; i <= GH_SLOTS; i++) { /* in turns: one whose tests take long keeps no other from its own */
        unsigned slot = (p->asked + i) % GH_SLOTS;
        if (slot == p->me || !slot_may_ask(&p->peer[slot].slot))
            continue;
        struct slot_peer copy = p->peer[slot].slot;
        p->asked = slot;
        gh_unlock(lock);
        uint64_t since = clock_ns();
        slot_ask(&copy);
        uint64_t pause = slot_file_again(since, clock_ns(), 0);
        if (!gh_lock(lock))
            return;
        p->ask_at = pause;
        slot_answered(&p->peer[slot].slot, &copy);
        return;
    }
}
