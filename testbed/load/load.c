/* load: a program for any libcuda that keeps a GPU busy as commanded, and reports what was done when.
 *
 * usage: load --control FILE --out FILE [--scale N] [--rate STEPS_PER_NS] [--spin] [--start "WORDS"]
 *   --control  a FIFO of commands, one per line; --out: a line of JSON per finished command is added to it
 *   --scale    how many nanoseconds a nanosecond of the GPU takes (simulated GPUs); all times below are the GPU's
 *   --spin     host times are spent awake, not asleep; for machines with cores to spare
 *   --start    done at once, as if it came first: a program that is killed and started again goes on by itself
 * commands:
 *   run id=N KEY=VALUE ...   until `stop`, or until `units` bursts are done. Times in microseconds:
 *     count=1      kernels in a burst            kernel=80    length of one, mean
 *     sigma=0      log-normal spread of it       host=5       host time before each launch, the launch included
 *     sync=0       1: wait for the burst's end   gap=0        pause after it
 *     period=0     bursts arrive on their own, this far apart on average; who is late is not asked less often
 *     spread=fixed | uniform (0.5 to 1.5) | exponential, of gap and period
 *     on=0 off=0   phases                        graph=0      kernels per graph; `count` is then of graphs
 *     streams=1    launches take turns           blocks=0     of a kernel; 0: one per multiprocessor
 *     depth=0      most marked batches in flight on a stream (a command of 0.2 ms and more is one); 0: no bound
 *     shapes=0     so many shapes in turns: of other shared memory, and up to 511 blocks more, which a GPU still runs at once
 *     grow=0       1: shapes of 0 to shapes - 1 blocks more, and a kernel's length grows with its grid
 *     fresh=0      1: each kernel has a handle that was not there before, 2: and a name; a graph is instantiated anew
 *     phases=1     parts of a burst: after each, the program waits for its end and rests for `pause`, 1/3 to 5/3 of it
 *     pause=0
 *     seed=1                                     ends=0       1: log every command's end to OUT.ends; 2: bursts' ends
 *     trace=0      1: log every launch to OUT.trace
 *     train=0      1: lengths are those of a training step instead: 160 kernels of 20 us to 2 ms
 *   stop        quit
 *   calibrate id=N                            how many steps of the kernel a nanosecond has, alone on the GPU
 *   api|events id=N count=N                   what calls cost; what events around a kernel say of it
 *   gaps|copies|blocked id=N kernel=US [blocks=N]   for so long: when others had the GPU; copies to it; a stream waits
 *
 * A burst's latency counts from when it was due. Work counts when it is seen to be finished, by its known length. */
#define _GNU_SOURCE
#include "cuda.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../../simulator/model/rng.h"

enum { RING = 4096, STREAMS = 4, BINS = 4096, SAMPLES = 1 << 16, TRACE = 1 << 19, GRAPH_MAX = 512, STEPS = 160 };
#define BIN_US 100000
#define PRIME 1099511628211ull
#define SHARED 40000 /* bytes for a block that a multiprocessor of any GPU has for several */

int open_driver(void);

static uint64_t scale = 1;
static double rate = 1;
static bool awake;
static int control = -1;
static const char *out_path;
FILE *out;

struct program {
    uint64_t id, count, kernel, host, sync, gap, period, on, off, graph, streams, blocks, seed, ends, trace, units,
        train, depth, phases, pause, shapes, grow, fresh;
    double sigma;
    char spread;
};

struct mark { /* an event behind some work */
    void *event;
    uint64_t work_ns, commands;
};

static struct { /* of one stream */
    void *stream;
    struct mark mark[RING];
    uint64_t head, tail;
    uint64_t work_ns, commands; /* since the last mark */
} lane[STREAMS];

struct burst { /* in CLOCK_MONOTONIC */
    uint64_t due, launched, done;
};

static struct {
    struct program p;
    struct rng rng;
    const double *table;
    uint64_t from, hosted; /* when it began, and the program's own clock */
    uint64_t first_bin, bin[BINS];
    uint64_t launches, retired, bursts;
    struct burst *burst;
    uint64_t *end, ends;
    void *end_base;
    uint64_t end_at;
    double end_ns;
    uint64_t fold, looked;
    void *graph[2];
    uint64_t graph_ns;
    uint64_t step[STEPS];
} run;

