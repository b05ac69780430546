/* Checks the control laws one by one, on GPUs made by hand. check_decide NAME runs one check; without a name, all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gate/decide.h"

#define MUST(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

static const uint64_t now = 100 * GH_S;
static struct gh_gpu gpu;
static struct gh_own own;
static struct gh_peers peers;

/* Adds a tenant with work on the GPU, whose slot is up to date. */
static void tenant(unsigned i, unsigned class_, unsigned weight) {
    gpu.present |= 1ull << i;
    gpu.share[i] = (struct gh_share){.class_ = (uint8_t)class_, .weight = (uint16_t)weight};
    gpu.slot[i] = (struct gh_slot){.launched = 9,
                                   .done = 8,
                                   .done_at = now,
                                   .heartbeat = now,
                                   .active_at = now,
                                   .idle_since = now - GH_S,
                                   .v = GH_S,
                                   .duty = GH_PPM,
                                   .saturated = 1};
}

static void idle(unsigned i, uint64_t since) {
    gpu.slot[i].done = gpu.slot[i].launched;
    gpu.slot[i].idle_since = gpu.slot[i].active_at = since;
}

static void claim(unsigned i, uint64_t epoch, uint64_t start, uint64_t length) {
    gpu.slot[i].epoch = epoch;
    gpu.slot[i].start = start;
    gpu.slot[i].end = start + length;
}

static struct gh_decision ask(unsigned me) {
    own.inflight = gpu.slot[me].launched == gpu.slot[me].done ? 0 : 80 * GH_US;
    return gh_decide(&gpu, me, &own, now, 80 * GH_US);
}

static void open_alone(void) {
    tenant(0, 1, 100);
    struct gh_decision d = ask(0);
    MUST(d.go && d.mode == GH_OPEN && !d.takes);
    tenant(1, 1, 100); /* a peer whose last work was 2 s ago does not count */
    idle(1, now - 2 * GH_S);
    d = ask(0);
    MUST(d.go && d.mode == GH_OPEN);
}

/* Alone for now, a tenant queues no more than 20 ms of work, so that who comes next has its part soon. */
static void little_is_queued_while_others_may_come(void) {
    tenant(0, 1, 100);
    own.inflight = 19 * GH_MS;
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
    struct gh_decision d = gh_decide(&gpu, 0, &own, now, 2 * GH_MS);
    MUST(!d.go && !d.held && d.mode == GH_OPEN && d.on == GH_ON_OWN_DONE && d.until <= now + 200 * GH_US);
    own.inflight = 5 * GH_MS; /* the running command is nearly done */
    MUST(gh_decide(&gpu, 0, &own, now, 300 * GH_MS).go);
    own.inflight = GH_COST_UNKNOWN + 19 * GH_MS; /* up to two commands of unknown cost */
    MUST(gh_decide(&gpu, 0, &own, now, GH_COST_UNKNOWN).go);
    own.inflight += GH_COST_UNKNOWN;
    MUST(!gh_decide(&gpu, 0, &own, now, GH_COST_UNKNOWN).go);
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
}

static void guarded_after_company(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    idle(1, now - GH_S / 2);
    struct gh_decision d = ask(0);
    MUST(d.go && d.mode == GH_GUARDED);
    own.inflight = gpu.rules.window;
    d = gh_decide(&gpu, 0, &own, now, 80 * GH_US);
    MUST(!d.go && d.on == GH_ON_OWN_DONE);
}

