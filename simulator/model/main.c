/* share-model: reads scenarios from standard input, prints one JSON object per scenario. All figures are simulated.
 *
 *   set KEY VALUE        sets a constant of the GPU, the laws or the run; times in ns
 *   tenant KEY=VALUE ... adds a tenant; kernel= host= rare= gap= period= on= off= linger= in ns, cap= in ppm
 *   run NAME             runs each tenant alone (native), then all together; ends the scenario and keeps what was set
 *   trial NAME           runs all together only
 *   clear                sets all back to the defaults
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static void fail(const char *what, const char *which) {
    fprintf(stderr, "share-model: %s: %.80s\n", what, which);
    exit(2);
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-')
        fail("not a number", text);
    return n;
}

struct key {
    const char *name;
    size_t offset;
};

static const struct key config_keys[] = {
#define C(x) {#x, offsetof(struct config, x)}
#define R(x) {#x, offsetof(struct config, rules.x)}
    C(seed),       C(length),         C(warm),           C(slice),        C(switch_loaded),  C(switch_idle),
    C(depth),      C(wake),           C(snapshot),       C(spin),         C(strict_quantum), C(fault_at),
    C(fault_for),  R(window),         R(window_guarded), R(window_open),  R(quantum),        R(tenure_min),
    R(tenure_sum), R(recheck),        R(idle_release),   R(mix_slack),    R(bank),           R(wake_idle),
    R(wake_lag),   R(wake_hold),      R(probe),          R(probe_every),  R(active_within),  R(heartbeat_stale),
    R(silent),     R(progress_stale), R(linger_max),     R(finish),       R(drain_max),      R(pacer_min),
    R(pacer_max),  R(patience),       R(burst),          R(window_light), R(burst_beside),   R(patience_least),
#undef C
#undef R
};

static const struct key program_keys[] = {
#define P(x) {#x, offsetof(struct program, x)}
    P(count), P(kernel), P(host), P(rare), P(rare_ppm), P(gap), P(period), P(begin), P(on), P(off),
#undef P
};

static uint64_t *find(const struct key *keys, size_t count, void *base, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(keys[i].name, name))
            return (uint64_t *)((char *)base + keys[i].offset);
    return NULL;
}

static int choice(const char *value, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(value, names[i]))
            return i;
    fail("unknown value", value);
    return 0;
}

static const char *const policies[] = {"native", "strict", "ledger", NULL};
static const char *const charges[] = {"exact", "split", "learned", NULL};
static const char *const spreads[] = {"fixed", "uniform", "exponential", NULL};
static const char *const lies[] = {"none", "bypass", "greedy", "ghost", NULL};
static const char *const faults[] = {"none", "kill", "stop", NULL};

static void set(struct config *c, const char *name, const char *value) {
    uint64_t *field = find(config_keys, sizeof config_keys / sizeof *config_keys, c, name);
    if (field)
        *field = number(value);
    else if (!strcmp(name, "policy"))
        c->policy = (enum policy)choice(value, policies);
    else if (!strcmp(name, "charge"))
        c->charge = (enum charge)choice(value, charges);
    else if (!strcmp(name, "fault"))
        c->fault = (enum fault)choice(value, faults);
    else if (!strcmp(name, "kappa"))
        c->kappa = (uint32_t)number(value);
    else
        fail("unknown setting", name);
}

static void tenant(struct config *c, char *words) {
    if (c->count == MAX_TENANTS)
        fail("too many tenants", words);
    struct program *p = &c->program[c->count];
    struct gh_share *s = &c->share[c->count];
    *p = (struct program){.count = 1, .kernel = 80 * GH_US, .host = 5 * GH_US};
    *s = (struct gh_share){.class_ = 1, .weight = GH_WEIGHT_ONE};
    for (char *word = strtok(words, " \n"); word; word = strtok(NULL, " \n")) {
        char *value = strchr(word, '=');
        if (!value)
            fail("not KEY=VALUE", word);
        *value++ = 0;
        uint64_t *field = find(program_keys, sizeof program_keys / sizeof *program_keys, p, word);
        if (field)
            *field = number(value);
        else if (!strcmp(word, "sigma"))
            p->sigma = (double)number(value) / 1000;
        else if (!strcmp(word, "sync"))
            p->sync = number(value) != 0;
        else if (!strcmp(word, "spread"))
            p->spread = (enum gap_kind)choice(value, spreads);
        else if (!strcmp(word, "lie"))
            p->lie = (enum lie)choice(value, lies);
        else if (!strcmp(word, "class"))
            s->class_ = (uint8_t)number(value);
        else if (!strcmp(word, "weight"))
            s->weight = (uint16_t)number(value);
        else if (!strcmp(word, "cap"))
            s->cap = (uint32_t)number(value);
        else if (!strcmp(word, "linger"))
            s->linger = (uint32_t)number(value);
        else if (!strcmp(word, "freeze"))
            s->freeze = number(value) != 0;
        else
            fail("unknown tenant setting", word);
    }
    if (!p->count || !p->kernel || p->count > 1000000 || (p->off && !p->on) || !s->weight)
        fail("tenant without work", "count, kernel, on, weight");
    c->count++;
}

static void print_samples(const char *name, struct samples *s) {
    printf(",\"%s\":{\"count\":%zu,\"p50\":%" PRIu64 ",\"p95\":%" PRIu64 ",\"p99\":%" PRIu64 ",\"max\":%" PRIu64 "}",
           name, s->count, samples_at(s, 500000), samples_at(s, 950000), samples_at(s, 990000), samples_at(s, GH_PPM));
}

static void print_windows(const struct sim *sim, const struct tenant *t) {
    uint64_t first = (sim->config.warm + WINDOW_LENGTH - 1) / WINDOW_LENGTH, last = sim->config.length / WINDOW_LENGTH;
    printf(",\"window\":[");
    for (uint64_t w = first; w < last && w < WINDOWS; w++)
        printf("%s%" PRIu64, w > first ? "," : "", t->window[w]);
    printf("]");
}

static void print_tenant(struct sim *sim, unsigned i) {
    struct tenant *t = &sim->tenant[i];
    printf("{\"completed\":%" PRIu64 ",\"executed\":%" PRIu64 ",\"charged\":%" PRIu64 ",\"requests\":%" PRIu64
           ",\"longest_hold\":%" PRIu64 ",\"longest_kernel\":%" PRIu64 ",\"duty\":%" PRIu32 ",\"linger\":%" PRIu32
           ",\"learned\":%" PRIu64,
           sim->gpu.context[i].completed - t->completed0, gpu_executed(&sim->gpu, i, sim->config.length) - t->executed0,
           t->charged - t->charged0, t->requests, t->longest_hold, t->longest_kernel, sim->published.slot[i].duty,
           sim->published.slot[i].linger, gh_cost_of(&t->cost[0]));
    print_samples("latency", &t->latency);
    print_windows(sim, t);
    printf("}");
}

static void run(const struct config *config, const char *name, int alone_too) {
    static struct sim sim;
    if (!config->count || config->length <= config->warm || !config->slice)
        fail("scenario without tenants or time", name);
    printf("{\"name\":\"%s\",\"simulated\":true,\"policy\":\"%s\",\"alone\":[", name, policies[config->policy]);
    for (unsigned i = 0; alone_too && i < config->count; i++) {
        struct config alone = *config;
        alone.policy = NATIVE;
        alone.fault = NO_FAULT;
        alone.count = 1;
        alone.program[0] = config->program[i];
        alone.share[0] = config->share[i];
        alone.seed = config->seed + 1000 * (uint64_t)i;
        sim_run(&sim, &alone);
        printf(i ? "," : "");
        print_tenant(&sim, 0);
        sim_release(&sim);
    }
    sim_run(&sim, config);
    printf("],\"tenants\":[");
    for (unsigned i = 0; i < config->count; i++) {
        printf(i ? "," : "");
        print_tenant(&sim, i);
    }
    printf("],\"measured\":%" PRIu64 ",\"busy\":%" PRIu64 ",\"switching\":%" PRIu64 ",\"events\":%" PRIu64
           ",\"longest_stall\":%" PRIu64 ",\"takeover\":",
           config->length - config->warm, sim.gpu.busy, sim.gpu.switching, sim.events, sim.longest_stall);
    if (sim.takeover == NEVER)
        printf("null");
    else
        printf("%" PRIu64, sim.takeover);
    print_samples("low_free", &sim.low_free);
    print_samples("release", &sim.release);
    printf(",\"violations\":{\"v_went_back\":%" PRIu64 ",\"late_low_submit\":%" PRIu64 ",\"late_release\":%" PRIu64
           ",\"no_progress\":%" PRIu64 ",\"cap_exceeded\":%" PRIu64 "},\"ignored\":%" PRIu64 "}\n",
           sim.violations.v_went_back, sim.violations.late_low_submit, sim.violations.late_release,
           sim.violations.no_progress, sim.violations.cap_exceeded, sim.ignored);
    fflush(stdout);
    sim_release(&sim);
}

int main(void) {
    static char line[4096];
    struct config config;
    config_default(&config);
    while (fgets(line, sizeof line, stdin)) {
        char *save = line + strcspn(line, " \n"), *rest = save + (*save == ' ');
        *save = 0;
        if (!strcmp(line, "set")) {
            char *name = strtok(rest, " \n"), *value = strtok(NULL, " \n");
            if (!name || !value)
                fail("set wants KEY VALUE", line);
            set(&config, name, value);
        } else if (!strcmp(line, "tenant")) {
            tenant(&config, rest);
        } else if (!strcmp(line, "run") || !strcmp(line, "trial")) {
            rest[strcspn(rest, "\n\"\\")] = 0;
            run(&config, rest, line[0] == 'r');
            config.count = 0;
        } else if (!strcmp(line, "clear")) {
            config_default(&config);
        } else if (*line) {
            fail("unknown line", line);
        }
    }
    return 0;
}