static struct trace { /* read by whoever wants to know who launched last */
    _Atomic uint64_t count;
    uint64_t at[TRACE];
} *trace;

static void *function;
static CUdeviceptr state;
static int blocks;

static char line[1024];
static size_t filled;
static bool waiting;

/* The next command, or NULL when none has come within `ms` (-1: for ever). */
static char *next_command(int ms) {
    static char command[sizeof line];
    waiting = false;
    for (;;) {
        char *newline = memchr(line, '\n', filled);
        if (newline) {
            size_t length = (size_t)(newline - line);
            memcpy(command, line, length);
            command[length] = 0;
            filled -= length + 1;
            memmove(line, newline + 1, filled);
            return command;
        }
        struct pollfd p = {.fd = control, .events = POLLIN};
        if (poll(&p, 1, ms) <= 0)
            return NULL;
        ssize_t n = read(control, line + filled, sizeof line - 1 - filled);
        if (n > 0)
            filled += (size_t)n;
        if (filled == sizeof line - 1)
            filled = 0; /* not a command of ours */
    }
}

/* A command has come: what runs is to end. */
static bool stopped(void) {
    static uint64_t looked;
    uint64_t now = clock_ns();
    if (!waiting && now - looked > 2000000) {
        struct pollfd p = {.fd = control, .events = POLLIN};
        looked = now;
        waiting = filled || poll(&p, 1, 0) > 0;
    }
    return waiting;
}

static uint64_t real(double us) { return (uint64_t)(us * 1e3 * (double)scale); }

/* --- finished work --- */

static void count_done(struct mark *m, uint64_t now) {
    uint64_t bin = now / (BIN_US * 1000ull * scale);
    if (!run.first_bin)
        run.first_bin = bin;
    if (bin - run.first_bin < BINS)
        run.bin[bin - run.first_bin] += m->work_ns;
    for (uint64_t i = 0; i < m->commands; i++)
        run.fold = (run.fold ^ run.retired++) * PRIME;
    if (run.p.ends) {
        float ms = 0;
        CHECK(cuEventElapsedTime(&ms, run.end_base, m->event));
        run.end_ns += (double)ms * 1e6;
        if (run.ends < SAMPLES * 8)
            run.end[run.ends++] = run.end_at + (uint64_t)(run.end_ns * (double)scale);
        void *old = run.end_base; /* distances stay short: a float keeps them to the nanosecond */
        run.end_base = m->event;
        m->event = old;
    }
}

static void look(bool all) {
    uint64_t now = clock_ns();
    if (!all && now - run.looked < 100000 * scale)
        return;
    run.looked = now;
    for (uint64_t i = 0; i < run.p.streams; i++)
        while (lane[i].head != lane[i].tail) {
            struct mark *m = &lane[i].mark[lane[i].head % RING];
            CUresult r = cuEventQuery(m->event);
            if (r == NOT_READY)
                break;
            check(r, "cuEventQuery");
            count_done(m, now);
            lane[i].head++;
        }
}

static void mark(unsigned i) {
    if (!lane[i].commands)
        return;
    while (lane[i].tail - lane[i].head == RING) {
        CHECK(cuEventSynchronize(lane[i].mark[lane[i].head % RING].event));
        look(true);
    }
    struct mark *m = &lane[i].mark[lane[i].tail % RING];
    if (!m->event)
        CHECK(cuEventCreate(&m->event, run.p.ends ? 0 : 2 /* CU_EVENT_DISABLE_TIMING */));
    CHECK(cuEventRecord(m->event, lane[i].stream));
    m->work_ns = lane[i].work_ns;
    m->commands = lane[i].commands;
    lane[i].work_ns = lane[i].commands = 0;
    lane[i].tail++;
}

static void finish_all(void) {
    for (uint64_t i = 0; i < run.p.streams; i++) {
        mark((unsigned)i);
        CHECK(cuStreamSynchronize(lane[i].stream));
    }
    look(true);
}

/* --- host time --- */

