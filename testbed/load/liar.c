/* liar: a hostile tenant. It writes its own slot file, launches nothing, and never ends by itself.
 *
 * usage: liar KIND NUMBER --out FILE --scale N [...]
 *   NUMBER  0, 1, ...: which of several liars of one kind this is
 * kinds:
 *   quiet       nothing at all
 *   rests       v = 1 and a new claim every 200 us, with a rest of 2.5 ms in 150
 *   claims      the same without a rest
 *   alternate   two of them take turns of 50 ms
 *   held        always waits at the gate, without a claim
 *   probe       claims with an undisturbed part that never ends
 *   duty        claims as a tenant that leaves gaps, and as one that does not, in turns
 *   epoch       its claims' numbers leap
 *   fuzz        any bytes at any moment
 *   residue     work in flight that needs 0.6 ms more, for ever
 *   in-time     the same, but it is done just before 0.7 ms, again and again
 *   stuck       work in flight of which nothing is ever done
 *   jumps       the number of done commands jumps
 *   forged-N-HABIT-V  N records of processes, without a claim, that have work (busy), wait at the gate (held), leave small gaps
 *               (gaps), or have work and rest in turns of 7 ms (flicker); v as far ahead (most) or behind (least) as it gets
 * Its process record has the lock of a living process. Times are the GPU's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "pages/slot_page.h"

#define STEP (200 * GH_US)

static uint64_t scale = 1;
static struct gh_slot_page *page;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * GH_S + (uint64_t)t.tv_nsec) / scale;
}

static void wait_for(uint64_t ns) {
    struct timespec t = {(time_t)(ns * scale / GH_S), (long)(ns * scale % GH_S)};
    nanosleep(&t, NULL);
}

static uint64_t draw(void) {
    static uint64_t x = 88172645463325252ull;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* A tenant that runs, with work in flight. */
static void work(uint64_t t) {
    struct gh_slot_process *p = page->process;
    page->head.active_at = t;
    page->head.v = 1;
    p->owner = 1;
    p->pid = 1;
    p->launched = p->done + 1;
    p->held = 1;
    p->done_at = p->heartbeat = t;
    p->residue = GH_MS;
}

static void claim(uint64_t t, uint64_t epoch) {
    struct gh_slot_head *h = &page->head;
    h->end = 0;
    h->start = t;
    h->epoch = epoch;
    h->end = t + 100 * GH_MS;
}

static void rest(uint64_t t) {
    page->head.end = 0;
    page->head.idle_since = t;
    page->process->held = 0;
    page->process->done = page->process->launched;
    page->process->heartbeat = t;
}

static void fuzz(void) {
    uint64_t *word = (uint64_t *)page + draw() % (GH_SLOT_FILE_SIZE / 8), t = now();
    uint64_t values[] = {draw(), 0, 1, UINT64_MAX, t, t + draw() % GH_S, t - draw() % GH_S, draw() % 64};
    *word = values[draw() % 8];
    if (draw() % 16) { /* without these nobody would read the rest */
        page->head.magic = GH_SLOT_MAGIC;
        page->head.version = GH_SLOT_VERSION;
    }
}

/* Offline work as an online neighbour sees it. */
static void offline(const char *kind, uint64_t t, uint64_t n) {
    struct gh_slot_process *p = page->process;
    work(t);
    p->held = 0;
    p->residue = 600 * GH_US;
    if (!strcmp(kind, "in-time"))
        p->residue = t % (700 * GH_US) < 650 * GH_US ? 650 * GH_US - t % (700 * GH_US) : 0;
    if (!strcmp(kind, "in-time") && !p->residue)
        p->done = p->launched;
    if (!strcmp(kind, "stuck"))
        p->done_at = t - t % GH_S;
    if (!strcmp(kind, "jumps")) {
        p->launched = n * 1000;
        p->done = p->launched - 1 - draw() % 900;
    }
}

static void forge(const char *kind, uint64_t t) {
    unsigned count = (unsigned)strtoul(kind + strlen("forged-"), NULL, 10);
    bool held = strstr(kind, "-held"), rests = strstr(kind, "-flicker") && t / (7 * GH_MS) % 2;
    page->head.top = count;
    page->head.active_at = t;
    page->head.v = strstr(kind, "-most") ? t * GH_WEIGHT_ONE : 1;
    page->head.saturated = !strstr(kind, "-gaps");
    page->head.duty = page->head.saturated ? GH_PPM : GH_PPM / 2;
    for (unsigned i = 0; i < count; i++) {
        struct gh_slot_process *p = page->process + i;
        *p = (struct gh_slot_process){
            .launched = 8 + !(held || rests), .done = 8, .residue = GH_MS, .pid = 1, .withheld = 1};
        p->held = held;
        p->done_at = p->heartbeat = t;
        p->owner = 1 + i;
    }
}

static void step(const char *kind, uint64_t number, uint64_t n) {
    uint64_t t = now();
    struct gh_slot_head *h = &page->head;
    if (!strcmp(kind, "fuzz")) {
        for (uint64_t i = draw() % 64; i--;)
            fuzz();
    } else if (!strncmp(kind, "forged-", 7)) {
        forge(kind, t);
    } else if (!strcmp(kind, "residue") || !strcmp(kind, "in-time") || !strcmp(kind, "stuck") ||
               !strcmp(kind, "jumps")) {
        offline(kind, t, n);
    } else if ((!strcmp(kind, "rests") && t % (150 * GH_MS) < 2500 * GH_US) ||
               (!strcmp(kind, "alternate") && t / (50 * GH_MS) % 2 != number % 2)) {
        rest(t);
    } else {
        work(t);
        h->duty = !strcmp(kind, "duty") && n % 2 ? 0 : GH_PPM;
        h->saturated = h->duty != 0;
        h->probe_until = !strcmp(kind, "probe") ? t + 1000 * GH_S : 0;
        if (strcmp(kind, "held"))
            claim(t, !strcmp(kind, "epoch") ? draw() : t);
        else
            page->process->done = page->process->launched;
    }
    __atomic_add_fetch(&h->word, 1, __ATOMIC_RELEASE);
}

int main(int argc, char **argv) {
    const char *out = NULL;
    for (int i = 3; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "--out"))
            out = argv[i + 1];
        if (!strcmp(argv[i], "--scale"))
            scale = strtoull(argv[i + 1], NULL, 10);
    }
    int fd = open("/run/gpu-hook/slot/0", O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    FILE *f = out ? fopen(out, "ae") : NULL;
    if (argc < 3 || fd < 0 || !f || !scale || fcntl(fd, F_SETLK, &lock)) {
        perror("liar");
        return 2;
    }
    page = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return 2;
    fprintf(f, "{\"ready\": %d}\n", (int)getpid());
    fclose(f);
    while (!strcmp(argv[1], "quiet"))
        pause();
    page->head.version = GH_SLOT_VERSION;
    page->head.magic = GH_SLOT_MAGIC;
    page->head.top = 1;
    for (uint64_t n = 1;; n++) {
        step(argv[1], strtoull(argv[2], NULL, 10), n);
        wait_for(strcmp(argv[1], "in-time") ? STEP : STEP / 4);
    }
}
