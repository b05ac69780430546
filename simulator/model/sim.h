/* Tenants on one GPU in virtual time: their programs, the shim around decide(), and two baselines. */
#ifndef GPU_HOOK_MODEL_SIM_H
#define GPU_HOOK_MODEL_SIM_H

#include <stddef.h>

#include "gate/decide.h"
#include "gpu.h"
#include "rng.h"

enum policy { NATIVE, STRICT, LEDGER };
enum charge { EXACT, SPLIT, LEARNED };
enum gap_kind { GAP_FIXED, GAP_UNIFORM, GAP_EXPONENTIAL };

/* Tenants that break the rules. BYPASS: launches without the gate and publishes nothing. GREEDY: the same, and claims
 * tenure for ever. GHOST: claims tenure for ever and does nothing. */
enum lie { HONEST, BYPASS, GREEDY, GHOST };

/* What a tenant's program repeats: `count` kernels, then a synchronise if `sync`, then a gap. */
struct program {
    uint64_t count, kernel, host; /* kernels per burst; mean ns of each; host ns per launch */
    double sigma;                 /* standard deviation of ln(duration) */
    uint64_t rare, rare_ppm;      /* ns of a rare kernel of another length; how often it comes */
    int sync;
    uint64_t gap;    /* ns after a burst */
    uint64_t period; /* open loop: mean ns between requests, instead of a gap */
    enum gap_kind spread;
    enum lie lie;
    uint64_t begin;   /* when it starts, ns */
    uint64_t on, off; /* runs in the first `on` of each on + off */
};

enum fault { NO_FAULT, KILL, STOP };

struct config {
    enum policy policy;
    enum charge charge;
    uint64_t seed, length, warm; /* ns */
    uint64_t slice, switch_loaded, switch_idle, depth, wake, snapshot, spin;
    struct gh_rules rules;
    uint32_t kappa;
    uint64_t strict_quantum;
    enum fault fault; /* happens to the tenant that has the tenure at fault_at */
    uint64_t fault_at, fault_for;
    unsigned count;
    struct program program[MAX_TENANTS];
    struct gh_share share[MAX_TENANTS];
};

struct samples {
    uint64_t *at;
    size_t count, room;
};

#define WINDOW_LENGTH (100 * GH_MS)
#define WINDOWS 1024u

enum host_state { BURST, LAUNCH, GATE, FULL, SYNC, SYNCED, GONE };

struct tenant {
    struct program program;
    struct rng rng;
    const double *durations;
    enum host_state state;
    uint64_t at; /* when the host acts next; NEVER while it waits for the GPU */
    uint64_t left, duration, asked, next_request;
    uint32_t key;

    struct gh_own own;           /* what the shim keeps of its own tenant, */
    struct gh_peers peers;       /* and of what others cost it */
    struct gh_decision decision; /* the last one */
    int asked_once;
    struct gh_gpu view;     /* what the shim last read of all slots */
    uint64_t viewed, pacer; /* when it read `view`; time of the next pacer step, or NEVER */
    unsigned waits_on;      /* the slot it waits for; GH_SLOTS: none */
    uint8_t mode, waited;   /* of the last decision; of the last one that was to wait */
    struct gh_cost cost[2];
    uint64_t estimate[QUEUE_SIZE], charged_completed, charged_shared;
    struct gh_gaps gaps;
    int tenure; /* whether it has the tenure; and counters when that began: */
    uint64_t tenure_clear, tenure_pending;
    uint64_t stopped_until; /* after a SIGSTOP: nothing of it runs before this time */

    uint64_t submitted, charged, requests; /* results */
    uint64_t completed0, executed0, charged0;
    struct samples latency;
    uint64_t window[WINDOWS], longest_hold, held_from, longest_kernel;
};

/* How often things happened that must never happen. */
struct violations {
    uint64_t v_went_back, late_low_submit, late_release, no_progress, cap_exceeded;
};

struct sim {
    struct config config;
    struct gh_gpu published; /* the slots as their owners wrote them */
    uint64_t now;
    struct { /* of the strict lease */
        unsigned owner;
        uint64_t end;
        int draining;
        unsigned queue[MAX_TENANTS], waiting;
    } lease;
    unsigned victim;
    uint64_t takeover; /* from the fault to another tenant's next submission; NEVER: none */
    uint64_t stalled_from, longest_stall;
    /* of the highest class: */
    uint64_t high_from, high_idle; /* when its request began; when its work ended; 0: it did not */
    int low_gone;
    uint64_t low_ended;
    struct samples low_free, release;
    struct violations violations;
    uint64_t ignored;     /* how often a tenant came to ignore a peer that cost it too much */
    uint64_t events, low; /* number of events; mask of the tenants below the highest class */
    struct gpu gpu;       /* the last two fields: only tenants in use are cleared */
    struct tenant tenant[MAX_TENANTS];
};

/* Runs `config` in `sim`, which the caller allocates and sim_release() frees. */
void sim_run(struct sim *sim, const struct config *config);
void sim_release(struct sim *sim);
void config_default(struct config *config);
void samples_add(struct samples *samples, uint64_t value);
/* The sample below which `ppm` of all are; 0 without samples. Sorts them. */
uint64_t samples_at(struct samples *samples, uint64_t ppm);

#endif