static void wait_until(uint64_t at) {
    uint64_t now;
    while ((now = clock_ns()) < at && !stopped()) {
        if (awake && at - now < 200000)
            continue;
        sleep_until(at - now > 20000000 ? now + 20000000 : awake ? at - 100000 : at);
        look(false);
    }
}

/* The program's clock moves on by `host` per launch, and by whatever a launch kept it waiting beyond that. */
static void host_time(void) {
    run.hosted += real((double)run.p.host / 1e3);
    uint64_t now = clock_ns();
    if (run.hosted > now + (awake ? 0 : 20000)) {
        while (awake && clock_ns() < run.hosted)
            ;
        if (!awake)
            sleep_until(run.hosted);
    } else if (now > run.hosted + 20000000)
        run.hosted = now; /* not scheduled for long: that is no host time to be caught up with */
}

/* --- launches --- */

static uint64_t draw(void) {
    if (run.p.train)
        return run.step[run.launches % STEPS];
    double factor = run.table ? run.table[rng_next(&run.rng) >> 52] : 1;
    return (uint64_t)(factor * (double)run.p.kernel);
}

/* Loaded some at a time, since loading may wait for the GPU. */
static void *fresh_kernel(void) {
    static void *ready[64];
    static unsigned left, number;
    if (run.p.graph)
        return function;
    for (bool empty = !left; empty && left < sizeof ready / sizeof *ready; left++) {
        char name[32];
        snprintf(name, sizeof name, "spin%u", run.p.fresh > 1 ? number++ : 0);
        ready[left] = spin_kernel(name);
    }
    return ready[--left];
}

static void launch(bool last) {
    unsigned i = (unsigned)(run.launches % run.p.streams);
    uint64_t ns = run.p.graph ? run.graph_ns : draw();
    uint64_t shape = run.p.shapes ? run.launches % run.p.shapes : 0, more = run.p.grow ? shape : shape / SHARED % 512;
    unsigned grid = (unsigned)(blocks + more), shared = run.p.grow ? 0 : (unsigned)(shape % SHARED);
    if (run.p.grow)
        ns = ns * grid / (unsigned)blocks;
    void *f = run.p.fresh ? fresh_kernel() : function;
    uint64_t before = clock_ns();
    if (run.p.graph && run.p.fresh) {
        CHECK(cuGraphExecDestroy(run.graph[1]));
        CHECK(cuGraphInstantiateWithFlags(&run.graph[1], run.graph[0], 0));
    }
    if (run.p.graph)
        CHECK(cuGraphLaunch(run.graph[1], lane[i].stream));
    else
        check(spin_shaped(f, (uint64_t)((double)ns * rate), state, run.launches, grid, shared, lane[i].stream),
              "cuLaunchKernel");
    uint64_t after = clock_ns(), host = real((double)run.p.host / 1e3);
    if (trace && run.p.trace) {
        uint64_t n = atomic_load_explicit(&trace->count, memory_order_relaxed);
        trace->at[n % TRACE] = after;
        atomic_store_explicit(&trace->count, n + 1, memory_order_release);
    }
    if (after - before > host)
        run.hosted += after - before - host;
    run.launches++;
    lane[i].work_ns += ns;
    lane[i].commands++;
    if (run.p.ends == 1 || (run.p.ends && last) || lane[i].work_ns >= 200000)
        mark(i);
    look(false);
    while (run.p.depth && lane[i].tail - lane[i].head >= run.p.depth) {
        CHECK(cuEventSynchronize(lane[i].mark[lane[i].head % RING].event));
        look(true);
    }
}

static void make_graph(void) {
    CHECK(cuStreamBeginCapture_v2(lane[0].stream, 2 /* RELAXED */));
    run.graph_ns = 0;
    for (uint64_t k = 0; k < run.p.graph && k < GRAPH_MAX; k++) {
        uint64_t ns = draw();
        run.graph_ns += ns;
        check(spin(function, (uint64_t)((double)ns * rate), state, k, (unsigned)blocks, lane[0].stream), "capture");
    }
    CHECK(cuStreamEndCapture(lane[0].stream, &run.graph[0]));
    CHECK(cuGraphInstantiateWithFlags(&run.graph[1], run.graph[0], 0));
}

/* --- a run --- */

