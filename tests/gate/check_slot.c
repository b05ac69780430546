/* How often slot_own.c and slot_peer.c open files and test locks of other containers, whatever that costs, and whatever is
 * in the place of a file. Linked with -Wl,--wrap=syscall: system calls are counted, and tests of locks can be made slow.
 * check_slot WHAT, with a GH_PRIVATE of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate/clock.h"
#include "gate/decide.h"
#include "pages/layout.h"
#include "gate/slot_own.h"
#include "gate/slot_peer.h"
#include "hold.h"

static unsigned opens, questions, wakes, reads;
static uint64_t slow;
static int forbidden; /* process_vm_readv */

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * GH_S + (uint64_t)t.tv_nsec;
}

/* Takes the arguments as a caller with any number of them leaves them in registers and on the stack. */
long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_process_vm_readv && forbidden) {
        errno = forbidden;
        return -1;
    }
    if (number == SYS_pread64) {
        HOLD(forbidden);
        reads++;
        for (uint64_t until = clock_cpu() + slow; clock_cpu() < until;)
            ;
    }
    if (number == SYS_openat) {
        const int always = O_NONBLOCK | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW;
        HOLD((c & always) == always);
        opens++;
    }
    if (number == SYS_fcntl && (int)b == F_GETLK) {
        HOLD(((struct flock *)c)->l_type == F_RDLCK);
        questions++;
        if (slow) {
            struct timespec t = {0, (long)slow};
            nanosleep(&t, NULL);
            ((struct flock *)c)->l_type = F_WRLCK;
            return 0;
        }
    }
    if (number == SYS_futex && (int)b == FUTEX_WAKE) {
        HOLD((int)c == GH_WAKES);
        wakes++;
        if (slow) {
            struct timespec t = {0, (long)slow};
            nanosleep(&t, NULL);
            return c;
        }
    }
    return __real_syscall(number, a, b, c, d, e, f);
}

static void put(const char *path, size_t size) {
    static const char zeros[GH_SLOT_FILE_SIZE];
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    HOLD(fd >= 0 && write(fd, zeros, size) == (ssize_t)size && !close(fd));
}

/* Between two of thousands of looks, so that they leave the processor to others. */
static void rest(void) {
    struct timespec t = {0, 20 * GH_US};
    nanosleep(&t, NULL);
}

static struct gh_slot look(struct slot_peer *peer, const struct gh_rules *rules) {
    static const struct gh_slot before;
    unsigned contexts;
    return slot_read(peer, 0, 1, 7, now(), rules, &before, GH_MS, UINT64_MAX, &contexts);
}

#define PEER GH_SHARE_DIR "/0/slot/01"
#define OWN GH_SLOT_FILE "/0"

static void missing(const struct gh_rules *rules) {
    struct slot_peer peer = {0};
    uint64_t since = now(), until = since + GH_S;
    while (now() < until || opens < 2) {
        HOLD(!look(&peer, rules).heartbeat);
        rest();
    }
    HOLD(opens <= (now() - since) / (100 * GH_MS) + 1);
    put(PEER, GH_SLOT_FILE_SIZE);
    until = now() + 60 * GH_S;
    while (!peer.file.fd) {
        look(&peer, rules);
        rest();
        HOLD(now() < until);
    }
}

/* A silent container's locks are tested for at most a hundredth of the time, and once more. */
static void asked(const struct gh_rules *rules, uint64_t costs, uint64_t every) {
    struct slot_peer peer = {0};
    struct gh_slot_page page = {.head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .top = 1},
                                .process = {{.owner = 1, .launched = 2, .done = 1, .heartbeat = now()}}};
    int fd = open(PEER, O_CREAT | O_WRONLY, 0666);
    HOLD(pwrite(fd, &page, sizeof page, 0) == sizeof page);
    uint64_t since = now(), until = since + 2 * GH_S;
    questions = 0;
    slow = costs;
    while (now() < until || questions < 2) {
        unsigned had = questions;
        rest();
        look(&peer, rules);
        HOLD(questions == had); /* not while the gate's lock is held */
        if (!slot_may_ask(&peer))
            continue;
        struct slot_peer copy = peer;
        slot_ask(&copy);
        slot_answered(&peer, &copy);
        HOLD(questions == had + 1);
    }
    HOLD(questions <= (now() - since) / every + 1);
    slow = 0;
    HOLD(!close(fd));
}

