#define _GNU_SOURCE
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

#define ASK_EVERY (100 * GH_MS)
#define HIGH 100 /* descriptors out of the way of programs that count on low numbers */

static char *number(char *to, unsigned n, unsigned digits) {
    for (unsigned i = digits; i--; n /= 10)
        to[i] = (char)('0' + n % 10);
    return to + digits;
}

static int open_high(const char *path, int flags, struct stat *st) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return -1;
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH);
    if (high >= 0) {
        syscall(SYS_close, fd);
        fd = high;
    }
    if (!fstat(fd, st) && S_ISREG(st->st_mode))
        return fd;
    syscall(SYS_close, fd);
    return -1;
}

/* ---- the own file ---- */

/* A classical record lock: the kernel drops it when the process dies or execs, and a forked child has none. */
static bool lock_byte(int fd, unsigned i) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)i, .l_len = 1};
    return !syscall(SYS_fcntl, fd, F_SETLK, &lock);
}

static void take(struct slot_own *own) {
    struct gh_slot_head *head = &own->page->head;
    own->generation = __atomic_add_fetch(&head->generation, 1, __ATOMIC_RELAXED);
    if (!own->generation)
        own->generation = 1;
    own->sub = &own->spare;
    for (unsigned i = 0; i < GH_SUB_SLOTS; i++) {
        struct gh_sub_slot *sub = &own->page->sub[i];
        uint64_t nobody = 0;
        if (own->fd && !lock_byte(own->fd, i)) {
            if (errno == EAGAIN || errno == EACCES || LOAD(&sub->owner))
                continue; /* a living neighbour's; or locks do not work here: only those that nobody ever had */
            if (!__atomic_compare_exchange_n(&sub->owner, &nobody, own->generation, false, __ATOMIC_ACQ_REL,
                                             __ATOMIC_RELAXED))
                continue;
        }
        own->inherited = LOAD(&sub->owner) && LOAD(&sub->launched) != LOAD(&sub->done);
        STORE(&sub->owner, 0);
        STORE(&sub->launched, 0);
        STORE(&sub->done, 0);
        STORE(&sub->done_at, 0);
        STORE(&sub->heartbeat, 0);
        STORE(&sub->residue, 0);
        STORE(&sub->held, 0);
        STORE(&sub->waiting, 0);
        STORE(&sub->pid, (uint32_t)syscall(SYS_getpid));
        STORE(&sub->owner, own->generation);
        uint32_t top = LOAD(&head->top);
        while (top < i + 1 && !__atomic_compare_exchange_n(&head->top, &top, i + 1, false, __ATOMIC_ACQ_REL,
                                                           __ATOMIC_RELAXED))
            ;
        own->sub = sub;
        return;
    }
}

bool slot_attach(struct slot_own *own, unsigned card) {
    char path[sizeof GH_SLOT_FILE + 4] = GH_SLOT_FILE "/";
    struct stat st;
    *number(path + sizeof GH_SLOT_FILE, card, card > 9 ? 2 : 1) = 0;
    int fd = open_high(path, O_RDWR, &st);
    void *page = MAP_FAILED;
    if (fd >= 0 && st.st_size == GH_SLOT_FILE_SIZE)
        page = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        if (fd >= 0)
            syscall(SYS_close, fd);
        fd = 0;
        page = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return false;
    }
    own->page = page;
    own->fd = fd;
    struct gh_slot_head *head = &own->page->head;
    if (LOAD(&head->magic) != GH_SLOT_MAGIC || LOAD(&head->version) != GH_SLOT_VERSION) {
        STORE(&head->duty, GH_PPM); /* until it is learned */
        STORE(&head->saturated, 1);
        STORE(&head->version, GH_SLOT_VERSION);
        STORE(&head->magic, GH_SLOT_MAGIC);
    }
    STORE(&head->counts, 1);
    take(own);
    return true;
}

void slot_keep(struct slot_own *own, uint64_t now) {
    bool lost = own->sub != &own->spare && LOAD(&own->sub->owner) != own->generation;
    if (lost || (own->sub == &own->spare && own->fd && now - own->asked_at > ASK_EVERY)) {
        uint64_t launched = LOAD(&own->sub->launched), done = LOAD(&own->sub->done);
        own->asked_at = now;
        take(own);
        STORE(&own->sub->launched, launched);
        STORE(&own->sub->done, done);
    }
}

