/* What the compute-sharing decision reads: one GPU, its tenants' slots, its rules, as plain data.
 * The owner of a slot publishes its view; everybody else reads a snapshot of it. Nothing here is trusted beyond what
 * decide.h says: a slot is written by a tenant, the shares and the rules only by gpu-hook.
 * Units: times and durations in nanoseconds of one clock common to the GPU; virtual time v in nanoseconds of GPU time
 * at weight GH_WEIGHT_ONE. */
#ifndef GPU_HOOK_SHARE_PAGES_H
#define GPU_HOOK_SHARE_PAGES_H

#include <stdint.h>

#define GH_SLOTS 64u
#define GH_WEIGHT_ONE 100u
#define GH_PPM 1000000u
#define GH_US 1000ull
#define GH_MS 1000000ull
#define GH_S 1000000000ull

/* Bytes of these two are copied and compared: none may hold what the compiler left there. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

/* What gpu-hook grants the slot's container on this GPU. */
struct gh_share {
    uint8_t class_;  /* enum gh_class of policy_page.h; a higher number goes first */
    uint8_t freeze;  /* the agent's stop: admit nothing */
    uint16_t weight; /* 1..10000; relative, GH_WEIGHT_ONE is only the unit of v */
    uint32_t cap;    /* GPU time in ppm of elapsed time, 0 none */
    uint32_t linger; /* how long a busy slot still counts as busy, 0: believe the slot's own (bounded) */
};

/* One tenant as it shows itself. All processes of a container are one tenant. */
struct gh_slot {
    uint64_t launched;    /* commands submitted */
    uint64_t done;        /* commands seen to be finished; busy means launched != done */
    uint64_t done_at;     /* when done last moved */
    uint64_t heartbeat;   /* when the owner last wrote anything */
    uint64_t active_at;   /* when it was last busy or held at a gate */
    uint64_t idle_since;  /* when it last became not busy */
    uint64_t woke_at;     /* when it last came back from an idle time longer than gh_rules.wake_idle */
    uint64_t v;           /* virtual time */
    uint64_t residue;     /* estimated GPU time to the end of what was launched, as of the heartbeat */
    uint64_t epoch;       /* the slot's last claim of tenure: serial number, */
    uint64_t start;       /* begin */
    uint64_t end;         /* and end; shortened to "now" to yield */
    uint64_t probe_until; /* nobody fills the tenure before: costs and saturation are learned undisturbed */
    uint32_t duty;        /* ppm of the GPU it keeps busy when it has it for itself (learned) */
    uint32_t linger;      /* adaptive linger of this slot, used when its share leaves the choice */
    uint8_t held;         /* a thread of it waits at a gate (for its turn, not for its own cap or a freeze) */
    uint8_t saturated;    /* duty is as good as all, with hysteresis */
    uint8_t dead;         /* set by the reader: the owner's lock is free */
    uint8_t reserved[5];
};

#pragma GCC diagnostic pop

/* The control laws' constants (defaults: gh_rules_default). */
struct gh_rules {
    uint64_t window;         /* in-flight bound among equals */
    uint64_t window_guarded; /* the same while a slot of a higher class is registered */
    uint64_t quantum;        /* mean tenure */
    uint64_t tenure_min;
    uint64_t tenure_sum;    /* the wanting tenants' tenures together stay below */
    uint64_t recheck;       /* a waiter looks again after this, whatever it waits for */
    uint64_t idle_release;  /* idle for longer: the tenure is over */
    uint64_t mix_slack;     /* lead of v over the least that a filling tenant may have */
    uint64_t bank;          /* credit that an idle time may leave */
    uint64_t wake_idle;     /* idle for longer and back: woke */
    uint64_t wake_lag;      /* a woken tenant with v this much lower than the primary's takes over */
    uint64_t wake_hold;     /* once the primary has had this much, and has itself been awake for a quantum */
    uint64_t probe;         /* undisturbed beginning of a tenure that others fill, */
    uint64_t probe_every;   /* this often */
    uint64_t active_within; /* a peer active this recently keeps the windows on */
    uint64_t heartbeat_stale;
    uint64_t silent;         /* who shows work and no sign of life for this long is passed over */
    uint64_t progress_stale; /* work that has not moved for this long does not count as work */
    uint64_t linger_max;
    uint64_t drain_max; /* a high tenant waits at most this for lower residues, if they promise to be shorter */
    uint64_t pacer_min, pacer_max; /* bounds of the step at which own completions are looked for */
    uint64_t starve;   /* held this long by equals with nothing in flight: go on as without gates for distrust */
    uint64_t distrust; /* for twice as long each time that it follows soon on the last, up to distrust_max */
    uint64_t distrust_max;
    uint64_t burst; /* bound of a capped tenant's saved-up time */
};

struct gh_gpu {
    uint64_t present; /* bit i: slot i is granted */
    uint64_t seen;    /* when the others' slots were read */
    struct gh_rules rules;
    struct gh_share share[GH_SLOTS];
    struct gh_slot slot[GH_SLOTS];
};

#endif
