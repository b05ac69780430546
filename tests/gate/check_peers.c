/* How often the locks of other containers are tested, whatever those write into their slots and however long a test takes.
 * Linked with -Wl,--wrap=syscall: tests are counted by file, and can be made slow. check_peers WHAT, with a GH_PRIVATE of
 * its own, with share/0/slot in it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate/peers.h"
#include "pages/layout.h"
#include "hold.h"

enum { ME = 3, SLOW = 5, DEAD = 60 };
#define EVERY (50 * GH_MS)

static struct peers peers;
static struct gh_lock lock;
static ino_t inode[GH_SLOTS];
static uint64_t asked_at[GH_SLOTS], questions[GH_SLOTS], all;
static uint64_t cost[GH_SLOTS]; /* how long a test of that slot's locks takes */

bool gh_lock_wait(struct gh_lock *l) { return !atomic_exchange(&l->taken, 1); }

static unsigned slot_of(int fd) {
    struct stat st;
    HOLD(!fstat(fd, &st));
    for (unsigned i = 0; i < GH_SLOTS; i++)
        if (inode[i] == st.st_ino)
            return i;
    abort();
}

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    if (number != SYS_fcntl || (int)b != F_GETLK)
        return __real_syscall(number, a, b, c, d, e, f);
    HOLD(!lock.taken); /* nobody else waits for the gate meanwhile */
    unsigned slot = slot_of((int)a);
    uint64_t now = clock_ns();
    HOLD(slot != ME && (!asked_at[slot] || now - asked_at[slot] >= EVERY));
    asked_at[slot] = now;
    questions[slot]++;
    all++;
    if (!cost[slot])
        return __real_syscall(number, a, b, c, d, e, f);
    struct timespec t = {0, (long)cost[slot]};
    nanosleep(&t, NULL);
    ((struct flock *)c)->l_type = F_WRLCK;
    return 0;
}

static uint64_t state = 12345;
static uint64_t draw(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 17 ^ state << 41;
}

static int file_of(unsigned slot) {
    char path[200];
    snprintf(path, sizeof path, GH_SHARE_DIR "/0/slot/%02u", slot);
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    HOLD(fd >= 0);
    return fd;
}

/* A silent container with work in flight. */
static struct gh_slot_page silent(void) {
    struct gh_slot_page page = {
        .head = {.magic = GH_SLOT_MAGIC, .version = GH_SLOT_VERSION, .top = 2},
        .process = {{.owner = 1, .launched = 2, .done = 1, .heartbeat = clock_ns() - 5 * GH_MS}}};
    return page;
}

static void put(unsigned slot, const struct gh_slot_page *page, size_t size) {
    static int fd[GH_SLOTS];
    struct stat st;
    fd[slot] = fd[slot] ? fd[slot] : file_of(slot);
    HOLD(!ftruncate(fd[slot], (off_t)size));
    HOLD(pwrite(fd[slot], page, size, 0) == (ssize_t)size && !fstat(fd[slot], &st));
    inode[slot] = st.st_ino;
}

/* Whatever its owner likes. */
static void scribble(unsigned slot) {
    struct gh_slot_page page = silent();
    struct gh_slot_process *process = &page.process[draw() % 2];
    process->owner = draw() % 2;
    process->withheld = draw() % 4 == 0;
    process->heartbeat = clock_ns() - draw() % (8 * GH_MS);
    if (draw() % 50 == 0)
        page.head.magic = draw();
    put(slot, &page, draw() % 50 ? sizeof page : draw() % sizeof page);
}

static void begin(void) {
    static struct {
        char policy[GH_POLICY_SIZE];
        struct gh_gpu_page gpu;
        char rest[GH_GPU_PAGE_SIZE - sizeof(struct gh_gpu_page)];
    } file;
    file.gpu = (struct gh_gpu_page){.magic = GH_GPU_MAGIC,
                                    .version = GH_GPU_VERSION,
                                    .size = GH_GPU_PAGE_SIZE,
                                    .seq = 2,
                                    .time_scale = 1,
                                    .present = UINT64_MAX};
    struct gh_slot_page page = silent();
    for (unsigned i = 0; i < GH_SLOTS; i++) {
        file.gpu.slot[i] = (struct gh_gpu_share){.share = {.class_ = 1, .weight = 100}, .born = 1 + i};
        put(i, &page, sizeof page);
    }
    int fd = open(GH_POLICY_FILE, O_CREAT | O_WRONLY, 0666);
    HOLD(write(fd, &file, sizeof file) == sizeof file && !close(fd));
    struct gh_gpu_policy policy = {.slot = 1 + ME};
    peers_begin(&peers, &policy, 1, 0);
    HOLD(gh_lock(&lock));
}

