/* The compute-sharing decision: pure functions, without clock, state, I/O or floating point. Integers saturate, so any
 * bytes in another container's slot give a decision and nothing worse. The shim compiles this file, and so does the
 * model in simulator/model. */
#ifndef GPU_HOOK_DECIDE_H
#define GPU_HOOK_DECIDE_H

#include "pages/arithmetic.h"
#include "pages/gpu_view.h"

enum gh_mode {
    GH_OPEN,    /* no other tenant was active recently: no gate */
    GH_GUARDED, /* alone, but others may come at any time: only the window bounds launches */
    GH_ROTATE,  /* all that want the GPU are saturated: one tenure after the other */
    GH_MIX,     /* some leave gaps, which all tenants within the slack may fill */
    GH_FROZEN,  /* a higher class has the GPU, or the agent has stopped this tenant */
    GH_CAPPED,  /* the tenant's own cap is used up */
    GH_DRAIN    /* a tenant of a higher class lets short remaining work of lower ones finish */
};

/* The word on which a waiting thread sleeps. gh_decision.until bounds every sleep. */
enum gh_wait { GH_ON_NOTHING, GH_ON_POLICY, GH_ON_SLOT, GH_ON_OWN_DONE, GH_ON_TIME };

/* Token bucket of a capped tenant. level is in ns x ppm, so that refilling loses no fraction. */
struct gh_bucket {
    int64_t level;
    uint64_t at;
};

/* Cost to a tenant of waiting for each peer, by the tenant's own clock and decisions alone. So it bounds what a peer
 * can cost, whatever that peer writes into its slot: gh_peers_count, docs/internals/compute-gate.md. */
struct gh_peers {
    uint64_t counted_at;      /* 0: not yet */
    uint64_t ignored;         /* bit i: peer i has cost too much; its tenures, its v and its wish to run do not count */
    uint64_t ignorings;       /* how often a peer came to be ignored */
    uint64_t unpaid;          /* bit i: peer i does not charge itself for the time that it has */
    int64_t beyond[GH_SLOTS]; /* ns waited for peer i with nothing in flight, less what peer i may cost */
    /* ns that peer i had: beside us, by its own say, or while we waited for it; and its v when that was 0 */
    uint64_t beside[GH_SLOTS], v[GH_SLOTS];
    /* GPU time of the tenant: charged so far; of that, by long commands beyond its part; in flight, of long commands, at
     * the last count; of its longest recent command */
    uint64_t charged, surplus, foreseen, longest;
    uint64_t drain_at;          /* begin of the last drain; 0: none */
    uint64_t drained[GH_SLOTS]; /* 1 + `done` of peer i when a drain for its work last began; 0: never */
};

/* State of a process that it does not publish. */
struct gh_own {
    struct gh_bucket bucket;
    uint64_t inflight;      /* estimated GPU time of its commands in flight */
    uint64_t running_since; /* since when the oldest command in flight may have been running */
    uint64_t running_cost;  /* estimated GPU time of that command */
    uint64_t siblings;      /* GPU time left of the longest work in flight of another process of the container */
    uint64_t waited;        /* time that the launch has been at the gate */
    uint64_t probed_at;     /* time of its last tenure with a probe_until */
    const struct gh_peers *peers;
    uint8_t idle;  /* this process has nothing in flight, though the container may have */
    uint8_t ahead; /* the tenant waits because of its lead in v, until most of that is gone */
};

struct gh_decision {
    uint8_t go;
    uint8_t mode;  /* enum gh_mode */
    uint8_t on;    /* enum gh_wait, if not go */
    uint8_t slot;  /* with GH_ON_SLOT */
    uint8_t takes; /* publish epoch, start, end and probe_until in our slot, then wake its waiters */
    uint8_t held;  /* publish as `held` of our slot */
    uint8_t blame; /* the peer of the same class for which the tenant waits; GH_SLOTS: it waits for no such peer */
    uint8_t ahead; /* to be kept in gh_own */
    uint8_t lone;  /* the tenant's processes launch such commands one by one, first the one that has waited longest */
    /* If the owner of a tenure must wait for a slot or for its cap, it yields: it sets its `end` to now at the
     * latest and wakes its waiters, since they may have calculated with an older v of this tenant. */
    uint64_t until;
    uint64_t epoch, start, end, probe_until;
    /* With `go`: estimated GPU time of further commands that may be launched without asking until the slots are to be read
     * again, since no other tenant loses anything by them. */
    uint64_t spare;
};

void gh_rules_default(struct gh_rules *rules);

/* The tenants of my class that want the GPU at `now`, and me: as bits, and their weights together. */
struct gh_wanting {
    uint64_t mask, weights;
};
struct gh_wanting gh_wanting(const struct gh_gpu *gpu, unsigned me, uint64_t now);

/* May tenant `me` launch a command of estimated GPU time `cost` at `now`? Asked before every launch. gpu->slot[me] is
 * its own slot, up to date; the others are snapshots. A command of cost GH_COST_UNKNOWN is launched alone. */
struct gh_decision gh_decide(const struct gh_gpu *gpu, unsigned me, const struct gh_own *own, uint64_t now,
                             uint64_t cost);

/* The tenant's v after an idle time: at most `bank` behind the least v of its equals that were active recently. */
uint64_t gh_wake_v(const struct gh_gpu *gpu, unsigned me);

/* How v rises. Never less than before: gh_risen. */
struct gh_rise {
    uint64_t by, most; /* not beyond most */
};
static inline uint64_t gh_risen(const struct gh_rise *rise, uint64_t v) {
    return max64(v, min64(add64(v, rise->by), rise->most));
}