static bool words(char *text, struct program *p) {
    static const struct {
        const char *name;
        size_t offset;
    } keys[] = {
#define K(x) {#x, offsetof(struct program, x)}
        K(id),    K(count), K(kernel),  K(host),   K(sync),   K(gap),  K(period), K(on),
        K(off),   K(graph), K(streams), K(blocks), K(seed),   K(ends), K(trace),  K(units),
        K(train), K(depth), K(phases),  K(pause),  K(shapes), K(grow), K(fresh),
#undef K
    };
    static const char times[] = " kernel host gap period on off pause ";
    *p = (struct program){.count = 1, .kernel = 80000, .host = 5000, .streams = 1, .seed = 1, .spread = 'f'};
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        if (!value)
            return false;
        *value++ = 0;
        if (!strcmp(word, "sigma")) {
            p->sigma = atof(value);
        } else if (!strcmp(word, "spread")) {
            p->spread = value[0];
        } else {
            size_t k = 0;
            while (k < sizeof keys / sizeof *keys && strcmp(word, keys[k].name))
                k++;
            if (k == sizeof keys / sizeof *keys)
                return false;
            char padded[32];
            snprintf(padded, sizeof padded, " %s ", word);
            double number = atof(value) * (strstr(times, padded) ? 1e3 : 1);
            *(uint64_t *)((char *)p + keys[k].offset) = (uint64_t)(number + 0.5);
        }
    }
    return p->count && p->phases <= p->count && p->streams >= 1 && p->streams <= STREAMS;
}

static uint64_t spread(uint64_t ns) {
    double factor = run.p.spread == 'u'   ? 0.5 + rng_unit(&run.rng)
                    : run.p.spread == 'e' ? rng_exponential(&run.rng)
                                          : 1;
    return (uint64_t)(factor * (double)ns) * scale;
}

static void begin(struct program *p) {
    void *kept = run.burst, *ends = run.end;
    memset(&run, 0, sizeof run);
    run.p = *p;
    run.burst = kept ? kept : malloc(SAMPLES * sizeof *run.burst);
    run.end = ends ? ends : malloc(SAMPLES * 8 * sizeof *run.end);
    if (!run.burst || !run.end)
        exit(1);
    run.rng.state = p->seed;
    run.table = p->sigma > 0 ? lognormal_table(p->sigma) : NULL;
    if (p->train) { /* a step is long in the middle: forward, backward, optimiser's small ones */
        const double *spread_table = lognormal_table(1.0);
        for (unsigned i = 0; i < STEPS; i++) {
            double ns = 150000 * spread_table[(i * 1597 % STEPS) * 4096 / STEPS];
            run.step[i] = (uint64_t)fmin(fmax(ns, 20000), 2000000);
        }
    }
    for (uint64_t i = 0; i < p->streams; i++) {
        if (!lane[i].stream)
            CHECK(cuStreamCreate(&lane[i].stream, 1 /* CU_STREAM_NON_BLOCKING */));
        for (unsigned k = 0; k < RING; k++) { /* timing on or off: made anew */
            if (lane[i].mark[k].event)
                cuEventDestroy_v2(lane[i].mark[k].event);
            lane[i].mark[k].event = NULL;
        }
        lane[i].head = lane[i].tail = lane[i].work_ns = lane[i].commands = 0;
    }
    uint64_t zero[2] = {0, 0};
    CHECK(cuMemcpyHtoD_v2(state, zero, sizeof zero));
    if (p->graph)
        make_graph();
    if (p->ends) {
        CHECK(cuEventCreate(&run.end_base, 0));
        CHECK(cuEventRecord(run.end_base, lane[0].stream));
        CHECK(cuEventSynchronize(run.end_base));
    }
    run.from = run.hosted = run.end_at = clock_ns();
    run.first_bin = run.from / (BIN_US * 1000ull * scale);
}

/* The end of one phase of a burst, and the rest before the next one. */
static void pause_phase(void) {
    for (uint64_t i = 0; i < run.p.streams; i++)
        CHECK(cuStreamSynchronize(lane[i].stream));
    run.hosted = clock_ns() + (uint64_t)((1.0 / 3 + 4.0 / 3 * rng_unit(&run.rng)) * (double)run.p.pause) * scale;
    wait_until(run.hosted);
}