/* Beside tenants that need little of the GPU together, a program may run ahead of the GPU, over its own pauses. */
static void ahead_beside_light_ones(void) {
    tenant(0, 1, 100);
    for (unsigned i = 1; i <= 2; i++) {
        tenant(i, 1, 100);
        idle(i, now - GH_S / 2);
        gpu.slot[i].saturated = 0;
        gpu.slot[i].duty = GH_PPM / 8;
    }
    own.inflight = 9 * GH_MS;
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
    MUST(!gh_decide(&gpu, 0, &own, now, 2 * GH_MS).go);
    gpu.slot[0].saturated = 0, gpu.slot[0].duty = GH_PPM / 2; /* it may have pauses itself */
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.slot[2].duty++; /* together more than a quarter */
    MUST(!gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.slot[2].saturated = 1; /* when it has work, which is rare */
    gpu.slot[2].want = GH_PPM / 8;
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.share[2].weight = 20; /* but more than its part */
    MUST(!gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.share[2].weight = 100, gpu.slot[2].want++;
    MUST(!gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.slot[2].idle_since = gpu.slot[2].active_at = now - 2 * GH_S; /* but one of them has left */
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.slot[0].saturated = gpu.slot[1].saturated = 1;
    MUST(!gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.slot[1].saturated = 0;
    MUST(gh_decide(&gpu, 0, &own, now, GH_MS).go);
    gpu.share[1].class_ = 2; /* online work must not find so much queued */
    MUST(!gh_decide(&gpu, 0, &own, now, GH_MS).go);
}

static uint64_t charged(unsigned me) {
    struct gh_rise rise = gh_charge(&gpu, me, GH_S);
    return gh_risen(&rise, gpu.slot[me].v);
}

/* Those that need little are held for nobody, nor the others for them, and v runs ahead for none of them. */
static void light_ones_are_not_held(void) {
    tenant(0, 1, 70);
    tenant(1, 1, 30);
    gpu.slot[1].want = GH_PPM / 50, gpu.slot[1].idle_since = now - GH_MS;
    for (unsigned me = 0; me < 2; me++) {
        gpu.slot[me].v += GH_S;
        claim(!me, me + 1, now - GH_MS, 10 * GH_MS);
        MUST(ask(me).go && ask(me).mode == GH_MIX);
        gpu.slot[!me].v = gpu.slot[me].v - gpu.rules.mix_slack + 1;
        MUST(charged(me) == gpu.slot[me].v + 1);
        MUST(charged(!me) == gpu.slot[!me].v + gpu.rules.mix_slack);
    }
    gpu.slot[1].want = GH_PPM / 2;
    gpu.slot[1].v = gpu.slot[0].v + GH_S;
    gpu.slot[0].v = GH_S;
    MUST(!ask(1).go && charged(1) > gpu.slot[1].v + GH_S);
}

/* The driver divides its time by processes. */
static void beside_many_processes_nobody_is_light(void) {
    for (unsigned i = 0; i < 3; i++) {
        tenant(i, 1, 100);
        gpu.slot[i].want = i ? GH_PPM / 10 : 0;
    }
    own.inflight = 9 * GH_MS;
    gpu.slot[1].processes = 9; /* of one that needs little */
    gpu.slot[0].processes = 1;
    for (unsigned me = 0; me < 3; me++)
        MUST(gh_decide(&gpu, me, &own, now, GH_MS).go);
    gpu.slot[0].processes = 2;
    for (unsigned me = 0; me < 3; me++)
        MUST(!gh_decide(&gpu, me, &own, now, GH_MS).go);
    MUST(charged(0) >= gpu.slot[0].v + GH_S);
}

/* A command longer than the window may follow the last quarter of another, unless online work may come. */
static void long_ones_queue_behind_an_end(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    idle(1, now - GH_S / 2);
    own.inflight = gpu.rules.window / 4;
    MUST(gh_decide(&gpu, 0, &own, now, 5 * GH_MS).go);
    MUST(!gh_decide(&gpu, 0, &own, now, GH_COST_UNKNOWN).go);
    own.inflight++;
    MUST(!gh_decide(&gpu, 0, &own, now, 5 * GH_MS).go);
    own.inflight = 1;
    gpu.share[1].class_ = 2;
    MUST(!gh_decide(&gpu, 0, &own, now, 5 * GH_MS).go);
}

static void rotate_by_least_v(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    gpu.slot[1].v -= 1;
    struct gh_decision d = ask(1);
    MUST(d.go && d.takes && d.mode == GH_ROTATE && d.epoch == 1 && d.end - d.start == 10 * GH_MS);
    d = ask(0);
    MUST(!d.go && !d.takes && d.on == GH_ON_SLOT && d.slot == 1);
    claim(1, 1, now - GH_MS, 10 * GH_MS);
    d = ask(0);
    MUST(!d.go && d.until <= now + gpu.rules.recheck);
}

static void equal_claims_lower_slot_wins(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    claim(0, 5, now - GH_MS, 10 * GH_MS);
    claim(1, 5, now - GH_MS, 10 * GH_MS);
    MUST(ask(0).go && !ask(1).go);
}

static void tenure_by_weight(void) {
    tenant(0, 1, 70);
    tenant(1, 1, 30);
    gpu.slot[0].v--;
    struct gh_decision d = ask(0);
    MUST(d.end - d.start == 14 * GH_MS);
    gpu.slot[1].v -= 2;
    d = ask(1);
    MUST(d.end - d.start == 6 * GH_MS);
}

static void tenures_stay_below_a_tenth_of_a_second(void) {
    for (unsigned i = 0; i < GH_SLOTS; i++)
        tenant(i, 1, 1 + i);
    gpu.slot[63].v--;
    struct gh_decision d = ask(63);
    MUST(d.takes && d.end - d.start <= 100 * GH_MS && d.end - d.start >= 2 * GH_MS);
}

static void mix_lets_others_fill(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    claim(0, 1, now - GH_MS, 10 * GH_MS);
    gpu.slot[0].saturated = 0;
    gpu.slot[0].duty = GH_PPM / 2;
    struct gh_decision d = ask(1);
    MUST(d.go && d.mode == GH_MIX);
    gpu.slot[1].v += 6 * GH_MS; /* but not if it is too far ahead */
    d = ask(1);
    MUST(!d.go && d.ahead && d.slot == 0);
    own.ahead = 1;
    gpu.slot[1].v -= 3 * GH_MS; /* then it stays stopped until most of the lead is gone */
    MUST(!ask(1).go);
    gpu.slot[1].v -= 2 * GH_MS;
    MUST(ask(1).go && !ask(1).ahead);
}

/* Who waits because of its lead blames the tenant with the least v, whoever has the tenure. */
static void a_lead_is_blamed_on_the_last(void) {
    for (unsigned i = 0; i < 3; i++)
        tenant(i, 1, 100);
    claim(2, 1, now - GH_MS, 10 * GH_MS);
    gpu.slot[0].saturated = 0;
    gpu.slot[0].v -= 20 * GH_MS;
    struct gh_decision d = ask(1);
    MUST(!d.go && d.ahead && d.slot == 2 && d.blame == 0);
}

static void probe_is_left_alone(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    gpu.slot[0].saturated = 0;
    gpu.slot[0].v--;
    struct gh_decision d = ask(0);
    MUST(d.takes && d.probe_until == now + 5 * GH_MS);
    claim(0, d.epoch, d.start, d.end - d.start);
    gpu.slot[0].probe_until = d.probe_until;
    d = ask(1);
    MUST(!d.go && d.mode == GH_MIX);
    gpu.slot[0].probe_until = UINT64_MAX; /* a claim beyond the longest probe is cut to that */
    gpu.slot[0].start = now - 6 * GH_MS;
    MUST(ask(1).go);
}

static void small_gap_is_no_idling(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    claim(0, 1, now - GH_MS, 10 * GH_MS);
    gpu.slot[0].saturated = 0;
    idle(0, now - 100 * GH_US);
    gpu.slot[1].v += 6 * GH_MS;
    MUST(!ask(1).go);
    idle(0, now - 300 * GH_US);
    MUST(ask(1).go);
}

static void idle_primary_loses_its_tenure(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    claim(0, 1, now - GH_MS, 10 * GH_MS);
    idle(0, now - 100 * GH_US);
    struct gh_decision d = ask(1);
    MUST(!d.go && d.until <= now + 100 * GH_US + 1); /* that one may come back at any moment */
    idle(0, now - 201 * GH_US);
    d = ask(1);
    MUST(d.go && d.takes && d.epoch == 2);
}

static void dead_or_silent_primary_loses_its_tenure(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    claim(0, 1, now - GH_MS, 10 * GH_MS);
    MUST(!ask(1).go);
    gpu.slot[0].ended = 1;
    MUST(ask(1).go);
    gpu.slot[0].ended = 0;
    gpu.slot[0].heartbeat = gpu.slot[0].done_at = now - 3 * GH_MS;
    struct gh_decision d = ask(1);
    MUST(d.go && d.takes && d.epoch == 2);
    gpu.slot[0].done_at = now; /* its work progresses, so it counts as alive */
    MUST(!ask(1).go);
}

static void woken_takes_over(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    claim(0, 4, now - 2 * GH_MS, 10 * GH_MS);
    claim(1, 3, now - GH_S, 10 * GH_MS);
    idle(1, now - 5 * GH_MS);
    gpu.slot[1].woke_at = now - 10 * GH_US;
    MUST(!ask(1).go);
    gpu.slot[1].v -= 2 * GH_MS;
    struct gh_decision d = ask(1);
    MUST(d.go && d.takes && d.epoch == 5);
    gpu.slot[0].woke_at = now - 2 * GH_MS; /* not from one that woke a moment ago itself */
    MUST(!ask(1).go);
}

static void bank_bounds_credit(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    gpu.slot[0].v = 0;
    MUST(gh_wake_v(&gpu, 0) == GH_S - 20 * GH_MS);
    gpu.slot[0].v = GH_S - 5 * GH_MS;
    MUST(gh_wake_v(&gpu, 0) == gpu.slot[0].v);
    idle(1, now - 2 * GH_S); /* there is no other to compare with */
    gpu.slot[0].v = 0;
    MUST(gh_wake_v(&gpu, 0) == 0);
}

static void higher_class_freezes(void) {
    tenant(0, 2, 100);
    tenant(1, 0, 100);
    gpu.share[0].linger = 2 * GH_MS;
    struct gh_decision d = ask(1);
    MUST(!d.go && d.mode == GH_FROZEN && d.on == GH_ON_SLOT && d.slot == 0);
    idle(0, now - GH_MS);
    d = ask(1);
    MUST(!d.go && d.until == now + GH_MS);
    idle(0, now - 2 * GH_MS);
    d = ask(1);
    MUST(d.go && d.mode == GH_GUARDED);
    own.inflight = 150 * GH_US; /* the small window, since a higher class is registered */
    MUST(!gh_decide(&gpu, 1, &own, now, 80 * GH_US).go);
    gpu.slot[0].launched++;
    gpu.slot[0].done_at = gpu.slot[0].heartbeat = now - 2 * GH_S; /* it is stuck or lost: lower classes go on */
    gpu.slot[0].active_at = now - 2 * GH_S;
    MUST(ask(1).go);
}

static void drain_then_go(void) {
    tenant(0, 2, 100);
    tenant(1, 0, 100);
    idle(0, now - GH_S / 2);
    gpu.slot[1].residue = 150 * GH_US;
    struct gh_decision d = ask(0);
    MUST(!d.go && d.mode == GH_DRAIN && d.until == now + 200 * GH_US);
    gh_peers_drain(&peers, &gpu, 0, now - 199 * GH_US); /* it has begun, and takes longer than its estimate */
    d = ask(0);
    MUST(!d.go && d.until == now + GH_US);
    peers.drain_at = now - 200 * GH_US;
    MUST(ask(0).go);
    memset(&peers, 0, sizeof peers);
    gpu.slot[1].residue = 900 * GH_US; /* to wait would only cost time */
    MUST(ask(0).go);
    gpu.slot[1].residue = 200 * GH_US;
    gpu.slot[0].launched++; /* the GPU is not about to become idle */
    MUST(ask(0).go);
}

/* One drain after each time in which lower classes were let in, and only for a tenant that finishes something. */
static void drains_are_few(void) {
    tenant(0, 2, 100);
    tenant(1, 0, 100);
    gpu.share[0].linger = 2 * GH_MS;
    gpu.slot[1].residue = 150 * GH_US;
    idle(0, now - GH_MS); /* the lower class was not let in since */
    MUST(ask(0).go);
    idle(0, now - 3 * GH_MS);
    MUST(!ask(0).go);
    gh_peers_drain(&peers, &gpu, 0,
                   now - 20 * GH_MS); /* the drain before, in which that tenant was at the same point */
    MUST(ask(0).go);
    gpu.slot[1].done++, gpu.slot[1].launched++;
    MUST(!ask(0).go);
}

static void freeze_bit(void) {
    tenant(0, 1, 100);
    gpu.share[0].freeze = 1;
    struct gh_decision d = ask(0);
    MUST(!d.go && d.mode == GH_FROZEN && d.on == GH_ON_POLICY);
}

static void cap_also_alone(void) {
    tenant(0, 1, 100);
    gpu.share[0].cap = 300000;
    own.bucket = (struct gh_bucket){.level = -(int64_t)(300 * GH_US * GH_PPM), .at = now};
    struct gh_decision d = ask(0);
    MUST(!d.go && d.mode == GH_CAPPED && d.on == GH_ON_TIME && d.until - now >= GH_MS && d.until - now <= GH_MS + 3);
    own.bucket.level = 1;
    MUST(ask(0).go);
    gpu.slot[0].done = gpu.slot[0].launched - 1;
    MUST(!gh_decide(&gpu, 0, &own, now, GH_COST_UNKNOWN).go); /* a command of unknown cost runs alone */
    idle(0, now);
    MUST(gh_decide(&gpu, 0, &own, now, GH_COST_UNKNOWN).go);
}

static void bucket_is_exact(void) {
    struct gh_bucket b = {.level = 0, .at = now};
    uint64_t t = now, given = 0;
    for (int i = 0; i < 1000000; i++) { /* odd steps, each charge takes all there is: nothing is lost by rounding */
        t += 1237;
        b = gh_bucket_at(b, 333333, 10 * GH_MS, t);
        uint64_t whole = b.level > 0 ? (uint64_t)b.level / GH_PPM : 0;
        b = gh_bucket_take(b, (int64_t)whole);
        given += whole;
    }
    uint64_t due = (t - now) / 1000000 * 333333 + (t - now) % 1000000 * 333333 / 1000000;
    MUST(given <= due && due - given <= 1);
    b = gh_bucket_at(b, 333333, 10 * GH_MS, t + 10 * GH_S);
    MUST(b.level == (int64_t)(10 * GH_MS * GH_PPM));
    b = gh_bucket_take(b, (int64_t)GH_S);  /* reserved, */
    b = gh_bucket_take(b, -(int64_t)GH_S); /* released */
    MUST(b.level == (int64_t)(10 * GH_MS * GH_PPM));
}

/* Asks every millisecond for so long. Returns how often it was let go. It has nothing in flight all the time. */
static unsigned ask_for(unsigned me, uint64_t length, uint64_t charged) {
    unsigned went = 0;
    static struct gh_decision last;
    peers.counted_at = now - length;
    for (uint64_t t = now - length; t <= now; t += GH_MS) {
        gh_peers_count(&peers, &gpu, me, t > now - length ? &last : NULL, t, charged);
        last = gh_decide(&gpu, me, &own, t, 80 * GH_US);
        went += last.go;
    }
    return went;
}

static void who_costs_too_much_is_ignored(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    gpu.slot[0].v = 0; /* it claims tenure for ever and never charges itself */
    claim(0, 1, now - 50 * GH_MS, 100 * GH_MS);
    idle(1, now - GH_S);
    MUST(!ask_for(1, 50 * GH_MS, 0));
    MUST(ask_for(1, 50 * GH_MS, 0));
    MUST(peers.ignorings == 1);
    peers.beyond[0] = 10 * GH_MS; /* it is believed again once it took half of that */
    gh_peers_count(&peers, &gpu, 1, NULL, now + GH_MS, 0);
    MUST(!peers.ignored);
}

/* What honest peers of these weights take is not too much. Neither is the wait after a long command of one's own. */
static void a_peers_part_costs_nothing(void) {
    tenant(0, 1, 90);
    tenant(1, 1, 10);
    idle(1, now - GH_S);
    struct gh_decision wait = {.blame = 0}, run = {.go = 1, .blame = GH_SLOTS};
    uint64_t charged = 0;
    for (int round = 0; round < 1000; round++)
        for (int ms = 0; ms < 20; ms++) {
            uint64_t t = now + (uint64_t)(round * 20 + ms) * GH_MS;
            gh_peers_count(&peers, &gpu, 1, ms < 18 ? &wait : &run, t, charged += ms >= 18 ? GH_MS : 0);
            MUST(!peers.ignored);
        }
    for (int ms = 0; ms < 1000; ms++) /* a command of 100 ms; then the other one has 900 */
        gh_peers_count(&peers, &gpu, 1, ms < 100 ? &run : &wait, now + (uint64_t)(20000 + ms) * GH_MS,
                       charged += ms == 99 ? 100 * GH_MS : 0);
    MUST(!peers.ignored);
}

static void a_long_command_counts_from_its_launch(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    gpu.slot[0].v -= 5 * GH_MS;
    idle(1, now - GH_S);
    MUST(ask(1).blame == 0);
    gpu.slot[0].uncharged = 300 * GH_MS;
    MUST(ask(1).go && ask(1).takes);
}

/* The owner may overrun its tenure by ten milliseconds for the command that runs; others wait for its end. */
static void a_tenure_ends_with_its_command(void) {
    tenant(0, 1, 100);
    tenant(1, 1, 100);
    idle(1, now - GH_S);
    claim(0, 1, now - 12 * GH_MS, 10 * GH_MS);
    gpu.slot[0].uncharged = 20 * GH_MS;
    gpu.slot[0].residue = 7 * GH_MS;
    struct gh_decision d = ask(1);
    MUST(!d.go && d.slot == 0 && d.until <= now + 2 * GH_MS);
    gpu.slot[0].residue = 9 * GH_MS; /* it would overrun by more: others start beside it */
    MUST(ask(1).go);
    gpu.slot[0].residue = 7 * GH_MS;
    own.inflight = 0;
    gpu.slot[1].held = 1, gpu.slot[1].active_at = now;
    MUST(!gh_decide(&gpu, 0, &own, now, 80 * GH_US).go); /* but the owner launches nothing more */
}

static void weight_is_what_one_is_owed(void) {
    tenant(0, 1, 50);
    tenant(1, 1, 50);
    MUST(gh_weight(&gpu, 0, now) == 50000);
    gpu.slot[1].saturated = 0;
    gpu.slot[1].duty = 300000; /* it needs 30 % of the GPU, so it is owed 30 and the other 70 */
    MUST(gh_weight(&gpu, 1, now) == 30000 && gh_weight(&gpu, 0, now) == 70000);
    gpu.slot[1].duty = 700000; /* it needs more than its part */
    MUST(gh_weight(&gpu, 1, now) == 50000 && gh_weight(&gpu, 0, now) == 50000);
}

static void linger_follows_gaps(void) {
    struct gh_gaps gaps = {{0}};
    MUST(gh_linger(&gaps, GH_MS, 4) == 2 * GH_MS);
    for (int i = 0; i < 300; i++)
        gh_gap_seen(&gaps, 200 * GH_MS); /* all gaps are long: release the GPU at once */
    MUST(gh_linger(&gaps, GH_MS, 4) == 500 * GH_US);
    for (int i = 0; i < 300; i++)
        gh_gap_seen(&gaps, i % 8 ? GH_MS : 200 * GH_MS); /* a request has many gaps of 1 ms: linger longer than these */
    MUST(gh_linger(&gaps, GH_MS, 4) == 2 * GH_MS);
    for (int i = 0; i < 600; i++)
        gh_gap_seen(&gaps, i % 8 ? 6 * GH_MS : 200 * GH_MS);
    MUST(gh_linger(&gaps, 3 * GH_MS, 4) == 10 * GH_MS);
}

static void costs_are_learned(void) {
    struct gh_cost cost = {{0}, {0}};
    MUST(gh_cost_of(&cost) == GH_COST_UNKNOWN && gh_cost_charge(&cost, 77, 0) == 77);
    gh_cost_learn(&cost, 200 * GH_US, 0);
    MUST(gh_cost_of(&cost) == 200 * GH_US);
    for (int i = 0; i < 16; i++)
        gh_cost_learn(&cost, 80 * GH_US, 1);
    MUST(gh_cost_of(&cost) == 80 * GH_US); /* clean samples win over disturbed ones */
    MUST(gh_cost_charge(&cost, 300 * GH_US, 0) == 80 * GH_US && gh_cost_charge(&cost, 90 * GH_US, 1) == 90 * GH_US);
    for (int i = 0; i < 1000; i++)
        gh_cost_learn(&cost, 20 * GH_MS, 0);
    MUST(gh_cost_charge(&cost, 21 * GH_MS, 0) == 21 * GH_MS); /* long commands are charged their own time */
}

static void saturation_has_hysteresis(void) {
    MUST(gh_saturated(0, 949999) == 0 && gh_saturated(0, 950000) == 1);
    MUST(gh_saturated(1, 850000) == 1 && gh_saturated(1, 849999) == 0);
    uint32_t s = GH_PPM;
    for (int i = 0; i < 80; i++)
        s = gh_saturation(s, 2 * GH_MS, 4 * GH_MS);
    MUST(s > 490000 && s < 510000);
    for (int i = 0; i < 30; i++)
        s = gh_saturation(s, 4 * GH_MS, 4 * GH_MS);
    MUST(s > 990000);
    MUST(gh_saturation(s, 0, 20 * GH_MS) > 900000); /* a single gap does not count */
}

static const struct {
    const char *name;
    void (*check)(void);
} all[] = {
#define N(x) {#x, x}
    N(open_alone),
    N(little_is_queued_while_others_may_come),
    N(guarded_after_company),
    N(ahead_beside_light_ones),
    N(light_ones_are_not_held),
    N(beside_many_processes_nobody_is_light),
    N(long_ones_queue_behind_an_end),
    N(rotate_by_least_v),
    N(equal_claims_lower_slot_wins),
    N(tenure_by_weight),
    N(tenures_stay_below_a_tenth_of_a_second),
    N(mix_lets_others_fill),
    N(a_lead_is_blamed_on_the_last),
    N(probe_is_left_alone),
    N(small_gap_is_no_idling),
    N(idle_primary_loses_its_tenure),
    N(dead_or_silent_primary_loses_its_tenure),
    N(woken_takes_over),
    N(bank_bounds_credit),
    N(higher_class_freezes),
    N(drain_then_go),
    N(drains_are_few),
    N(freeze_bit),
    N(cap_also_alone),
    N(bucket_is_exact),
    N(who_costs_too_much_is_ignored),
    N(a_peers_part_costs_nothing),
    N(a_long_command_counts_from_its_launch),
    N(a_tenure_ends_with_its_command),
    N(weight_is_what_one_is_owed),
    N(linger_follows_gaps),
    N(costs_are_learned),
    N(saturation_has_hysteresis),
#undef N
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (argc > 1 && strcmp(argv[1], all[i].name))
            continue;
        memset(&gpu, 0, sizeof gpu);
        memset(&own, 0, sizeof own);
        memset(&peers, 0, sizeof peers);
        own.peers = &peers;
        gpu.seen = now;
        gh_rules_default(&gpu.rules);
        all[i].check();
        puts(all[i].name);
    }
    return 0;
}