/* A neighbour's view says how much is in flight, and whether something was finished since: a higher class lets lower ones
 * finish their last commands only then. */
static void finishes(const struct gh_rules *rules) {
    struct slot_peer peer = {0};
    struct gh_slot_page page = {.head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .top = 1},
                                .process = {{.owner = 1, .launched = 9, .done = 8, .heartbeat = now()}}};
    int fd = open(PEER, O_CREAT | O_WRONLY, 0666);
    HOLD(pwrite(fd, &page, sizeof page, 0) == sizeof page);
    struct gh_slot before = look(&peer, rules), after;
    HOLD(before.launched - before.done == 1 && before.processes == 1);
    page.process[0].launched = ++page.process[0].done + 2;
    page.process[1] = page.process[2] = (struct gh_slot_process){.owner = 2, .heartbeat = now()};
    page.process[2].heartbeat -= GH_S; /* it has had no work for long */
    page.head.top = 3;
    HOLD(pwrite(fd, &page, sizeof page, 0) == sizeof page && !close(fd));
    after = look(&peer, rules);
    HOLD(after.launched - after.done == 2 && after.done == before.done + 1 && after.processes == 2);
}

/* Where the kernel may not read our mapping for us, read(2) does, for at most a hundredth of the time if others make it
 * slow; meanwhile what was read last is valid. */
static void filtered(const struct gh_rules *rules, int error) {
    static const struct gh_slot nothing;
    struct slot_peer peer = {0};
    struct gh_slot_page page = {.head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .top = 1, .active_at = 5},
                                .process = {{.owner = 1, .launched = 2, .done = 1, .heartbeat = now()}}};
    int fd = open(PEER, O_CREAT | O_WRONLY, 0666);
    HOLD(pwrite(fd, &page, sizeof page, 0) == sizeof page);
    forbidden = error;
    struct gh_slot last = nothing;
    unsigned contexts;
    for (int i = 0; i < 100; i++) { /* one that had no processor meanwhile was slow, too */
        last = slot_read(&peer, 0, 1, 7, now(), rules, &last, GH_MS, UINT64_MAX, &contexts);
        HOLD(last.active_at == 5 && reads);
    }
    slow = 4 * GH_MS;
    reads = 0;
    uint64_t since = now();
    while (now() < since + 2 * GH_S || reads < 2) {
        last = slot_read(&peer, 0, 1, 7, now(), rules, &last, GH_MS, UINT64_MAX, &contexts);
        HOLD(last.active_at == 5 && contexts <= 1);
        rest();
    }
    HOLD(reads <= (now() - since) / (400 * GH_MS) + 1);
    HOLD(!close(fd));
}

/* If nobody holds a lock, the container has ended until its next sign of life; but not if its lock is withheld. */
static void dead(const struct gh_rules *rules) {
    struct slot_peer peer = {0};
    struct gh_slot_page page = {.head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .top = 1},
                                .process = {{.owner = 1, .launched = 2, .done = 1, .heartbeat = now() - GH_S}}};
    int fd = open(PEER, O_CREAT | O_WRONLY, 0666);
    for (int withheld = 0; withheld < 2; withheld++) {
        page.process[0].heartbeat++;
        page.process[0].withheld = (uint8_t)withheld;
        HOLD(pwrite(fd, &page, sizeof page, 0) == sizeof page);
        HOLD(!look(&peer, rules).ended && slot_may_ask(&peer) == !withheld);
        struct slot_peer copy = peer;
        slot_ask(&copy);
        if (!withheld) {
            slot_answered(&peer, &copy);
            HOLD(look(&peer, rules).ended && !slot_may_ask(&peer));
            page.process[0].heartbeat++;
            HOLD(pwrite(fd, &page, sizeof page, 0) == sizeof page);
            slot_answered(&peer, &copy); /* too late: it has given another sign of life */
            HOLD(!look(&peer, rules).ended);
            copy.born++;
            slot_answered(&peer, &copy);
            HOLD(!look(&peer, rules).ended);
            struct timespec pause = {0, 60 * GH_MS};
            nanosleep(&pause, NULL);
        }
    }
}