static void report(void) {
    uint64_t device[2] = {0, 0}, to = clock_ns();
    CHECK(cuMemcpyDtoH_v2(device, state, sizeof device));
    if (run.p.ends) { /* there when the answer is */
        char path[256];
        snprintf(path, sizeof path, "%s.ends", out_path);
        FILE *f = fopen(path, "w");
        if (!f || fwrite(run.end, sizeof *run.end, run.ends, f) != run.ends || fclose(f))
            exit(1);
    }
    fprintf(
        out,
        "{\"id\": %llu, \"from_ns\": %llu, \"to_ns\": %llu, \"scale\": %llu, \"launches\": %llu, "
        "\"retired\": %llu, \"bursts\": %llu, \"fold\": %llu, \"device_fold\": %llu, \"first_bin\": %llu, \"bins\": [",
        (unsigned long long)run.p.id, (unsigned long long)run.from, (unsigned long long)to, (unsigned long long)scale,
        (unsigned long long)run.launches, (unsigned long long)run.retired, (unsigned long long)run.bursts,
        (unsigned long long)run.fold, (unsigned long long)device[0], (unsigned long long)run.first_bin);
    uint64_t last = to / (BIN_US * 1000ull * scale) - run.first_bin;
    for (uint64_t i = 0; i <= last && i < BINS; i++)
        fprintf(out, "%s%llu", i ? "," : "", (unsigned long long)run.bin[i]);
    fprintf(out, "], \"latency\": [");
    uint64_t n = run.p.sync ? run.bursts < SAMPLES ? run.bursts : SAMPLES : 0;
    for (uint64_t i = 0; i < n; i++)
        fprintf(out, "%s[%llu,%llu,%llu]", i ? "," : "", (unsigned long long)run.burst[i].due,
                (unsigned long long)run.burst[i].launched, (unsigned long long)run.burst[i].done);
    fprintf(out, "]}\n");
    fflush(out);
}

static void run_program(struct program *p) {
    begin(p);
    uint64_t due = run.from;
    while (!stopped() && (!p->units || run.bursts < p->units)) {
        uint64_t now = clock_ns();
        if (p->off) { /* phases on a grid of the clock, so that tenants can be in step */
            uint64_t phase = now / scale % (p->on + p->off);
            if (phase >= p->on) {
                wait_until(now + (p->on + p->off - phase) * scale);
                run.hosted = clock_ns();
                continue;
            }
        }
        if (p->period) {
            wait_until(due);
            if (stopped())
                break;
        }
        struct burst *b = &run.burst[run.bursts < SAMPLES ? run.bursts : SAMPLES - 1];
        b->due = p->period ? due : clock_ns();
        if (p->period)
            due += spread(p->period);
        if (run.hosted + 20000000 < clock_ns() || p->period)
            run.hosted = clock_ns();
        for (uint64_t k = 0; k < p->count && (p->sync || k % 16 || !stopped()); k++) {
            if (k && p->phases > 1 && k % (p->count / p->phases) == 0)
                pause_phase();
            host_time();
            if (!k)
                b->launched = clock_ns();
            launch(k + 1 == p->count);
        }
        if (p->sync) {
            for (uint64_t i = 0; i < p->streams; i++)
                CHECK(cuStreamSynchronize(lane[i].stream));
            b->done = clock_ns();
            for (uint64_t i = 0; i < p->streams; i++)
                mark((unsigned)i);
            run.hosted = b->done;
        }
        run.bursts++;
        if (p->gap) {
            run.hosted = clock_ns() + spread(p->gap);
            wait_until(run.hosted);
        }
    }
    finish_all();
    report();
    if (run.graph[1])
        CHECK(cuGraphExecDestroy(run.graph[1]));
    if (run.graph[0])
        CHECK(cuGraphDestroy(run.graph[0]));
    if (run.end_base)
        CHECK(cuEventDestroy_v2(run.end_base));
}