void slot_wake(struct slot_own *own) {
    __atomic_add_fetch(&own->page->head.word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &own->page->head.word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void slot_waited(struct slot_own *own, uint64_t ns) {
    unsigned bin = 0;
    while (bin < GH_WAITS - 1 && ns >= GH_WAIT_FIRST << bin)
        bin++;
    __atomic_add_fetch(&own->page->head.waits[bin], 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&own->page->head.waited, ns, __ATOMIC_RELAXED);
}

void slot_wanted(struct slot_own *own, uint64_t since, uint64_t now) {
    uint64_t last = LOAD(&own->page->head.wanted_at);
    if (now > GH_WANTED_STEP && since < now - GH_WANTED_STEP)
        since = now - GH_WANTED_STEP;
    while (last < now)
        if (__atomic_compare_exchange_n(&own->page->head.wanted_at, &last, now, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            __atomic_add_fetch(&own->page->head.wanted, now - (last > since ? last : since), __ATOMIC_RELAXED);
            return;
        }
}

/* ---- the others' ---- */

void slot_close(struct slot_peer *peer) {
    struct stat st;
    /* The program may have closed our descriptor, and its number may be another file's by now. */
    if (peer->fd && !fstat(peer->fd - 1, &st) && st.st_ino == peer->inode && st.st_dev == peer->device)
        syscall(SYS_close, peer->fd - 1);
    if (peer->mapped)
        munmap(peer->mapped, GH_SLOT_FILE_SIZE);
    *peer = (struct slot_peer){0};
}

static bool open_peer(struct slot_peer *peer, unsigned card, unsigned slot, uint64_t born) {
    char path[sizeof GH_SHARE_DIR + 16] = GH_SHARE_DIR "/";
    struct stat st;
    char *at = number(path + sizeof GH_SHARE_DIR, card, card > 9 ? 2 : 1);
    memcpy(at, "/slot/", 6);
    *number(at + 6, slot, 2) = 0;
    int fd = open_high(path, O_RDONLY, &st);
    if (fd < 0)
        return false;
    void *map = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    *peer = (struct slot_peer){.born = born,
                               .inode = st.st_ino,
                               .device = st.st_dev,
                               .fd = fd + 1,
                               .mapped = map == MAP_FAILED ? NULL : map};
    return true;
}

/* Nobody holds any sub-slot's lock. In doubt: alive. A lock may be withheld from us, never forged for another. */
static bool unlocked(const struct slot_peer *peer) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = GH_SUB_SLOTS};
    return !syscall(SYS_fcntl, peer->fd - 1, F_GETLK, &lock) && lock.l_type == F_UNLCK;
}

struct gh_slot slot_read(struct slot_peer *peer, unsigned card, unsigned slot, uint64_t born, uint64_t now,
                         const struct gh_rules *rules, const struct gh_slot *before, uint64_t elapsed, uint64_t top,
                         unsigned *contexts) {
    static const struct gh_slot empty;
    union {
        struct gh_slot_page page;
        char bytes[GH_SLOT_FILE_SIZE + 8];
    } got;
    bool fresh = peer->born != born || !peer->fd;
    *contexts = 0;
    if (fresh) {
        slot_close(peer);
        if (!open_peer(peer, card, slot, born))
            return empty;
    }
    ssize_t n = (ssize_t)syscall(SYS_pread64, peer->fd - 1, got.bytes, (size_t)GH_SLOT_FILE_SIZE + 1, (off_t)0);
    if (n < 0) {
        slot_close(peer);
        return empty;
    }
    struct gh_slot s = gh_slot_view(got.bytes, (size_t)n, now, rules->heartbeat_stale, contexts);
    if (n == GH_SLOT_FILE_SIZE)
        peer->word = got.page.head.word;
    /* No step back is believed, and none forward that could neither be work done meanwhile nor a return from idling:
     * else who wakes beside a liar would take its v along to honest tenants. */
    uint64_t most = top;
    if (!fresh && before->v + elapsed * 1000 > most)
        most = before->v + elapsed * 1000;
    if (fresh && now * GH_WEIGHT_ONE > most)
        most = now * GH_WEIGHT_ONE;
    if (s.v > most)
        s.v = most;
    if (!fresh && s.v < before->v)
        s.v = before->v;
    uint64_t quiet = now > s.heartbeat ? now - s.heartbeat : 0;
    s.dead = s.heartbeat && quiet > rules->silent && unlocked(peer);
    if (s.dead)
        *contexts = 0;
    return s;
}

void slot_sleep(const uint32_t *word, uint32_t seen, uint64_t ns) {
    struct timespec t = {(time_t)(ns / GH_S), (long)(ns % GH_S)};
    if (word)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
    else
        syscall(SYS_nanosleep, &t, NULL);
}