/* If many threads of others sleep on our word, waking takes at most a hundredth of the time; if few, all are woken. */
static void crowd(void) {
    struct slot_own own = {0};
    HOLD(slot_attach(&own, 0));
    for (unsigned i = 0; i < 1000; i++) {
        slot_wake(&own);
        HOLD(wakes == i + 1);
    }
    wakes = 0;
    slow = 4 * GH_MS;
    uint64_t since = now();
    for (uint32_t before = own.page->head.word; now() < since + 2 * GH_S || wakes < 2; before++) {
        HOLD(own.page->head.word == before);
        slot_wake(&own);
        rest();
    }
    HOLD(wakes <= (now() - since) / (400 * GH_MS) + 1);
}

/* Numbers of threads saturate. Time is counted once for the container, whoever counts it, and not at all for a process that
 * had no processor. */
static void counts(void) {
    static const uint64_t many[] = {0, 1, 254, 255, 256, 300, 65535, 65536, 1ull << 33};
    struct slot_own own = {0}, sibling = {0};
    HOLD(slot_attach(&own, 0) && slot_attach(&sibling, 0) && own.page != sibling.page);
    for (unsigned i = 0; i < sizeof many / sizeof *many; i++) {
        struct slot_record record = {.held = many[i], .waiting = many[i]};
        slot_publish(&own, &record, 7);
        HOLD(own.process->held == (many[i] < 65535 ? many[i] : 65535));
        HOLD(own.process->waiting == (many[i] < 255 ? many[i] : 255) && own.process->heartbeat == 7);
    }
    const uint64_t at = 1000 * GH_S, *held = own.page->head.held_for;
    slot_held_for(&own, 63, at, at + GH_MS);
    slot_held_for(&sibling, 63, at + GH_MS / 2, at + 2 * GH_MS); /* half of it once more, and half as long beyond it */
    HOLD(held[63] == 2 * GH_MS && own.page->head.held_at == at + 2 * GH_MS);
    slot_held_for(&own, 2, at, at + 2 * GH_MS);             /* held for two containers at once: the first one counts */
    slot_held_for(&own, 2, at + 5 * GH_MS, at + 3 * GH_MS); /* never backwards */
    HOLD(!held[2] && own.page->head.held_at == at + 3 * GH_MS);
    uint64_t before = held[0];
    slot_held_for(&own, 0, at, at + GH_S); /* it had no processor for most of that */
    HOLD(held[0] - before == GH_COUNT_STEP);
    slot_held_for(&own, 64, at + GH_S, at + 2 * GH_S);
    slot_held_for(&own, ~0u, at + GH_S, at + 2 * GH_S);
    HOLD(own.page->head.held_at == at + GH_S && !own.page->head.reserved1[0]);
}

