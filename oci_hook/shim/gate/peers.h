/* This process's view of the others on its GPU: the GPU page, which gpu-hook writes, and snapshots of the other
 * containers' slots, which they write themselves. The gate's lock is held, except during a test of locks. */
#ifndef GPU_HOOK_PEERS_H
#define GPU_HOOK_PEERS_H

#include "gate/belief.h"
#include "gate/clock.h"
#include "gate/decide.h"
#include "gate/slot_peer.h"
#include "process/state.h"

#define PEERS_LOOK_EVERY (100 * GH_US)

/* Another container on the GPU, or nobody. */
struct peer {
    uint64_t born; /* of the grant in this slot, by the GPU page; 0 free */
    struct slot_peer slot;
};

struct peers {
    const struct gh_gpu_page *page; /* NULL: none */
    uint32_t seq;                   /* of the page that was read last */
    uint32_t scale;                 /* times are CLOCK_MONOTONIC divided by this */
    uint32_t tiers;                 /* of the GPU page */
    unsigned gpu, me;
    struct gh_gpu view; /* what gh_decide sees; `seen` is the time of the last look */
    struct peer peer[GH_SLOTS];
    struct gh_peers costs; /* what waiting for each of them has cost */
    struct belief belief;  /* the time that each of them is believed to have had */
    uint64_t ask_at;       /* real time until which no container's locks are tested */
    unsigned asked;        /* the slot whose locks were tested last */
};

/* From the policy page's record of that GPU, whose time is shared. */
void peers_begin(struct peers *p, const struct gh_gpu_policy *policy, uint32_t class_, unsigned gpu);
static inline uint64_t peers_now(const struct peers *p) { return clock_scaled(p->scale); }
static inline uint32_t peers_scale(const struct peers *p) { return p->scale; }
static inline uint32_t peers_tiers(const struct peers *p) { return p->tiers; }
static inline unsigned peers_me(const struct peers *p) { return p->me; }
static inline const struct gh_gpu *peers_view(const struct peers *p) { return &p->view; }
static inline const struct gh_share *peers_share(const struct peers *p) { return &p->view.share[p->me]; }
static inline const struct gh_rules *peers_rules(const struct peers *p) { return &p->view.rules; }
/* Our own slot, as the last peers_own has it. */
static inline const struct gh_slot *peers_mine(const struct peers *p) { return &p->view.slot[p->me]; }
static inline void peers_own(struct peers *p, const struct gh_slot *mine) { p->view.slot[p->me] = *mine; }
static inline uint64_t peers_savings(const struct peers *p, uint64_t now) { return gh_savings(&p->view, p->me, now); }
static inline uint64_t peers_window(const struct peers *p) { return gh_window(&p->view, p->me); }
/* The others on the GPU, as bits. */
static inline uint64_t peers_others(const struct peers *p) { return p->view.present & ~(1ull << p->me); }

static inline bool peers_old(const struct peers *p, uint64_t now) { return now - p->view.seen >= PEERS_LOOK_EVERY; }
/* The others at a look: how many of their processes have work, by their word; and what they are believed to have. */
struct peers_said {
    uint32_t contexts;
    struct believed believed;
};
/* Reads the GPU page and the other slots again. ours: processes of our container that have work. A page that cannot be read, or
 * is none, leaves what was known of it. */
struct peers_said peers_look(struct peers *p, uint64_t now, uint32_t ours);
/* Before each decision: counts what the last one has cost; gh_peers_count. True: from now on a peer is ignored. */
bool peers_count(struct peers *p, const struct gh_decision *last, uint64_t now, uint64_t charged);
/* After a decision to let lower classes' work drain. */
static inline void peers_drain(struct peers *p, uint64_t now) { gh_peers_drain(&p->costs, &p->view, p->me, now); }
static inline const struct gh_peers *peers_costs(const struct peers *p) { return &p->costs; }
/* The longest estimated time until the work in flight of a lower class is done; at most rules.linger_max. */
uint64_t peers_lower_residue(const struct peers *p);
/* Somebody else has used the GPU lately, or may be about to. */
bool peers_awake(const struct peers *p);
bool peers_any_lower(const struct peers *p);
/* The slot of a higher class that was active last; GH_SLOTS: none. */
unsigned peers_higher(const struct peers *p);

/* The word on which to wait for that slot, or for the GPU page, and what it was when it was read. NULL: none. */
const uint32_t *peers_slot_word(const struct peers *p, unsigned slot, uint32_t *seen);
const uint32_t *peers_page_word(const struct peers *p, uint32_t *seen);
/* The seq for which what we know of the GPU page is valid. */
static inline uint32_t peers_seq(const struct peers *p) { return p->page ? p->seq : 0; }
/* The GPU page's seq, or a word that is 0 for ever. */
const uint32_t *peers_seq_word(const struct peers *p);

/* A container is silent, so that somebody should find out whether it still runs. */
bool peers_to_ask(const struct peers *p);
/* Finds out for one of them, which may take long: other containers decide how long. Releases `lock` meanwhile. All such
 * tests together take a hundredth of the time at most, and each container's locks are tested every 50 ms at most. */
void peers_ask(struct peers *p, struct gh_lock *lock);

#endif
