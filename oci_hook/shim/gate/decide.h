/* The compute-sharing decision: pure functions of what is passed in. No clock, no memory of their own, no I/O, no
 * floating point; integers saturate, so that any bytes in a neighbour's slot give a decision and nothing worse.
 * The shim and the model in simulator/model compile this same file. */
#ifndef GPU_HOOK_DECIDE_H
#define GPU_HOOK_DECIDE_H

#include "pages/gpu_view.h"

enum gh_mode {
    GH_OPEN,    /* nobody else was active of late: no gate */
    GH_GUARDED, /* alone now, but for how long: the window only */
    GH_ROTATE,  /* all who want are saturated: one tenure after the other */
    GH_MIX,     /* some leave gaps: all within the slack may fill them */
    GH_FROZEN,  /* a higher class has the GPU, or the agent's stop */
    GH_CAPPED,  /* own cap used up */
    GH_DRAIN    /* a high tenant lets a short residue of lower ones end first */
};

/* On which word a held thread sleeps; `until` bounds every sleep. */
enum gh_wait { GH_ON_NOTHING, GH_ON_POLICY, GH_ON_SLOT, GH_ON_OWN_DONE, GH_ON_TIME };

/* Token bucket of a capped tenant. level is in ns x ppm, so that no refill loses a fraction. */
struct gh_bucket {
    int64_t level;
    uint64_t at;
};

/* What a tenant knows of itself and does not publish. */
struct gh_own {
    struct gh_bucket bucket;
    uint64_t inflight;       /* estimated GPU time of launched, not done commands */
    uint64_t running_since;  /* since when the oldest command in flight can have been running, */
    uint64_t running_cost;   /* and its estimated GPU time */
    uint64_t held_since;     /* begin of the present wait at the gate, 0 when not held */
    uint64_t distrust_until; /* gates of equals are ignored until then, */
    uint64_t distrust_for;   /* which is so long */
    uint64_t probed_at;      /* last claim with a probe_until */
    uint8_t idle;            /* this process has nothing in flight, though its container may have */
    uint8_t ahead;           /* was stopped for its lead, and stays so until most of it is gone */
};

struct gh_decision {
    uint8_t go;
    uint8_t mode;  /* enum gh_mode */
    uint8_t on;    /* enum gh_wait, when not go */
    uint8_t slot;  /* with GH_ON_SLOT */
    uint8_t claim; /* publish epoch, start, end, probe_until in the own slot, then wake its waiters */
    uint8_t held;  /* publish as the own slot's `held` */
    /* The owner of a tenure that is told to wait for a slot or for its cap yields: it sets its `end` to now at the
     * latest and wakes its waiters, since they may have reckoned with an older v of its. */
    uint64_t until;
    uint64_t epoch, start, end, probe_until;
    uint64_t distrust_until, distrust_for; /* these three to be kept in gh_own */
    uint8_t ahead;
};

void gh_rules_default(struct gh_rules *rules);

/* May tenant `me` submit a command of estimated GPU time `cost` at `now`? Asked before every submission.
 * gpu->slot[me] is the own slot, up to date; the others are snapshots. A cost of GH_COST_UNKNOWN goes alone. */
struct gh_decision gh_decide(const struct gh_gpu *gpu, unsigned me, const struct gh_own *own, uint64_t now,
                             uint64_t cost);

/* The own slot's v after idle time: at most `bank` behind the least v of the peers that were active of late. */
uint64_t gh_wake_v(const struct gh_gpu *gpu, unsigned me);

/* v after `charge` ns of GPU time at gh_weight(). Never less than before. */
uint64_t gh_charge(uint64_t v, uint64_t charge, uint32_t weight);

/* The weight v is kept by, in thousandths: what the tenant is owed now. A tenant that cannot use its part (duty) is
 * owed only its duty, the others the rest by weight: so it does not hold them back, nor they it. */
uint32_t gh_weight(const struct gh_gpu *gpu, unsigned me, uint64_t now);

/* gh_own.held_since after a decision: time that others, not the own window, cap or a freeze, keep me waiting. */
uint64_t gh_held_since(const struct gh_own *own, const struct gh_decision *decision, uint64_t now);

/* Bucket at `now`; then less `charge` ns of GPU time (negative: given back), debt allowed. The estimate is taken at
 * submission, the difference to the charge when the command is done: so the bound on savings loses nothing meanwhile. */
struct gh_bucket gh_bucket_at(struct gh_bucket bucket, uint32_t cap, uint64_t burst, uint64_t now);
struct gh_bucket gh_bucket_take(struct gh_bucket bucket, int64_t charge);

/* What is left of the work in flight, taking the oldest command to run since it could. */
uint64_t gh_residue(const struct gh_own *own, uint64_t now);

/* Duty in ppm after `length` ns of tenure of which `pending` had work; the flag has hysteresis. */
uint32_t gh_saturation(uint32_t before, uint64_t pending, uint64_t length);
uint8_t gh_saturated(uint8_t before, uint32_t saturation);

/* Step of the pacer for an in-flight bound. */
uint64_t gh_pacer_step(const struct gh_rules *rules, uint64_t window);
uint64_t gh_window(const struct gh_gpu *gpu, unsigned me);

/* Adaptive linger: a decaying histogram of a high tenant's idle gaps. */
#define GH_GAP_BINS 24 /* bin i: gaps below 2^i x 8 us */
struct gh_gaps {
    uint32_t bin[GH_GAP_BINS];
};
void gh_gap_seen(struct gh_gaps *gaps, uint64_t gap);
/* The candidate T with the least expected idle time + kappa x loss x P(gap > T); loss is one re-preemption's, in ns. */
uint32_t gh_linger(const struct gh_gaps *gaps, uint64_t loss, uint32_t kappa);

/* Learned cost of a command key: running mean over the last GH_LEARN samples. Clean samples were measured after nobody
 * else had had work for a while; the others, elapsed time shared out among those with work, serve until there is a clean one. */
#define GH_LEARN 256u
#define GH_LEARN_CLEAN 16u /* so many before they are believed */
#define GH_COST_UNKNOWN GH_S
struct gh_cost {
    uint64_t mean[2]; /* ns x 256; of all samples, of clean ones */
    uint32_t samples[2];
};
void gh_cost_learn(struct gh_cost *cost, uint64_t elapsed, int clean);
uint64_t gh_cost_of(const struct gh_cost *cost);
/* What a finished command is charged: its own elapsed time where that is clean, else its key's cost. Long ones are
 * rarely undisturbed from begin to end, and learning from the short ones among them would be unfair: always their own
 * elapsed time, shared out. */
#define GH_COST_LONG (2 * GH_MS)
uint64_t gh_cost_charge(const struct gh_cost *cost, uint64_t elapsed, int clean);

#endif