/* Long commands of a container's processes go one by one: first the one that has waited longest, while it says so. */
static void one_by_one(void) {
    const uint64_t at = 1000 * GH_S, came = at - GH_S, late = came + 1;
    struct slot_own a = {0};
    HOLD(slot_attach(&a, 0));
    struct slot_own b = a;
    struct gh_slot_head *head = &a.page->head;
    b.process = &b.page->process[1], b.generation = a.generation + 1;
    uint64_t seen;
    HOLD(!slot_siblings(&a, at, GH_S, &seen) && !seen);
    HOLD(slot_launches_long(&a, seen, came, at, true));
    HOLD(!slot_launches_long(&b, seen, came, at + 1, true)); /* it looked before that launch */
    HOLD(!slot_siblings(&a, at, GH_S, &seen) && slot_siblings(&b, at, GH_S, &seen) == GH_S);
    HOLD(slot_siblings(&b, at - GH_MS, GH_S, &seen) == GH_S); /* it was asked while the other one launched */
    HOLD(slot_siblings(&b, at + 399 * GH_MS, GH_S, &seen) && !slot_siblings(&b, at + 401 * GH_MS, GH_S, &seen));
    slot_shows_long(&b, 0); /* that is not its own */
    HOLD(slot_siblings(&b, at, GH_S, &seen) == GH_S);
    slot_had_unknown(&a, 1); /* another one, which may never end */
    slot_shows_long(&a, 2);
    HOLD(slot_siblings(&b, at, GH_S, &seen) == GH_S);
    slot_shows_long(&a, 1);
    HOLD(!slot_siblings(&b, at, GH_S, &seen));
    HOLD(slot_launches_long(&b, seen, came, at, false) && slot_siblings(&a, at, GH_S, &seen) == GH_S);
    HOLD(!slot_siblings(&a, at + 6 * GH_MS, GH_S, &seen)); /* it was stopped before its record showed it */
    slot_launches_unknown(&a, at);
    HOLD(slot_siblings(&b, at + 399 * GH_MS, GH_S, &seen));
    slot_shows_long(&b, 0), slot_shows_long(&a, 0);
    HOLD(!slot_siblings(&b, at, GH_S, &seen));
    slot_waits_long(&a, came, at);
    slot_waits_long(&b, late, at);
    HOLD(!slot_launches_long(&b, seen, late, at + 5 * GH_MS, false));
    HOLD(slot_launches_long(&b, seen, late, at + 5 * GH_MS + 1, false)); /* the other one has stopped, or ended */
    slot_waits_long(&b, late, at);
    slot_waits_long(&a, came, at);
    slot_goes(&b, late);
    HOLD(head->long_came == came && head->long_waits == at);
    slot_goes(&a, came);
    slot_siblings(&b, at, GH_S, &seen);
    HOLD(slot_launches_long(&b, seen, late, at, false));
    head->long_at = head->long_waits = ~0ull; /* not from a clock like ours */
    head->long_came = 0;
    HOLD(!slot_siblings(&a, at, GH_S, &seen) && slot_launches_long(&a, seen, came, at, false));
}

static void in_the_way(const char *path) {
    struct slot_own own = {0};
    HOLD(slot_attach(&own, 0));
    HOLD(own.page->head.magic == GH_SLOT_MAGIC && own.process != &own.unseen);
    if (strcmp(path, OWN)) { /* no lock in the container's own file: only in the slot file */
        HOLD(own.file.fd && !own.process->withheld);
        return;
    }
    HOLD(!own.file.fd);
    own.page->head.v = 5 * GH_S;
    own.page->head.charged = 3 * GH_S;
    own.process->launched = 9;
    const struct gh_slot_page *at = own.page;
    uint64_t since = now(), until = since + GH_S;
    opens = 0;
    while (now() < until || opens < 2) {
        slot_keep(&own);
        rest();
    }
    HOLD(opens <= (now() - since) / (100 * GH_MS) + 1);
    HOLD(!remove(path));
    put(path, GH_SLOT_FILE_SIZE);
    until = now() + 60 * GH_S;
    while (!own.file.fd) {
        slot_keep(&own);
        HOLD(now() < until);
    }
    struct gh_slot_head seen;
    int fd = open(path, O_RDWR); /* not closed, since that would drop our locks */
    HOLD(pread(fd, &seen, sizeof seen, 0) == sizeof seen);
    HOLD(seen.magic == GH_SLOT_MAGIC && seen.v == 5 * GH_S && seen.charged == 3 * GH_S && seen.top == 1);
    HOLD(own.page == at && own.process == &at->process[0] && own.process->launched == 9 && !own.process->withheld);
}

int main(int argc, char **argv) {
    struct gh_rules rules;
    gh_rules_default(&rules);
    HOLD(argc == 2);
    if (!strcmp(argv[1], "one by one"))
        one_by_one();
    else if (!strcmp(argv[1], "missing"))
        missing(&rules);
    else if (!strcmp(argv[1], "slow"))
        asked(&rules, 4 * GH_MS, 400 * GH_MS);
    else if (!strcmp(argv[1], "quick"))
        asked(&rules, 1, 50 * GH_MS);
    else if (!strcmp(argv[1], "crowd"))
        crowd();
    else if (!strcmp(argv[1], "finishes"))
        finishes(&rules);
    else if (!strcmp(argv[1], "counts"))
        counts();
    else if (!strcmp(argv[1], "unknown call"))
        filtered(&rules, ENOSYS);
    else if (!strcmp(argv[1], "forbidden call"))
        filtered(&rules, EPERM);
    else if (!strcmp(argv[1], "dead"))
        dead(&rules);
    else
        in_the_way(argv[1]);
    printf("ok\n");
    return 0;
}
