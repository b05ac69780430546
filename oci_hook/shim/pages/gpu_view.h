/* Input of the compute-sharing decision, as plain data: one GPU, its rules, and the share and slot of each tenant.
 * A tenant is a container on the GPU, with all its processes. It writes its own slot; the others read a snapshot.
 * Only gpu-hook writes shares and rules. Slots are not trusted: decide.h says what any bytes in them can cause.
 * Times and durations are nanoseconds of one clock common to the GPU. Virtual time v is nanoseconds of GPU time at
 * weight GH_WEIGHT_ONE. */
#ifndef GPU_HOOK_GPU_VIEW_H
#define GPU_HOOK_GPU_VIEW_H

#include <stdint.h>

#define GH_SLOTS 64u
#define GH_WEIGHT_ONE 100u
#define GH_PPM 1000000u
#define GH_US 1000ull
#define GH_MS 1000000ull
#define GH_S 1000000000ull

/* The bytes of these two structs are copied and compared, so the compiler may insert no padding. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

/* A tenant's compute share: what gpu-hook grants the container on this GPU. */
struct gh_share {
    uint8_t class_;  /* enum gh_class of policy_page.h; a higher class goes first */
    uint8_t freeze;  /* stopped by the agent or `gpu-hook freeze`: admit nothing */
    uint16_t weight; /* 1..10000, relative to the other weights; GH_WEIGHT_ONE is only the unit of v */
    uint32_t cap;    /* most GPU time, in ppm of elapsed time; 0 no cap */
    uint32_t linger; /* how long a slot counts as busy after its work; 0: as long as the slot says (bounded) */
};

/* A tenant's slot, as it published it. */
struct gh_slot {
    uint64_t launched;    /* commands submitted */
    uint64_t done;        /* commands seen to be finished; the tenant is busy while launched != done */
    uint64_t done_at;     /* when `done` last changed */
    uint64_t heartbeat;   /* when the owner last wrote anything */
    uint64_t active_at;   /* when it was last busy, or waiting at the gate */
    uint64_t idle_since;  /* when it last stopped being busy */
    uint64_t woke_at;     /* when it last had work again after an idle time longer than gh_rules.wake_idle */
    uint64_t v;           /* virtual time */
    uint64_t residue;     /* estimated GPU time until its launched work is done, as of the heartbeat */
    uint64_t uncharged;   /* estimated GPU time of launched work that v does not contain yet */
    uint64_t epoch;       /* serial number of its last tenure (a time in which it has the GPU) */
    uint64_t start;       /* begin of that tenure */
    uint64_t end;         /* end of that tenure, which it moves to now when it yields */
    uint64_t probe_until; /* until then nobody else runs in its tenure, so that it can learn costs and saturation */
    uint32_t duty;        /* how much of the GPU it keeps busy when it has the GPU to itself: ppm, learned */
    uint32_t linger;      /* learned; used when gh_share.linger is 0 */
    uint8_t held;         /* one of its threads waits for its turn (not for its cap or the end of a freeze) */
    uint8_t saturated;    /* its duty is close to all of the GPU; with hysteresis */
    uint8_t ended;        /* set by the reader: no process of it holds a lock, so none runs */
    uint8_t processes;    /* that were alive lately; 255: so many or more */
    uint32_t want;        /* part of the last tenth of a second in which it had work, in ppm; 0: not known */
};

#pragma GCC diagnostic pop

/* The control laws' constants (defaults: gh_rules_default). */
struct gh_rules {
    uint64_t window;         /* how much GPU time may be in flight beside tenants of the same class */
    uint64_t window_light;   /* the same beside equals that need little of the GPU */
    uint64_t window_guarded; /* the same while a tenant of a higher class is on the GPU */
    uint64_t window_open;    /* the same while nobody else was active recently, for commands that are counted */
    uint64_t quantum;        /* mean tenure */
    uint64_t tenure_min;
    uint64_t tenure_sum;    /* bound for the sum of the tenures of all tenants that want the GPU */
    uint64_t recheck;       /* a waiting thread looks again after this, whatever it waits for */
    uint64_t idle_release;  /* a tenure ends when its owner was idle for longer than this */
    uint64_t mix_slack;     /* how far ahead of the least v a tenant may be and still run in another's tenure */
    uint64_t bank;          /* how far behind the others' v an idle time may leave a tenant */
    uint64_t wake_idle;     /* a tenant with work again after a longer idle time has woken */
    uint64_t wake_lag;      /* a woken tenant takes over if the v of the tenure's owner is this much higher */
    uint64_t wake_hold;     /* but only when the owner has had the GPU for this long, and been awake for a quantum */
    uint64_t probe;         /* nobody fills gaps in this first part of a tenure, so that the owner can learn */
    uint64_t probe_every;   /* a tenant has such an undisturbed part this often */
    uint64_t active_within; /* launches pass without a gate when no other tenant was active within this time */
    uint64_t heartbeat_stale;
    uint64_t silent;         /* a tenant that shows work but no sign of life for this long is passed over */
    uint64_t progress_stale; /* work of which nothing finished for this long does not count */
    uint64_t linger_max;
    uint64_t finish;               /* the tenure's owner may overrun it by this to finish the command that runs */
    uint64_t drain_max;            /* how long a tenant lets shorter remaining work of lower classes finish first */
    uint64_t pacer_min, pacer_max; /* bounds of the interval at which a process looks for its finished commands */
    uint64_t patience;             /* a peer that has cost a tenant so much beyond its part is ignored (gh_peers) */
    uint64_t burst;                /* most unused GPU time that a capped tenant can save up */
    uint64_t burst_beside;         /* the same while it waits for turns of others */
    uint64_t patience_least;       /* as much of it has a peer of any weight */
};

struct gh_gpu {
    uint64_t present; /* bit i: slot i is granted */
    uint64_t seen;    /* when the other tenants' slots were read */
    struct gh_rules rules;
    struct gh_share share[GH_SLOTS];
    struct gh_slot slot[GH_SLOTS];
};

#endif
