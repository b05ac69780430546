/* Properties of decide() that hold for every input, whatever neighbours write into their slots.
 * With clang it is a libFuzzer target (-DLIBFUZZER -fsanitize=fuzzer,address,undefined). Otherwise it is a program with
 * a deterministic generator: fuzz_decide ITERATIONS SEED. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gate/decide.h"
#include "pages/slot_view.c"

static const uint8_t *input; /* libFuzzer's bytes */
static size_t input_left;
static uint64_t state; /* or a generator */
static uint64_t checks[40];
static const char *check_name[40];
static uint64_t bounds = 1000, until_bound = 1; /* one closed loop of bound_of_peers in so many iterations */

static uint64_t draw(void) {
    if (input) {
        uint64_t x = 0;
        size_t n = input_left < 8 ? input_left : 8;
        memcpy(&x, input, n);
        input += n;
        input_left -= n;
        return x;
    }
    uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static uint64_t below(uint64_t n) { return n ? draw() % n : 0; }

#define CHECK(id, condition)                                                                        \
    do {                                                                                            \
        checks[id]++;                                                                               \
        check_name[id] = #condition;                                                                \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: property %d broken: %s\n", __FILE__, __LINE__, id, #condition); \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

/* A time near now, also after it as hostile neighbours write it, or an extreme one. */
static uint64_t near(uint64_t now, int hostile) {
    static const uint64_t distance[] = {
        0,         1,          100 * GH_US, 200 * GH_US, 700 * GH_US, GH_MS,   2500 * GH_US,
        5 * GH_MS, 10 * GH_MS, 50 * GH_MS,  100 * GH_MS, GH_S - 1,    2 * GH_S};
    uint64_t d = distance[below(sizeof distance / sizeof *distance)];
    d += d ? below(d) : 0;
    if (hostile && below(4) == 0)
        return below(2) ? draw() : now + d;
    return d < now ? now - d : 0;
}

static void hostile_slot(struct gh_slot *s, uint64_t now) {
    if (below(3) == 0) { /* any bytes at all */
        uint64_t words[sizeof *s / 8];
        for (size_t i = 0; i < sizeof words / 8; i++)
            words[i] = below(8) ? draw() : below(2) ? UINT64_MAX : 0;
        memcpy(s, words, sizeof *s);
        return;
    }
    uint64_t launched = below(4);
    *s = (struct gh_slot){
        .launched = launched,
        .done = below(4) ? launched - below(2) : draw(),
        .done_at = near(now, 1),
        .heartbeat = near(now, 1),
        .active_at = near(now, 1),
        .idle_since = near(now, 1),
        .woke_at = near(now, 1),
        .v = below(4) ? below(GH_S) : draw(),
        .residue = below(4) ? below(GH_MS) : draw(),
        .uncharged = below(4) ? below(30 * GH_MS) : draw(),
        .duty = (uint32_t)(below(4) ? below(GH_PPM) : draw()),
        .epoch = below(4) ? below(8) : draw(),
        .start = near(now, 1),
        .probe_until = near(now, 1),
        .linger = (uint32_t)draw(),
        .held = (uint8_t)below(2),
        .saturated = (uint8_t)below(2),
        .ended = below(8) == 0,
    };
    s->end = below(4) ? s->start + below(30 * GH_MS) : draw();
}

static void honest_slot(struct gh_slot *s, uint64_t now) {
    uint64_t done = below(1000), pending = below(3);
    *s = (struct gh_slot){
        .launched = done + pending,
        .done = done,
        .done_at = now - below(2 * GH_MS),
        .heartbeat = now - below(2 * GH_MS),
        .active_at = now - below(GH_MS),
        .idle_since = now - GH_MS - below(GH_S),
        .v = GH_S + below(60 * GH_MS),
        .residue = pending * below(300 * GH_US),
        .duty = (uint32_t)(GH_PPM - below(GH_PPM)),
        .held = pending == 0,
        .saturated = (uint8_t)(below(3) != 0),
    };
    if (below(2)) {
        s->epoch = 1 + below(20);
        s->start = now - below(12 * GH_MS);
        s->end = s->start + 2 * GH_MS + below(18 * GH_MS);
    }
}

static struct gh_own own_of(uint64_t now, int hostile) {
    struct gh_own own = {
        .bucket = {.level = (int64_t)(below(2) ? below(10 * GH_MS * GH_PPM) : 0) - (int64_t)below(GH_MS * GH_PPM),
                   .at = near(now, 0)},
        .inflight = below(2 * GH_MS),
        .running_since = near(now, hostile),
        .running_cost = below(GH_MS),
        .siblings = below(4) ? 0 : draw() >> below(64),
        .waited = below(4 * GH_MS),
        .probed_at = near(now, 0),
        .ahead = (uint8_t)below(2),
    };
    return own;
}

static int same(const struct gh_decision *a, const struct gh_decision *b) {
    return a->go == b->go && a->mode == b->mode && a->on == b->on && a->slot == b->slot && a->takes == b->takes &&
           a->held == b->held && a->until == b->until && a->epoch == b->epoch && a->start == b->start &&
           a->end == b->end && a->probe_until == b->probe_until && a->blame == b->blame && a->ahead == b->ahead &&
           a->spare == b->spare && a->lone == b->lone;
}

/* Properties that hold for any bytes in the slots of the others. */
static void any_neighbours(void) {
    static struct gh_gpu gpu, copy;
    memset(&gpu, 0, sizeof gpu);
    gh_rules_default(&gpu.rules);
    uint64_t now = below(16) ? 10 * GH_S + below(1000 * GH_S) : below(2) ? below(GH_MS) : UINT64_MAX - below(10 * GH_S);
    gpu.present = below(8) ? below(256) : draw();
    gpu.seen = near(now, 0);
    unsigned me = (unsigned)below(GH_SLOTS);
    gpu.present |= 1ull << me;
    for (unsigned i = 0; i < GH_SLOTS; i++) {
        if (!(gpu.present >> i & 1))
            continue;
        gpu.share[i] = (struct gh_share){
            .class_ = (uint8_t)(below(3) ? 1 : below(3)),
            .freeze = below(16) == 0,
            .weight = (uint16_t)(1 + below(below(2) ? 100 : 65535)),
            .cap = below(4) ? 0 : (uint32_t)(1 + below(GH_PPM)),
            .linger = (uint32_t)(below(2) ? 0 : below(200 * GH_MS)),
        };
        hostile_slot(&gpu.slot[i], now);
    }
    gpu.slot[me].ended = 0;
    static struct gh_peers peers;
    memset(&peers, 0, sizeof peers);
    peers.ignored = below(2) ? 0 : below(2) ? draw() : UINT64_MAX;
    peers.drain_at = below(2) ? 0 : near(now, 0);
    struct gh_own own = own_of(now, 1);
    own.peers = below(8) ? &peers : NULL;
    uint64_t cost = below(4) ? below(below(2) ? GH_MS : GH_S) : below(2) ? GH_COST_UNKNOWN : draw();
    memcpy(&copy, &gpu, sizeof gpu); /* the bytes between its fields, too */

    struct gh_decision d = gh_decide(&gpu, me, &own, now, cost), again = gh_decide(&copy, me, &own, now, cost);
    CHECK(0, same(&d, &again));                 /* I15 */
    CHECK(1, !memcmp(&gpu, &copy, sizeof gpu)); /* I1: it changes nothing; the caller writes its own slot */
    const struct gh_slot *mine = &gpu.slot[me];
    int empty = mine->launched == mine->done;
    if (!d.go) { /* I2 */
        CHECK(2, d.until > now || now >= UINT64_MAX - GH_S);
        CHECK(3, d.until <= now + gpu.rules.recheck || now >= UINT64_MAX - GH_S);
        CHECK(4, d.on != GH_ON_NOTHING && d.on <= GH_ON_TIME);
        CHECK(5, d.on != GH_ON_SLOT || (d.slot < GH_SLOTS && gpu.present >> d.slot & 1));
        CHECK(6, d.on != GH_ON_SLOT || d.slot != me);
        /* Nobody waits for an equal without blaming it, so gh_peers_count sees every such wait. */
        int equal = d.on == GH_ON_SLOT && gpu.share[d.slot].class_ == gpu.share[me].class_;
        CHECK(15, equal == (d.blame < GH_SLOTS));
        CHECK(16, d.blame >= GH_SLOTS || (d.blame != me && gpu.present >> d.blame & 1));
    }
    if (d.takes) {
        CHECK(7, d.start == now && d.epoch != 0);
        CHECK(8, d.end > d.start || now >= UINT64_MAX - GH_S);
        CHECK(9, d.end - d.start <= gpu.rules.tenure_sum);
    }
    if (gpu.share[me].freeze)
        CHECK(10, !d.go);
    if (d.go && gpu.share[me].cap) {
        struct gh_bucket b = gh_bucket_at(own.bucket, gpu.share[me].cap, gh_savings(&gpu, me, now), now);
        CHECK(11, b.level > 0); /* I8 */
    }
    int higher = 0, lower = 0, equals = 0;
    for (unsigned i = 0; i < GH_SLOTS; i++)
        if (i != me && gpu.present >> i & 1) {
            const struct gh_slot *s = &gpu.slot[i];
            higher += gpu.share[i].class_ > gpu.share[me].class_;
            lower += gpu.share[i].class_ < gpu.share[me].class_;
            equals += gpu.share[i].class_ == gpu.share[me].class_;
            int working = !gpu.share[i].freeze && s->launched != s->done && !s->ended && s->heartbeat <= now &&
                          now - s->heartbeat < 50 * GH_MS && s->done_at <= now && now - s->done_at < GH_S;
            if (working && gpu.share[i].class_ > gpu.share[me].class_)
                CHECK(12, !d.go); /* I9 */
        }
    uint64_t left = gh_residue(&own, now), window = gh_window(&gpu, me);
    int behind = window == gpu.rules.window && left <= window / 4 && cost < GH_COST_UNKNOWN;
    uint64_t most = window == gpu.rules.window ? gpu.rules.window_light : window;
    if (d.go && d.mode != GH_OPEN && !empty)
        CHECK(13, left + cost <= most || left + cost < cost || behind);
    if (d.spare) { /* what is launched without asking is bounded, too, and nobody of another class is there to lose by it */
        uint64_t open = d.mode == GH_OPEN ? gpu.rules.window_open : most;
        CHECK(35, d.go && !gpu.share[me].cap && window == gpu.rules.window && !gpu.share[me].freeze);
        CHECK(36, left <= open && d.spare <= open - left && cost <= open - left - d.spare);
    }
    int free_ = !gpu.share[me].freeze && !higher && !lower &&
                (!gpu.share[me].cap ||
                 (gh_bucket_at(own.bucket, gpu.share[me].cap, gh_savings(&gpu, me, now), now).level > 0 && empty));
    uint64_t bound = d.mode == GH_OPEN ? gpu.rules.window_open : window;
    int sibling = cost > bound && own.siblings > bound;
    if (d.mode == GH_OPEN && cost >= GH_COST_UNKNOWN && own.waited >= gpu.rules.recheck)
        sibling = 0;
    if (free_ && !equals)
        CHECK(14, d.mode == GH_OPEN && (d.go || !empty || sibling)); /* I4 */
    if (d.go) {
        CHECK(33, !sibling); /* long commands of a container's processes run one by one */
        CHECK(37, d.lone == (cost > bound && !(d.mode == GH_OPEN && cost >= GH_COST_UNKNOWN)));
    }
    if (free_ && empty && !sibling && !~(peers.ignored | 1ull << me) && own.peers)
        CHECK(17, d.go); /* who ignores all equals waits for none */

    CHECK(19, gh_wake_v(&gpu, me) >= mine->v); /* I7 */
    CHECK(20, gh_weight(&gpu, me, now) >= 1);
    struct gh_rise rise = gh_charge(&gpu, me, cost);
    CHECK(21, gh_risen(&rise, mine->v) >= mine->v); /* I7 */
    struct gh_bucket b = gh_bucket_take(own.bucket, (int64_t)draw());
    b = gh_bucket_at(b, (uint32_t)draw(), draw(), draw());
    uint64_t step = gh_pacer_step(&gpu.rules, gh_window(&gpu, me));
    CHECK(22, step >= gpu.rules.pacer_min && step <= gpu.rules.pacer_max);
    uint32_t duty = gh_saturation((uint32_t)below(GH_PPM + 1), draw(), draw());
    CHECK(23, duty <= GH_PPM);
}

/* Properties that hold when all slots are true: some tenant runs, and in rotation only one. */
static void honest_equals(void) {
    static struct gh_gpu gpu;
    memset(&gpu, 0, sizeof gpu);
    gh_rules_default(&gpu.rules);
    uint64_t now = 100 * GH_S + below(GH_S);
    gpu.seen = now - below(100 * GH_US);
    unsigned n = 2 + (unsigned)below(6);
    int saturated = 1;
    for (unsigned i = 0; i < n; i++) {
        gpu.present |= 1ull << i;
        gpu.share[i] = (struct gh_share){.class_ = 1, .weight = (uint16_t)(1 + below(100))};
        honest_slot(&gpu.slot[i], now);
        if (below(2))
            gpu.slot[i].saturated = 1;
        saturated &= gpu.slot[i].saturated;
    }
    unsigned running = 0, claims = 0;
    int finishing = 0;
    for (unsigned i = 0; i < n; i++) {
        struct gh_own own = {.inflight = gpu.slot[i].residue, .probed_at = now};
        struct gh_decision d = gh_decide(&gpu, i, &own, now, 80 * GH_US);
        running += d.go || d.on == GH_ON_OWN_DONE;
        claims += d.takes;
        /* an owner that overruns its tenure with the command that runs */
        const struct gh_slot *s = &gpu.slot[i];
        finishing |= s->launched != s->done && s->end <= now && s->heartbeat + s->residue > now;
        CHECK(24, d.mode == (saturated ? GH_ROTATE : GH_MIX));
        if (d.go)
            CHECK(25, gpu.slot[i].launched == gpu.slot[i].done || own.inflight + 80 * GH_US <= gpu.rules.window);
    }
    CHECK(26, running >= 1 || finishing);               /* I6, no deadlock */
    CHECK(27, !saturated || running == 1 || finishing); /* rotation: one at a time */
    CHECK(28, claims <= 1);                             /* all agree on the successor */
}

/* A tenant that is idle for longer than its linger keeps no lower class waiting (I10). A linger from the settings may
 * have any length; one that the tenant wrote in its slot has a bound. */
static void idle_high(void) {
    static struct gh_gpu gpu;
    memset(&gpu, 0, sizeof gpu);
    gh_rules_default(&gpu.rules);
    uint64_t now = 100 * GH_S + below(GH_S), linger = 1 + below(4 * GH_S), idle = below(8 * GH_S);
    int set = below(2) != 0;
    if (!set)
        idle /= 40;
    gpu.present = 3;
    gpu.seen = now;
    gpu.share[0] = (struct gh_share){.class_ = 2, .weight = 100, .linger = set ? (uint32_t)linger : 0};
    gpu.share[1] = (struct gh_share){.class_ = 0, .weight = 100};
    gpu.slot[0] = (struct gh_slot){.launched = 7,
                                   .done = 7,
                                   .heartbeat = now - idle,
                                   .active_at = now - idle,
                                   .done_at = now - idle,
                                   .idle_since = now - idle,
                                   .linger = (uint32_t)linger};
    if (!set && linger > gpu.rules.linger_max)
        linger = gpu.rules.linger_max;
    struct gh_own own = {0};
    struct gh_decision d = gh_decide(&gpu, 1, &own, now, 80 * GH_US);
    CHECK(29, d.go == (idle >= linger));
    CHECK(30, d.go || d.until <= now - idle + linger);
}

/* ---- I3: the bound on what peers can cost, whatever they write at any moment ---- */

/* Records of processes that a container forges, as the shim reads them. Its v does not fall. */
static void forge(struct gh_slot *s, uint64_t now) {
    static struct gh_slot_page page;
    unsigned count = 1 + (unsigned)below(below(2) ? 8 : GH_SLOT_PROCESSES), contexts, kind = (unsigned)below(4);
    page.head = (struct gh_slot_head){.magic = GH_SLOT_MAGIC,
                                      .version = GH_SLOT_VERSION,
                                      .top = below(8) ? count : (uint32_t)draw(),
                                      .v = max64(s->v, below(4) ? 1 : GH_S + below(now)),
                                      .active_at = near(now, 1),
                                      .idle_since = near(now, 1),
                                      .duty = (uint32_t)below(2 * GH_PPM),
                                      .want = (uint32_t)below(2 * GH_PPM),
                                      .saturated = below(4) > 0};
    for (unsigned i = 0; i < count; i++)
        page.process[i] = (struct gh_slot_process){.owner = 1 + below(2) * i,
                                                   .launched = 8 + (kind ? kind == 1 : below(3)),
                                                   .done = 8,
                                                   .done_at = kind ? now : near(now, 1),
                                                   .heartbeat = kind ? now : near(now, 1),
                                                   .residue = kind ? GH_MS : draw(),
                                                   .uncharged = below(4) ? 0 : draw(),
                                                   .held = kind ? kind == 2 : below(2),
                                                   .withheld = 1};
    *s = gh_slot_view(&page, sizeof page, now, 50 * GH_MS, &contexts);
}

/* What a hostile peer writes next. Strategies are chosen anew now and then, so that they also alternate. */
static void lie(struct gh_gpu *gpu, unsigned i, unsigned strategy, uint64_t now) {
    struct gh_slot *s = &gpu->slot[i];
    struct gh_slot busy = {.launched = 2,
                           .done = 1,
                           .done_at = now,
                           .heartbeat = now,
                           .active_at = now,
                           .v = 1,
                           .epoch = s->epoch + 1 + below(1000),
                           .start = now,
                           .end = now + below(100 * GH_MS) + 1,
                           .duty = GH_PPM,
                           .held = 1,
                           .saturated = 1,
                           .want = (uint32_t)below(2 * GH_PPM)};
    switch (strategy) {
    case 0: *s = busy; break; /* claims for ever */
    case 1:                   /* the same with a rest of 2.5 ms in 150 */
        *s = busy;
        if (now % (150 * GH_MS) < 2500 * GH_US)
            s->heartbeat = s->done_at = now - 5 * GH_MS, s->held = 0;
        break;
    case 2: hostile_slot(s, now); break; /* any bytes */
    case 3:                              /* waits at the gate for ever, and never takes its turn */
        *s = busy;
        s->launched = s->done = 1, s->epoch = s->start = s->end = 0;
        break;
    case 4: /* intermittent, with probes */
        *s = busy;
        s->saturated = 0, s->duty = (uint32_t)below(GH_PPM), s->probe_until = UINT64_MAX;
        break;
    case 5: /* small gaps all the time */
        *s = busy;
        s->launched = s->done = 1, s->held = 0, s->idle_since = now - below(200 * GH_US), s->saturated = 0;
        break;
    case 6: /* a command that is nearly done, for ever */
        *s = busy;
        s->start = now - 50 * GH_MS, s->end = now - below(10 * GH_MS), s->residue = 10 * GH_MS;
        break;
    case 7: *s = (struct gh_slot){0}; break; /* nothing: it rests */
    case 8:                                  /* it wants the GPU and lets everybody go first: it saves up */
        *s = busy;
        s->launched = s->done = 1, s->epoch = s->start = s->end = 0, s->v = UINT64_MAX / 2;
        break;
    case 9:
    case 10:
        if (below(20) == 0)
            forge(s, now);
        else
            s->heartbeat = s->done_at = now;
        break;
    default: break; /* leaves what is there */
    }
}

/* An honest tenant that always has work, and hostile peers that do not use the GPU at all. In any ten seconds it gets at
 * least nine tenths of its part by weight of all granted equals. */
static void bound_of_peers(void) {
    static struct gh_gpu gpu;
    static struct gh_peers peers;
    memset(&gpu, 0, sizeof gpu);
    memset(&peers, 0, sizeof peers);
    gh_rules_default(&gpu.rules);
    const uint64_t second = 20, seconds = 15;
    uint64_t had[15 * 20 + 1] = {0}, now = 100 * GH_S, end = now + seconds * GH_S, done = 0, weights = 0;
    unsigned n = 1 + (unsigned)below(below(4) ? 3 : 16), me = (unsigned)below(n + 1), strategy[GH_SLOTS];
    uint64_t kernel = 100 * GH_US + (below(3) ? below(GH_MS) : below(2) ? below(20 * GH_MS) : below(100 * GH_MS));
    for (unsigned i = 0; i <= n; i++) {
        gpu.present |= 1ull << i;
        gpu.share[i] = (struct gh_share){.class_ = 1, .weight = (uint16_t)(below(2) ? 50 : 1 + below(100))};
        weights += gpu.share[i].weight;
        strategy[i] = (unsigned)below(12);
    }
    struct gh_slot *mine = &gpu.slot[me];
    *mine = (struct gh_slot){.v = GH_S, .saturated = 1, .duty = GH_PPM};
    struct gh_own own = {.peers = &peers};
    struct gh_decision last;
    int asked = 0, pace = below(2) ? 40 : 1; /* how often they change their strategies */
    uint64_t since = now, longest = 0;       /* wait for one command */
    while (now < end) {
        if (below(2000) < (uint64_t)pace)
            strategy[below(n + 1)] = (unsigned)below(12);
        for (unsigned i = 0; i <= n; i++)
            if (i != me)
                lie(&gpu, i, strategy[i], now);
        gpu.seen = mine->heartbeat = now;
        gh_peers_count(&peers, &gpu, me, asked ? &last : NULL, now, done * kernel);
        last = gh_decide(&gpu, me, &own, now, kernel);
        asked = 1;
        own.ahead = last.ahead;
        mine->held = last.held;
        mine->active_at = now;
        if (last.takes) {
            mine->epoch = last.epoch, mine->start = last.start, mine->end = last.end;
            mine->probe_until = last.probe_until;
        } else if (!last.go && mine->end > now) {
            mine->end = now;
        }
        if (!last.go) {
            now = last.until + 30 * GH_US;
            continue;
        }
        longest = max64(longest, now - since);
        /* The command runs at once, and alone. It is done before the next one is asked for. */
        now += GH_US / 2;
        mine->launched = done + 1;
        mine->uncharged = kernel;
        for (uint64_t left = kernel; left;) {
            gh_peers_count(&peers, &gpu, me, &last, now, done * kernel);
            uint64_t bin = (now - 100 * GH_S) * second / GH_S, edge = 100 * GH_S + (bin + 1) * GH_S / second;
            uint64_t part = left < edge - now ? left : edge - now;
            part = part < 2 * GH_MS ? part : 2 * GH_MS;
            if (bin < seconds * second)
                had[bin] += part;
            now += part;
            left -= part;
        }
        mine->done = ++done;
        mine->uncharged = 0;
        mine->done_at = mine->idle_since = since = now;
        struct gh_rise rise = gh_charge(&gpu, me, kernel);
        mine->v = gh_risen(&rise, mine->v);
    }
    uint64_t due = 10 * GH_S * gpu.share[me].weight / weights, sum = 0, least = UINT64_MAX;
    for (uint64_t i = 0; i < seconds * second; i++) {
        sum += had[i] - (i >= 10 * second ? had[i - 10 * second] : 0);
        if (i + 1 >= 10 * second && sum < least)
            least = sum;
    }
    /* What they can take beyond their parts at once: gh_peers_count. A decision is up to 2.5 ms late. */
    uint64_t once_ = gpu.rules.patience + 100 * GH_MS + n * 5 * GH_MS + 5 * kernel;
    CHECK(18, least + once_ >= due * 95 / 100);
    /* No wait is longer than until its part of it is as much: so long might a peer's real work take, after a long command. */
    CHECK(38, longest * gpu.share[me].weight / weights * 95 / 100 <= once_);
    if (due >= 25 * GH_S / 10 && kernel <= 5 * GH_MS)
        CHECK(31, least >= due * 9 / 10);
}

/* A tenant under a ceiling of its own share, beside one that says that it has work, waits for its turn, or has a tenure, and
 * whose v stands still. It has what its ceiling lets it have: the other one never pays, so it is owed nothing. */
static void ceiling_beside_who_never_pays(void) {
    static struct gh_gpu gpu;
    static struct gh_peers peers;
    memset(&gpu, 0, sizeof gpu);
    memset(&peers, 0, sizeof peers);
    gh_rules_default(&gpu.rules);
    const uint64_t begin = 100 * GH_S, end = begin + 12 * GH_S;
    uint64_t now = begin, done = 0, had = 0, percent = 5 + below(60), kernel = 100 * GH_US + below(10 * GH_MS);
    bool claims = below(2), held = below(3) == 0, turns = percent < 40 && below(3) == 0;
    gpu.present = 3;
    gpu.share[0] =
        (struct gh_share){.class_ = 1, .weight = (uint16_t)percent, .cap = (uint32_t)(percent * GH_PPM / 100)};
    gpu.share[1] = (struct gh_share){.class_ = 1, .weight = (uint16_t)(100 - percent)};
    struct gh_slot *mine = &gpu.slot[0];
    *mine = (struct gh_slot){.v = GH_S, .saturated = 1, .duty = GH_PPM};
    struct gh_own own = {.peers = &peers, .bucket = {.at = now}};
    struct gh_decision last;
    for (int asked = 0; now < end; asked = 1) {
        struct gh_slot liar = {.launched = 2, .done = 1, .v = 1, .duty = GH_PPM, .saturated = 1};
        liar.heartbeat = liar.active_at = liar.done_at = now;
        if (held)
            liar.done = 2, liar.held = 1;
        if (turns && now / (7 * GH_MS) % 2)
            liar.done = 2, liar.held = 0, liar.idle_since = now - now % (7 * GH_MS);
        if (claims)
            liar.epoch = done + 1000, liar.start = now, liar.end = now + 100 * GH_MS;
        gpu.slot[1] = liar;
        gpu.seen = mine->heartbeat = now;
        gh_peers_count(&peers, &gpu, 0, asked ? &last : NULL, now, done * kernel);
        last = gh_decide(&gpu, 0, &own, now, kernel);
        own.ahead = last.ahead;
        mine->held = last.held;
        if (last.go || last.held)
            mine->active_at = now;
        if (last.takes)
            mine->epoch = last.epoch, mine->start = last.start, mine->end = last.end;
        else if (!last.go && mine->end > now)
            mine->end = now;
        if (!last.go) {
            now = last.until + 30 * GH_US;
            continue;
        }
        uint32_t cap = gpu.share[0].cap;
        own.bucket = gh_bucket_take(gh_bucket_at(own.bucket, cap, gh_savings(&gpu, 0, now), now), (int64_t)kernel);
        mine->launched = done + 1;
        mine->uncharged = kernel;
        for (uint64_t left = kernel, part; left; left -= part) {
            part = left < 100 * GH_US ? left : 100 * GH_US;
            gpu.seen = mine->heartbeat = now;
            gpu.slot[1].heartbeat = gpu.slot[1].done_at = now;
            gh_peers_count(&peers, &gpu, 0, &last, now, done * kernel);
            had += now - begin < 2 * GH_S ? 0 : part;
            now += part;
        }
        mine->done = ++done;
        mine->uncharged = 0;
        mine->done_at = mine->idle_since = now;
        struct gh_rise rise = gh_charge(&gpu, 0, kernel);
        mine->v = gh_risen(&rise, mine->v);
    }
    CHECK(34, had * 100 + 2 * kernel * 100 >= 95 * percent * (end - begin - 2 * GH_S) / 100);
}

/* An online tenant sends requests beside hostile offline ones. What it waits for their work to drain, whatever they
 * write, is at most rules.drain_max in any time in which they were not let in. */
static void bound_of_drains(void) {
    static struct gh_gpu gpu;
    static struct gh_peers peers;
    memset(&gpu, 0, sizeof gpu);
    memset(&peers, 0, sizeof peers);
    gh_rules_default(&gpu.rules);
    unsigned n = 1 + (unsigned)below(5), strategy = (unsigned)below(3);
    uint64_t now = 100 * GH_S, linger = GH_MS + below(10 * GH_MS), drained = 0, freezes = 0;
    gpu.present = (2ull << n) - 1;
    gpu.share[0] = (struct gh_share){.class_ = 2, .weight = 100, .linger = (uint32_t)linger};
    struct gh_slot *mine = &gpu.slot[0];
    *mine = (struct gh_slot){.v = GH_S, .saturated = 1, .duty = GH_PPM, .idle_since = now - GH_S};
    struct gh_own own = {.peers = &peers};
    for (int request = 0; request < 200; request++) {
        uint64_t began = now;
        freezes += now - mine->idle_since >= linger;
        for (struct gh_decision d = {0}; !d.go;) {
            for (unsigned i = 1; i <= n; i++) {
                struct gh_slot *s = &gpu.slot[i];
                if (strategy == 0 || (strategy == 2 && below(2)))
                    *s = (struct gh_slot){.launched = below(2) ? 9 : draw(),
                                          .done = 8,
                                          .done_at = now,
                                          .heartbeat = now,
                                          .active_at = now,
                                          .residue = below(GH_MS)};
                else if (strategy == 1)
                    hostile_slot(s, now);
                gpu.share[i] = (struct gh_share){.class_ = 0, .weight = 100};
            }
            gpu.seen = mine->heartbeat = now;
            d = gh_decide(&gpu, 0, &own, now, 80 * GH_US);
            if (d.mode == GH_DRAIN)
                gh_peers_drain(&peers, &gpu, 0, now);
            if (!d.go)
                now = d.until;
        }
        drained += now - began;
        now += below(5 * GH_MS);
        mine->launched = ++mine->done;
        mine->active_at = mine->idle_since = mine->done_at = now;
        now += below(2) ? below(GH_MS) : below(20 * GH_MS);
    }
    CHECK(32, drained <= freezes * gpu.rules.drain_max);
}

static void once(void) {
    any_neighbours();
    honest_equals();
    idle_high();
    if (bounds && !--until_bound) {
        bound_of_peers();
        bound_of_drains();
        ceiling_beside_who_never_pays();
        until_bound = bounds;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input = data;
    input_left = size;
    once();
    return 0;
}

#ifndef LIBFUZZER
int main(int argc, char **argv) {
    uint64_t iterations = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = 0; i < iterations; i++)
        once();
    for (int i = 0; i < 39; i++) {
        printf("%d %" PRIu64 " %s\n", i, checks[i], check_name[i] ? check_name[i] : "-");
        if (!checks[i]) { /* a property that was never checked proves nothing */
            fprintf(stderr, "property %d never came up\n", i);
            return 1;
        }
    }
    return 0;
}
#endif