/* One round of the pacer. */
static void round_of(void) {
    peers_look(&peers, peers_now(&peers), 1);
    uint64_t had = all;
    peers_ask(&peers, &lock);
    HOLD(all - had <= 1); /* one at a time */
}

/* 63 containers that write anything at any moment. costs: how long a test takes. */
static void scribblers(uint64_t costs) {
    uint64_t since = clock_ns();
    for (unsigned i = 0; i < GH_SLOTS; i++)
        cost[i] = costs;
    while (clock_ns() - since < 3 * GH_S || all < (costs ? 2 : 100)) {
        for (unsigned i = 0; i < 8; i++) {
            unsigned slot = (unsigned)(draw() % GH_SLOTS);
            if (slot != ME)
                scribble(slot);
        }
        round_of();
    }
    HOLD(!costs || (all - 1) * costs <= (clock_ns() - since) / 50); /* a hundredth, and what a sleep takes too long */
}

/* One whose tests take long keeps nobody from finding out that another one has ended. */
static void slow_beside_dead(void) {
    uint64_t since = clock_ns();
    cost[SLOW] = 4 * GH_MS;
    while (!peers_view(&peers)->slot[DEAD].ended) {
        struct gh_slot_page page = silent(); /* it is asked again and again */
        page.process[0].heartbeat -= draw() % GH_MS;
        put(SLOW, &page, sizeof page);
        round_of();
        HOLD(clock_ns() - since < 60 * GH_S);
    }
    HOLD(questions[SLOW] <= (clock_ns() - since) / (400 * GH_MS) + 1);
}

/* A process with work by its own word, in each of its records. The host's count is an upper bound of what is believed, while it
 * holds. */
static void no_more_contexts_than_the_host_counts(void) {
    struct gh_slot_page forged = silent();
    forged.head.top = GH_SLOT_PROCESSES;
    for (unsigned i = 0; i < GH_SLOT_PROCESSES; i++)
        forged.process[i] = (struct gh_slot_process){
            .owner = 1 + i, .launched = 2, .done = 1, .heartbeat = clock_ns(), .done_at = clock_ns(), .withheld = 1};
    int fd = open(GH_POLICY_FILE, O_RDWR);
    for (unsigned i = 0; i < GH_SLOTS; i++)
        put(i, &forged, i == SLOW ? sizeof forged : 0);
    static const struct {
        uint64_t ahead;
        uint8_t counted;
        unsigned believed;
    } cases[] = {{60 * GH_S, 0, 1}, {60 * GH_S, 1, 1}, {60 * GH_S, 3, 3}, {60 * GH_S, 200, 112}, {0, 3, 112}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t until = cases[i].ahead ? clock_ns() + cases[i].ahead : clock_ns();
        off_t at = GH_POLICY_SIZE + (off_t)offsetof(struct gh_gpu_page, counted_until);
        HOLD(pwrite(fd, &until, sizeof until, at) == sizeof until);
        HOLD(pwrite(fd, &cases[i].counted, 1, at + 8 + SLOW) == 1);
        for (unsigned k = 0; k < GH_SLOT_PROCESSES; k++)
            forged.process[k].heartbeat = forged.process[k].done_at = clock_ns();
        put(SLOW, &forged, sizeof forged);
        struct peers_said said = peers_look(&peers, peers_now(&peers), 1);
        HOLD(said.contexts == cases[i].believed);
        HOLD(peers_view(&peers)->slot[SLOW].processes == cases[i].believed);
    }
    HOLD(!close(fd));
}

int main(int argc, char **argv) {
    HOLD(argc == 2);
    begin();
    if (!strcmp(argv[1], "quick"))
        scribblers(0);
    else if (!strcmp(argv[1], "slow"))
        scribblers(4 * GH_MS);
    else if (!strcmp(argv[1], "counts"))
        no_more_contexts_than_the_host_counts();
    else
        slow_beside_dead();
    puts("ok");
    return 0;
}