/* The kernel's steps per nanosecond, on a GPU without other users. */
static void calibrate(const char *id) {
    void *from, *to;
    double best = 1e30;
    const uint64_t steps = 1000000;
    CHECK(cuEventCreate(&from, 0));
    CHECK(cuEventCreate(&to, 0));
    for (int i = 0; i < 20; i++) {
        float ms;
        CHECK(cuEventRecord(from, NULL));
        check(spin(function, steps, state, 1, (unsigned)blocks, NULL), "cuLaunchKernel");
        CHECK(cuEventRecord(to, NULL));
        CHECK(cuEventSynchronize(to));
        CHECK(cuEventElapsedTime(&ms, from, to));
        if (i >= 5 && ms < best)
            best = ms;
    }
    rate = (double)steps / (best * 1e6);
    fprintf(out, "{\"id\": %s, \"rate\": %.9f}\n", id, rate);
    fflush(out);
    CHECK(cuEventDestroy_v2(from));
    CHECK(cuEventDestroy_v2(to));
}

static void physics(const char *what, const struct program *p) {
    uint64_t ns = p->kernel * scale;
    fprintf(out, "{\"id\": %llu, ", (unsigned long long)p->id);
    if (!strcmp(what, "api"))
        physics_api(out, (unsigned)p->count, function, state);
    else if (!strcmp(what, "events"))
        physics_events(out, (unsigned)p->count, function, state, rate * 1e3);
    else if (!strcmp(what, "gaps"))
        physics_gaps(out, p->kernel, p->blocks ? (unsigned)p->blocks : (unsigned)blocks);
    else if (!strcmp(what, "copies"))
        physics_copies(out, ns, 16 << 20);
    else
        physics_blocked(out, ns, function, state);
    fprintf(out, "}\n");
    fflush(out);
}

static void command(char *text) {
    struct program p;
    char *rest = strchr(text, ' ');
    if (rest)
        *rest++ = 0;
    if (!strcmp(text, "run") && rest && words(rest, &p)) {
        int usual = blocks;
        if (p.blocks)
            blocks = (int)p.blocks;
        run_program(&p);
        blocks = usual;
    } else if (!strcmp(text, "calibrate") && rest && !strncmp(rest, "id=", 3)) {
        calibrate(rest + 3);
    } else if ((!strcmp(text, "api") || !strcmp(text, "events") || !strcmp(text, "gaps") || !strcmp(text, "copies") ||
                !strcmp(text, "blocked")) &&
               rest && words(rest, &p)) {
        physics(text, &p);
    } else if (!strcmp(text, "quit")) {
        exit(0);
    } else if (strcmp(text, "stop")) {
        fprintf(stderr, "load: what is `%s`?\n", text);
        exit(2);
    }
}

int main(int argc, char **argv) {
    const char *control_path = NULL, *start = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--spin"))
            awake = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--control"))
            control_path = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--out"))
            out_path = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--start"))
            start = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--scale"))
            scale = strtoull(argv[++i], NULL, 10);
        else if (i + 1 < argc && !strcmp(argv[i], "--rate"))
            rate = atof(argv[++i]);
        else
            control_path = out_path = NULL, i = argc;
    }
    if (!control_path || !out_path || !scale) {
        fprintf(stderr, "usage: load --control FIFO --out FILE [--scale N] [--rate R] [--spin] [--start WORDS]\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    int failed = open_driver();
    if (failed)
        return failed;
    control = open(control_path, O_RDWR | O_NONBLOCK | O_CLOEXEC); /* a reader and a writer: never at its end */
    out = fopen(out_path, "ae");
    if (control < 0 || !out) {
        perror(control < 0 ? control_path : out_path);
        return 1;
    }
    char path[256];
    snprintf(path, sizeof path, "%s.trace", out_path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof *trace) ||
        (trace = mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        perror(path);
        return 1;
    }
    int device;
    void *ctx;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&ctx, device));
    CHECK(cuCtxSetCurrent(ctx));
    CHECK(cuDeviceGetAttribute(&blocks, 16 /* MULTIPROCESSOR_COUNT */, device));
    CHECK(cuMemAlloc_v2(&state, 256));
    function = spin_kernel("spin");
    fprintf(out, "{\"ready\": %d}\n", (int)getpid());
    fflush(out);
    if (start) {
        char *copy = strdup(start);
        if (copy)
            command(copy);
    }
    for (;;) {
        char *text = next_command(-1);
        if (text)
            command(text);
    }
}
