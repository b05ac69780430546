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

/* Other containers decide how long a test of a lock takes. So we test at most this often, and for at most a hundredth
 * of the time. */
#define ASK_EVERY (50 * GH_MS)
#define ASK_PART 100
#define RETRY_EVERY (100 * GH_MS)
#define HIGH 100 /* lowest descriptor that we use: some programs rely on low ones */

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

/* Opens without waiting: another container can have a lease on any file that it can open. fd 0: failed, see errno. */
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

/* Traditional record locks: the kernel drops them when the process ends or execs, and a forked child has none. */
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

/* Whether another process holds a write lock there. A write lock needs a file open for writing, and only its own
 * container can open a slot file for writing. Read locks can be anybody's, so they prove nothing. In doubt: yes. */
static bool write_locked(const struct slot_file *file, off_t at, off_t length) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = length};
    return syscall(SYS_fcntl, file->fd - 1, F_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* ---- our own file ---- */

/* GH_PROCESS_LOCKS, in the container's own tmpfs: the processes of the container see each other's locks there, and no
 * other container can open it. Opened while the gates are made; one file for all GPUs. */
static struct slot_file process_locks;

/* No O_CREAT on a file that exists: see open_page() in account/account.c. */
static void open_process_locks(void) {
    struct stat st;
    struct slot_file file;
    if (is_ours(&process_locks)) /* open already; closing a second descriptor would drop the locks of the first */
        return;
    file = open_high(GH_PROCESS_LOCKS, O_RDWR, &st);
    if (!file.fd && errno == ENOENT)
        file = open_high(GH_PROCESS_LOCKS, O_RDWR | O_CREAT | O_EXCL, &st);
    if (!file.fd && errno == EEXIST)
        file = open_high(GH_PROCESS_LOCKS, O_RDWR, &st);
    if (file.fd && (st.st_mode & 0666) != 0666 && st.st_uid == geteuid())
        fchmod(file.fd - 1, 0666); /* the umask has removed some bits */
    process_locks = file;
}

static off_t process_lock_at(const struct slot_own *own, unsigned i) { return (off_t)own->gpu * GH_SLOT_PROCESSES + i; }

/* Takes record i, unless a running process of the container has it. *withheld: other containers see no lock for it. */
static bool claim(struct slot_own *own, unsigned i, bool *withheld) {
    uint64_t nobody = 0;
    enum locked mine = lock_byte(&process_locks, process_lock_at(own, i));
    if (mine == BUSY)
        return false;
    enum locked seen = lock_byte(&own->file, i);
    *withheld = seen != LOCKED;
    if (seen == LOCKED)
        return true;
    if (seen == BUSY && write_locked(&own->file, i, 1)) {
        if (mine == LOCKED)
            unlock_byte(&process_locks, process_lock_at(own, i));
        return false;
    }
    /* Without a lock that our container's processes see, take only a record that was never used. */
    return mine == LOCKED || __atomic_compare_exchange_n(&own->page->process[i].owner, &nobody, own->generation, false,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void take(struct slot_own *own) {
    struct gh_slot_head *head = &own->page->head;
    uint64_t since = real_now();
    own->generation = __atomic_add_fetch(&head->generation, 1, __ATOMIC_RELAXED);
    if (!own->generation)
        own->generation = 1;
    own->process = &own->unseen;
    for (unsigned i = 0; i < GH_SLOT_PROCESSES; i++) {
        struct gh_slot_process *record = &own->page->process[i];
        bool withheld = false;
        if (own->file.fd && !claim(own, i, &withheld))
            continue;
        own->inherited = WORD_LOAD_RELAXED(&record->owner) &&
                         WORD_LOAD_RELAXED(&record->launched) != WORD_LOAD_RELAXED(&record->done);
        WORD_STORE_RELEASE(&record->owner, 0);
        WORD_STORE_RELEASE(&record->launched, 0);
        WORD_STORE_RELEASE(&record->done, 0);
        WORD_STORE_RELEASE(&record->done_at, 0);
        WORD_STORE_RELEASE(&record->heartbeat, 0);
        WORD_STORE_RELEASE(&record->residue, 0);
        WORD_STORE_RELEASE(&record->uncharged, 0);
        WORD_STORE_RELEASE(&record->held, 0);
        WORD_STORE_RELEASE(&record->waiting, 0);
        WORD_STORE_RELEASE(&record->withheld, (uint8_t)withheld);
        WORD_STORE_RELEASE(&record->pid, (uint32_t)syscall(SYS_getpid));
        WORD_STORE_RELEASE(&record->owner, own->generation);
        uint32_t top = WORD_LOAD_RELAXED(&head->top);
        while (top < i + 1 &&
               !__atomic_compare_exchange_n(&head->top, &top, i + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
        own->process = record;
        break;
    }
    own->retry_at = own->lock_at = again(since, real_now(), RETRY_EVERY);
}

bool slot_may_lock(const struct slot_own *own) {
    return own->file.fd && own->process != &own->unseen && WORD_LOAD_RELAXED(&own->process->withheld) &&
           real_now() >= own->lock_at;
}

void slot_lock(struct slot_own *copy) {
    uint64_t since = real_now();
    copy->locked = lock_byte(&copy->file, copy->process - copy->page->process) == LOCKED;
    copy->lock_at = again(since, real_now(), RETRY_EVERY);
}

void slot_locked(struct slot_own *own, const struct slot_own *copy) {
    own->lock_at = copy->lock_at;
    if (!copy->locked)
        return;
    if (own->process == copy->process)
        WORD_STORE_RELEASE(&own->process->withheld, 0);
    else /* our record was lost meanwhile, so our lock on it must go */
        unlock_byte(&copy->file, copy->process - copy->page->process);
}

/* Maps our own file. NULL: it is missing, is no slot file, or another process has a lease on it. */
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
    if (WORD_LOAD_RELAXED(&head->magic) != GH_SLOT_MAGIC || WORD_LOAD_RELAXED(&head->version) != GH_SLOT_VERSION) {
        WORD_STORE_RELEASE(&head->duty, GH_PPM); /* until it is learned */
        WORD_STORE_RELEASE(&head->saturated, 1);
        WORD_STORE_RELEASE(&head->version, GH_SLOT_VERSION);
        WORD_STORE_RELEASE(&head->magic, GH_SLOT_MAGIC);
    }
    WORD_STORE_RELEASE(&head->counts, 1);
}

bool slot_attach(struct slot_own *own, unsigned gpu) {
    own->gpu = gpu;
    open_process_locks();
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
    uint64_t old = WORD_LOAD_RELAXED(word);
    while (old < least && !__atomic_compare_exchange_n(word, &old, least, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        ;
}

/* Maps the file where the private memory was, and adds to it what was charged meanwhile. */
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
    bool lost = own->process != &own->unseen && WORD_LOAD_RELAXED(&own->process->owner) != own->generation;
    bool complete = own->file.fd && own->process != &own->unseen;
    if (!lost && (complete || real_now() < own->retry_at))
        return;
    uint64_t launched = WORD_LOAD_RELAXED(&own->process->launched), done = WORD_LOAD_RELAXED(&own->process->done);
    if (!own->file.fd)
        attach_late(own);
    if (lost || own->file.fd) {
        take(own);
        WORD_STORE_RELEASE(&own->process->launched, launched);
        WORD_STORE_RELEASE(&own->process->done, done);
    } else {
        own->retry_at = real_now() + RETRY_EVERY;
    }
}

void slot_wake(struct slot_own *own) {
    uint32_t *word = &own->page->head.word;
    __atomic_add_fetch(word, 1, __ATOMIC_RELEASE);
    if (own->wake_at && real_now() < own->wake_at)
        return;
    /* Another container can put thousands of threads to sleep on our word at no cost to itself. */
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

/* Counts the time from `since` to `now` in *sum, less what processes of the container have counted there: up to *at. */
static void count(uint64_t *sum, uint64_t *at, uint64_t since, uint64_t now) {
    uint64_t last = WORD_LOAD_RELAXED(at);
    if (now > GH_COUNT_STEP && since < now - GH_COUNT_STEP)
        since = now - GH_COUNT_STEP;
    while (last < now)
        if (__atomic_compare_exchange_n(at, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            __atomic_add_fetch(sum, now - (last > since ? last : since), __ATOMIC_RELAXED);
            return;
        }
}

void slot_wanted(struct slot_own *own, uint64_t since, uint64_t now) {
    count(&own->page->head.wanted, &own->page->head.wanted_at, since, now);
}

void slot_held_for(struct slot_own *own, unsigned slot, uint64_t since, uint64_t now) {
    if (slot < GH_SLOTS)
        count(&own->page->head.held_for[slot], &own->page->head.held_at, since, now);
}

/* ---- the others' ---- */

void slot_close(struct slot_peer *peer) {
    close_ours(&peer->file);
    if (peer->mapped)
        munmap(peer->mapped, GH_SLOT_FILE_SIZE);
    *peer = (struct slot_peer){0};
}

/* False: it is missing or another container has a lease on it. Then the slot counts as empty for a while. */
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
    copy->gone = is_ours(&copy->file) && !write_locked(&copy->file, 0, GH_SLOT_PROCESSES) ? copy->beat : 0;
    copy->ask_at = again(since, real_now(), ASK_EVERY);
}

void slot_answered(struct slot_peer *peer, const struct slot_peer *copy) {
    if (peer->born != copy->born || peer->file.fd != copy->file.fd || peer->file.inode != copy->file.inode)
        return; /* the slot has another owner by now */
    peer->gone = copy->gone;
    peer->ask_at = copy->ask_at;
}

/* Whether a process there says that others keep it from its lock. */
static bool withheld(const struct gh_slot_page *page) {
    unsigned top = page->head.top < GH_SLOT_PROCESSES ? page->head.top : GH_SLOT_PROCESSES;
    for (unsigned i = 0; i < top; i++)
        if (page->process[i].owner && page->process[i].withheld)
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
    /* v may not fall, nor rise by more than work done meanwhile or a return from idling explains. Otherwise an honest
     * tenant that wakes beside a liar would take over its v. */
    uint64_t most = top;
    if (!fresh && before->v + elapsed * 1000 > most)
        most = before->v + elapsed * 1000;
    if (fresh && now * GH_WEIGHT_ONE > most)
        most = now * GH_WEIGHT_ONE;
    if (s.v > most)
        s.v = most;
    if (!fresh && s.v < before->v)
        s.v = before->v;
    /* A silent container has ended, or got no processor. What we find out is valid until its next sign of life. */
    bool silent = s.heartbeat && now > s.heartbeat && now - s.heartbeat > rules->silent;
    peer->beat = s.heartbeat;
    s.ended = silent && peer->gone == s.heartbeat;
    peer->ask = silent && !s.ended && !withheld(&got.page);
    if (s.ended)
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