/* By `charge` ns of GPU time at weight gh_weight(). Beside equals that need little nobody is held for another, so v runs no
 * further than mix_slack ahead of theirs: else it would be a debt when they need more. */
struct gh_rise gh_charge(const struct gh_gpu *gpu, unsigned me, uint64_t charge);

/* The weight by which v is charged, in thousandths: what the tenant is owed now. A tenant that cannot use its part (see
 * duty) is owed only its duty, and the others share the rest by weight, so that none holds another back. */
uint32_t gh_weight(const struct gh_gpu *gpu, unsigned me, uint64_t now);

/* Counts the time since the last call, at each decision. last: the decision before; NULL: none.
 *
 * In time t a tenant of weight w, in a crowd of weight W that wants the GPU, may be kept waiting for t x (1 - 0.95 w/W).
 * Each peer of the crowd has its part of that by weight; a peer that has cost more and is idle now counts to the crowd
 * until its parts make up for that. A peer that has cost rules.patience (by weight, rules.patience_least at least) and a
 * tenure too much is ignored until half of that is made up for. So peers that write anything leave the tenant 0.95 w/W of
 * the time, less these amounts once. A wait that makes up for GPU time beyond its own part, as after a long command, is no
 * cost.
 * charged: GPU time that the tenant was charged so far. */
void gh_peers_count(struct gh_peers *peers, const struct gh_gpu *gpu, unsigned me, const struct gh_decision *last,
                    uint64_t now, uint64_t charged);

/* Peer i is another container from now on. */
void gh_peers_forget(struct gh_peers *peers, unsigned i);
/* After each decision with the mode GH_DRAIN. */
void gh_peers_drain(struct gh_peers *peers, const struct gh_gpu *gpu, unsigned me, uint64_t now);

/* Most that a capped tenant can save up now: gh_bucket_at. Beside others, what it cannot use until its turn comes is its own
 * still. */
uint64_t gh_savings(const struct gh_gpu *gpu, unsigned me, uint64_t now);

/* The bucket at `now`; and less `charge` ns of GPU time (negative: returned), which may leave a debt. The estimate is
 * taken at launch, the difference to the charge when the command is done, so a full bucket loses nothing meanwhile. */
struct gh_bucket gh_bucket_at(struct gh_bucket bucket, uint32_t cap, uint64_t burst, uint64_t now);
struct gh_bucket gh_bucket_take(struct gh_bucket bucket, int64_t charge);

/* GPU time left of the work in flight, if its oldest command has run since the earliest possible time. */
uint64_t gh_residue(const struct gh_own *own, uint64_t now);

/* gh_saturation: the new duty in ppm, after `length` ns of tenure in which the tenant had work for `pending` ns.
 * gh_saturated: the flag that follows from it, with hysteresis. */
uint32_t gh_saturation(uint32_t before, uint64_t pending, uint64_t length);
uint8_t gh_saturated(uint8_t before, uint32_t saturation);

/* gh_pacer_step: the interval at which the pacer looks, given the bound of work in flight. gh_window: that bound. */
uint64_t gh_pacer_step(const struct gh_rules *rules, uint64_t window);
uint64_t gh_window(const struct gh_gpu *gpu, unsigned me);

/* For the adaptive linger: a decaying histogram of a tenant's idle gaps. */
#define GH_GAP_BINS 24 /* bin i: gaps below 2^i x 8 us */
struct gh_gaps {
    uint32_t bin[GH_GAP_BINS];
};
void gh_gap_seen(struct gh_gaps *gaps, uint64_t gap);
/* The candidate T with the least expected idle time + kappa x loss x P(gap > T). loss: ns that a new freeze costs. */
uint32_t gh_linger(const struct gh_gaps *gaps, uint64_t loss, uint32_t kappa);

/* Learned cost of a command key: a running mean over GH_LEARN samples. Clean samples were measured when nobody else had
 * had work for a while. The others are the tenant's part of the elapsed time; they are used until enough are clean. */
#define GH_LEARN 256u
#define GH_LEARN_CLEAN 16u /* clean samples needed before they are used */
#define GH_COST_UNKNOWN GH_S
#define GH_UNKNOWN_MOST 2 /* commands of unknown cost in flight while nobody else is active */
struct gh_cost {
    uint64_t mean[2]; /* ns x 256: [0] of all samples, [1] of clean ones */
    uint32_t samples[2];
};
void gh_cost_learn(struct gh_cost *cost, uint64_t elapsed, int clean);
uint64_t gh_cost_of(const struct gh_cost *cost);
/* Charge for a finished command: its own elapsed time if that is clean, else the cost of its key. Long commands
 * are rarely undisturbed, and only the shortest of them would be clean: they are always charged their own time. */
#define GH_COST_LONG (2 * GH_MS)
uint64_t gh_cost_charge(const struct gh_cost *cost, uint64_t elapsed, int clean);

/* GPU time of a command that took `elapsed`, of which `part` is its context's by equal slices: less what the GPU lost in
 * switches. Slices of a long command end while other contexts have work, so a switch takes 8 per cent of each (GV100 and
 * A100: simulator/gpu_hook_simulator/calibration.json). contexts: that have work, with its own. */
static inline uint64_t gh_less_switches(uint64_t part, uint64_t elapsed, uint64_t contexts) {
    uint64_t lost =
        contexts > 1 && elapsed > GH_COST_LONG && elapsed > part ? (elapsed - part) / (contexts - 1) * 8 / 100 : 0;
    return lost < part ? part - lost : 0;
}

#endif
