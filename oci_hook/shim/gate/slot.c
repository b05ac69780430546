#define _GNU_SOURCE
#include "gate/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pages/layout.h"

/* Others decide what a question costs. Not more often than this, and not in more than a hundredth of the time. */
#define ASK_EVERY (50 * GH_MS)
#define ASK_PART 100
#define RETRY_EVERY (100 * GH_MS)
#define HIGH 100 /* descriptors out of the way of programs that count on low numbers */

static uint64_t real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * GH_S + (uint64_t)t.tv_nsec;
}

static uint64_t again(uint64_t since, uint64_t now, uint64_t at_least) {
    uint64_t pause = (now - since) * ASK_PART;
    return now + (pause > at_least ? pause : at_least);
}

static char *number(char *to, unsigned n, unsigned digits) {
    for (unsigned i = digits; i--; n /= 10)
        to[i] = (char)('0' + n % 10);
    return to + digits;
}

/* Another tenant can have a lease on what it can open: then an open that could sleep, would. 0: none, see errno. */
static struct slot_file open_high(const char *path, int flags, struct stat *st) {
    const int always = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags | always, 0666);
    if (fd < 0)
        return (struct slot_file){0};
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH);
    if (high >= 0) {
        syscall(SYS_close, fd);
        fd = high;
    }
    if (!fstat(fd, st) && S_ISREG(st->st_mode))
        return (struct slot_file){.fd = fd + 1, .inode = st->st_ino, .device = st->st_dev};
    syscall(SYS_close, fd);
    errno = EINVAL;
    return (struct slot_file){0};
}

static bool is_ours(const struct slot_file *file) {
    struct stat st;
    return file->fd && !fstat(file->fd - 1, &st) && st.st_ino == file->inode && st.st_dev == file->device;
}

static void close_ours(struct slot_file *file) {
    if (is_ours(file))
        syscall(SYS_close, file->fd - 1);
    *file = (struct slot_file){0};
}

/* ---- locks ---- */

enum locked { LOCKED, BUSY, NO_LOCKS };

/* Classical record locks: the kernel drops them when the process dies or execs, and a forked child has none. */
static enum locked lock_byte(const struct slot_file *file, off_t at) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (!file->fd || !is_ours(file))
        return NO_LOCKS;
    if (!syscall(SYS_fcntl, file->fd - 1, F_SETLK, &lock))
        return LOCKED;
    return errno == EAGAIN || errno == EACCES ? BUSY : NO_LOCKS;
}

static void unlock_byte(const struct slot_file *file, off_t at) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (is_ours(file))
        syscall(SYS_fcntl, file->fd - 1, F_SETLK, &lock);
}

/* Whether another process holds a write lock there. For that a file must be open for writing, which a slot file is to
 * its own container alone; read locks can be anybody's, and say nothing. In doubt: yes. */
static bool write_locked(const struct slot_file *file, off_t at, off_t length) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = length};
    return syscall(SYS_fcntl, file->fd - 1, F_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* ---- the own file ---- */

/* GH_SUB_LOCKS, in the container's own tmpfs: its locks are what siblings see, and no neighbour can open it. Written
 * while the gates are made, for all GPUs. */
static struct slot_file among;

/* No O_CREAT on a file that is there: see open_page() of account.c. */
static void open_among(void) {
    struct stat st;
    struct slot_file file;
    if (is_ours(&among)) /* of another GPU: to close a second descriptor would drop the locks of the first */
        return;
    file = open_high(GH_SUB_LOCKS, O_RDWR, &st);
    if (!file.fd && errno == ENOENT)
        file = open_high(GH_SUB_LOCKS, O_RDWR | O_CREAT | O_EXCL, &st);
    if (!file.fd && errno == EEXIST)
        file = open_high(GH_SUB_LOCKS, O_RDWR, &st);
    if (file.fd && (st.st_mode & 0666) != 0666 && st.st_uid == geteuid())
        fchmod(file.fd - 1, 0666); /* the umask took some of it */
    among = file;
}

static off_t among_at(const struct slot_own *own, unsigned i) { return (off_t)own->gpu * GH_SUB_SLOTS + i; }

/* Sub-slot i for us, if no living sibling has it. withheld: neighbours cannot see that by a lock. */
static bool claim(struct slot_own *own, unsigned i, bool *withheld) {
    uint64_t nobody = 0;
    enum locked mine = lock_byte(&among, among_at(own, i));
    if (mine == BUSY)
        return false;
    enum locked seen = lock_byte(&own->file, i);
    *withheld = seen != LOCKED;
    if (seen == LOCKED)
        return true;
    if (seen == BUSY && write_locked(&own->file, i, 1)) {
        if (mine == LOCKED)
            unlock_byte(&among, among_at(own, i));
        return false;
    }
    /* Without a lock that siblings see, only what nobody ever had. */
    return mine == LOCKED || __atomic_compare_exchange_n(&own->page->sub[i].owner, &nobody, own->generation, false,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void take(struct slot_own *own) {
    struct gh_slot_head *head = &own->page->head;
    uint64_t since = real_now();
    own->generation = __atomic_add_fetch(&head->generation, 1, __ATOMIC_RELAXED);
    if (!own->generation)
        own->generation = 1;
    own->sub = &own->spare;
    for (unsigned i = 0; i < GH_SUB_SLOTS; i++) {
        struct gh_sub_slot *sub = &own->page->sub[i];
        bool withheld = false;
        if (own->file.fd && !claim(own, i, &withheld))
            continue;
        own->inherited = LOAD(&sub->owner) && LOAD(&sub->launched) != LOAD(&sub->done);
        STORE(&sub->owner, 0);
        STORE(&sub->launched, 0);
        STORE(&sub->done, 0);
        STORE(&sub->done_at, 0);
        STORE(&sub->heartbeat, 0);
        STORE(&sub->residue, 0);
        STORE(&sub->held, 0);
        STORE(&sub->waiting, 0);
        STORE(&sub->withheld, withheld);
        STORE(&sub->pid, (uint32_t)syscall(SYS_getpid));
        STORE(&sub->owner, own->generation);
        uint32_t top = LOAD(&head->top);
        while (top < i + 1 &&
               !__atomic_compare_exchange_n(&head->top, &top, i + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
        own->sub = sub;
        break;
    }
    own->retry_at = own->lock_at = again(since, real_now(), RETRY_EVERY);
}

bool slot_may_lock(const struct slot_own *own) {
    return own->file.fd && own->sub != &own->spare && LOAD(&own->sub->withheld) && real_now() >= own->lock_at;
}

void slot_lock(struct slot_own *copy) {
    uint64_t since = real_now();
    copy->locked = lock_byte(&copy->file, copy->sub - copy->page->sub) == LOCKED;
    copy->lock_at = again(since, real_now(), RETRY_EVERY);
}

void slot_locked(struct slot_own *own, const struct slot_own *copy) {
    own->lock_at = copy->lock_at;
    if (!copy->locked)
        return;
    if (own->sub == copy->sub)
        STORE(&own->sub->withheld, 0);
    else /* lost meanwhile */
        unlock_byte(&copy->file, copy->sub - copy->page->sub);
}

/* The own file, mapped. NULL: it is not there, no such file, or somebody has a lease on it. */
static struct gh_slot_page *map_own(unsigned gpu, struct slot_file *file) {
    char path[sizeof GH_SLOT_FILE + 4] = GH_SLOT_FILE "/";
    struct stat st;
    void *page = MAP_FAILED;
    *number(path + sizeof GH_SLOT_FILE, gpu, gpu > 9 ? 2 : 1) = 0;
    *file = open_high(path, O_RDWR, &st);
    if (file->fd && st.st_size == GH_SLOT_FILE_SIZE)
        page = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd - 1, 0);
    if (page != MAP_FAILED)
        return page;
    close_ours(file);
    return NULL;
}

static void begin(struct gh_slot_page *page) {
    struct gh_slot_head *head = &page->head;
    if (LOAD(&head->magic) != GH_SLOT_MAGIC || LOAD(&head->version) != GH_SLOT_VERSION) {
        STORE(&head->duty, GH_PPM); /* until it is learned */
        STORE(&head->saturated, 1);
        STORE(&head->version, GH_SLOT_VERSION);
        STORE(&head->magic, GH_SLOT_MAGIC);
    }
    STORE(&head->counts, 1);
}

bool slot_attach(struct slot_own *own, unsigned gpu) {
    own->gpu = gpu;
    open_among();
    own->page = map_own(gpu, &own->file);
    if (!own->page) {
        own->page = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if ((void *)own->page == MAP_FAILED)
            return false;
    }
    begin(own->page);
    take(own);
    return true;
}

static void raise_to(uint64_t *word, uint64_t least) {
    uint64_t old = LOAD(word);
    while (old < least && !__atomic_compare_exchange_n(word, &old, least, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

/* The file, in the place of the private memory that there was instead; what was had meanwhile, was had. */
static void attach_late(struct slot_own *own) {
    struct gh_slot_page *page = map_own(own->gpu, &own->file);
    if (!page)
        return;
    begin(page);
    raise_to(&page->head.v, own->page->head.v);
    raise_to(&page->head.credit, own->page->head.credit);
    __atomic_add_fetch(&page->head.charged, own->page->head.charged, __ATOMIC_RELAXED);
    if (mremap(page, GH_SLOT_FILE_SIZE, GH_SLOT_FILE_SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, own->page) != MAP_FAILED)
        return;
    munmap(page, GH_SLOT_FILE_SIZE);
    close_ours(&own->file);
}

void slot_keep(struct slot_own *own) {
    bool lost = own->sub != &own->spare && LOAD(&own->sub->owner) != own->generation;
    bool complete = own->file.fd && own->sub != &own->spare;
    if (!lost && (complete || real_now() < own->retry_at))
        return;
    uint64_t launched = LOAD(&own->sub->launched), done = LOAD(&own->sub->done);
    if (!own->file.fd)
        attach_late(own);
    if (lost || own->file.fd) {
        take(own);
        STORE(&own->sub->launched, launched);
        STORE(&own->sub->done, done);
    } else {
        own->retry_at = real_now() + RETRY_EVERY;
    }
}

void slot_wake(struct slot_own *own) {
    uint32_t *word = &own->page->head.word;
    __atomic_add_fetch(word, 1, __ATOMIC_RELEASE);
    if (own->wake_at && real_now() < own->wake_at)
        return;
    /* A neighbour may put thousands of threads to sleep here, and does not pay for waking them. */
    uint64_t since = real_now();
    bool many = syscall(SYS_futex, word, FUTEX_WAKE, GH_WAKES, NULL, NULL, 0) >= GH_WAKES;
    own->wake_at = many ? again(since, real_now(), 0) : 0;
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
    close_ours(&peer->file);
    if (peer->mapped)
        munmap(peer->mapped, GH_SLOT_FILE_SIZE);
    *peer = (struct slot_peer){0};
}

/* Not there, or its owner or another neighbour has a lease on it: as if nobody had that slot, for a while. */
static bool open_peer(struct slot_peer *peer, unsigned gpu, unsigned slot, uint64_t born) {
    char path[sizeof GH_SHARE_DIR + 16] = GH_SHARE_DIR "/";
    struct stat st;
    char *at = number(path + sizeof GH_SHARE_DIR, gpu, gpu > 9 ? 2 : 1);
    memcpy(at, "/slot/", 6);
    *number(at + 6, slot, 2) = 0;
    uint64_t now = real_now();
    if (peer->born == born && now < peer->open_at)
        return false;
    *peer = (struct slot_peer){.born = born, .open_at = now + RETRY_EVERY, .file = open_high(path, O_RDONLY, &st)};
    if (!peer->file.fd)
        return false;
    void *map = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ, MAP_SHARED, peer->file.fd - 1, 0);
    peer->mapped = map == MAP_FAILED ? NULL : map;
    return true;
}

bool slot_may_ask(const struct slot_peer *peer) { return peer->ask && peer->file.fd && real_now() >= peer->ask_at; }

void slot_ask(struct slot_peer *copy) {
    uint64_t since = real_now();
    copy->gone = is_ours(&copy->file) && !write_locked(&copy->file, 0, GH_SUB_SLOTS) ? copy->beat : 0;
    copy->ask_at = again(since, real_now(), ASK_EVERY);
}

void slot_answered(struct slot_peer *peer, const struct slot_peer *copy) {
    if (peer->born != copy->born || peer->file.fd != copy->file.fd || peer->file.inode != copy->file.inode)
        return; /* another one's meanwhile */
    peer->gone = copy->gone;
    peer->ask_at = copy->ask_at;
}

/* A process there has no lock, and says that it is not to blame. */
static bool withheld(const struct gh_slot_page *page) {
    unsigned top = page->head.top < GH_SUB_SLOTS ? page->head.top : GH_SUB_SLOTS;
    for (unsigned i = 0; i < top; i++)
        if (page->sub[i].owner && page->sub[i].withheld)
            return true;
    return false;
}

struct gh_slot slot_read(struct slot_peer *peer, unsigned gpu, unsigned slot, uint64_t born, uint64_t now,
                         const struct gh_rules *rules, const struct gh_slot *before, uint64_t elapsed, uint64_t top,
                         unsigned *contexts) {
    static const struct gh_slot empty;
    union {
        struct gh_slot_page page;
        char bytes[GH_SLOT_FILE_SIZE + 8];
    } got;
    bool fresh = peer->born != born || !peer->file.fd;
    *contexts = 0;
    if (fresh) {
        if (peer->born != born || peer->mapped)
            slot_close(peer);
        if (!open_peer(peer, gpu, slot, born))
            return empty;
    }
    ssize_t n = (ssize_t)syscall(SYS_pread64, peer->file.fd - 1, got.bytes, (size_t)GH_SLOT_FILE_SIZE + 1, (off_t)0);
    if (n < 0) {
        slot_close(peer);
        *peer = (struct slot_peer){.born = born, .open_at = real_now() + RETRY_EVERY};
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
    /* Silent: dead, or only without a processor? An answer holds until the next sign of life. */
    bool silent = s.heartbeat && now > s.heartbeat && now - s.heartbeat > rules->silent;
    peer->beat = s.heartbeat;
    s.dead = silent && peer->gone == s.heartbeat;
    peer->ask = silent && !s.dead && !withheld(&got.page);
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
