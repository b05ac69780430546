#define _GNU_SOURCE
#include "gate/slot_own.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate/clock.h"
#include "pages/arithmetic.h"
#include "pages/layout.h"

/* GH_PROCESS_LOCKS, in the container's own tmpfs: the processes of the container see each other's locks there, and no
 * other container can open it. Opened while the gates are made; one file for all GPUs. */
static struct slot_file process_locks;

/* No O_CREAT on a file that exists: see open_page() in account/account.c. */
static void open_process_locks(void) {
    struct stat st;
    struct slot_file file;
    if (slot_file_is_ours(
            &process_locks)) /* open already; closing a second descriptor would drop the locks of the first */
        return;
    file = slot_file_open(GH_PROCESS_LOCKS, O_RDWR, &st);
    if (!file.fd && errno == ENOENT)
        file = slot_file_open(GH_PROCESS_LOCKS, O_RDWR | O_CREAT | O_EXCL, &st);
    if (!file.fd && errno == EEXIST)
        file = slot_file_open(GH_PROCESS_LOCKS, O_RDWR, &st);
    if (file.fd && (st.st_mode & 0666) != 0666 && st.st_uid == geteuid())
        fchmod(file.fd - 1, 0666); /* the umask has removed some bits */
    process_locks = file;
}

static off_t process_lock_at(const struct slot_own *own, unsigned i) { return (off_t)own->gpu * GH_SLOT_PROCESSES + i; }

/* Takes record i, unless a running process of the container has it. *withheld: other containers see no lock for it. */
static bool take_record(struct slot_own *own, unsigned i, bool *withheld) {
    uint64_t nobody = 0;
    enum slot_locked mine = slot_file_lock(&process_locks, process_lock_at(own, i));
    if (mine == SLOT_BUSY)
        return false;
    enum slot_locked seen = slot_file_lock(&own->file, i);
    *withheld = seen != SLOT_LOCKED;
    if (seen == SLOT_LOCKED)
        return true;
    if (seen == SLOT_BUSY && slot_file_write_locked(&own->file, i, 1)) {
        if (mine == SLOT_LOCKED)
            slot_file_unlock(&process_locks, process_lock_at(own, i));
        return false;
    }
    /* Without a lock that our container's processes see, take only a record that was never used. */
    return mine == SLOT_LOCKED || __atomic_compare_exchange_n(&own->page->process[i].owner, &nobody, own->generation,
                                                              false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* GPU time that a process which has ended, or ends now, may have had with its work in flight and that no cap was
 * charged. Its last sign of life is a few hundred microseconds before its end, unless it was stopped. */
static uint64_t unpaid(const struct gh_slot_process *record) {
    uint64_t from = WORD_LOAD_RELAXED(&record->done_at), to = WORD_LOAD_RELAXED(&record->heartbeat);
    bool work = WORD_LOAD_RELAXED(&record->launched) != WORD_LOAD_RELAXED(&record->done);
    return work && to > from ? age64(to - from, WORD_LOAD_RELAXED(&record->uncharged)) : 0;
}

/* An empty record of this process. Without an owner nobody reads it, and so not while it is half-written. */
static void reset(struct gh_slot_process *record, bool withheld, uint64_t owner) {
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
    WORD_STORE_RELEASE(&record->owner, owner);
}

static void take(struct slot_own *own) {
    struct gh_slot_head *head = &own->page->head;
    uint64_t since = clock_ns();
    own->generation = __atomic_add_fetch(&head->generation, 1, __ATOMIC_RELAXED);
    if (!own->generation)
        own->generation = 1;
    own->process = &own->unseen;
    for (unsigned i = 0; i < GH_SLOT_PROCESSES; i++) {
        struct gh_slot_process *record = &own->page->process[i];
        bool withheld = false;
        if (own->file.fd && !take_record(own, i, &withheld))
            continue;
        own->inherited = WORD_LOAD_RELAXED(&record->owner) &&
                         WORD_LOAD_RELAXED(&record->launched) != WORD_LOAD_RELAXED(&record->done);
        own->unpaid = own->inherited ? unpaid(record) : 0;
        reset(record, withheld, own->generation);
        uint32_t top = WORD_LOAD_RELAXED(&head->top);
        while (top < i + 1 &&
               !__atomic_compare_exchange_n(&head->top, &top, i + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
        own->process = record;
        break;
    }
    own->retry_at = own->lock_at = slot_file_again(since, clock_ns(), SLOT_RETRY_EVERY);
}

bool slot_may_lock(const struct slot_own *own) {
    return own->file.fd && own->process != &own->unseen && WORD_LOAD_RELAXED(&own->process->withheld) &&
           clock_ns() >= own->lock_at;
}

void slot_lock(struct slot_own *copy) {
    uint64_t since = clock_ns();
    copy->locked = slot_file_lock(&copy->file, copy->process - copy->page->process) == SLOT_LOCKED;
    copy->lock_at = slot_file_again(since, clock_ns(), SLOT_RETRY_EVERY);
}

void slot_locked(struct slot_own *own, const struct slot_own *copy) {
    own->lock_at = copy->lock_at;
    if (!copy->locked)
        return;
    if (own->process == copy->process)
        WORD_STORE_RELEASE(&own->process->withheld, 0);
    else /* our record was lost meanwhile, so our lock on it must go */
        slot_file_unlock(&copy->file, copy->process - copy->page->process);
}

/* Maps our own file. NULL: it is missing, is no slot file, or another process has a lease on it. */
static struct gh_slot_page *map_own(unsigned gpu, struct slot_file *file) {
    char path[sizeof GH_SLOT_FILE + 4] = GH_SLOT_FILE "/";
    struct stat st;
    void *page = MAP_FAILED;
    *slot_file_number(path + sizeof GH_SLOT_FILE, gpu, gpu > 9 ? 2 : 1) = 0;
    *file = slot_file_open(path, O_RDWR, &st);
    if (file->fd && st.st_size == GH_SLOT_FILE_SIZE)
        page = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd - 1, 0);
    if (page != MAP_FAILED)
        return page;
    slot_file_close(file);
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
    own->long_at = 0;
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
    slot_file_close(&own->file);
}

void slot_keep(struct slot_own *own) {
    bool lost = own->process != &own->unseen && WORD_LOAD_RELAXED(&own->process->owner) != own->generation;
    bool complete = own->file.fd && own->process != &own->unseen;
    if (!lost && (complete || clock_ns() < own->retry_at))
        return;
    uint64_t launched = WORD_LOAD_RELAXED(&own->process->launched), done = WORD_LOAD_RELAXED(&own->process->done);
    if (!own->file.fd)
        attach_late(own);
    if (lost || own->file.fd) {
        take(own);
        WORD_STORE_RELEASE(&own->process->launched, launched);
        WORD_STORE_RELEASE(&own->process->done, done);
    } else {
        own->retry_at = clock_ns() + SLOT_RETRY_EVERY;
    }
}

void slot_wake(struct slot_own *own) {
    uint32_t *word = &own->page->head.word;
    __atomic_add_fetch(word, 1, __ATOMIC_RELEASE);
    if (own->wake_at && clock_ns() < own->wake_at)
        return;
    /* Another container can put thousands of threads to sleep on our word at no cost to itself. */
    uint64_t since = clock_ns();
    bool many = syscall(SYS_futex, word, FUTEX_WAKE, GH_WAKES, NULL, NULL, 0) >= GH_WAKES;
    own->wake_at = many ? slot_file_again(since, clock_ns(), 0) : 0;
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
    since = max64(since, age64(now, GH_COUNT_STEP));
    while (last < now)
        if (__atomic_compare_exchange_n(at, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            __atomic_add_fetch(sum, age64(now, max64(last, since)), __ATOMIC_RELAXED);
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

struct gh_slot slot_own_view(struct slot_own *own, uint64_t now, uint64_t stale, unsigned *contexts) {
    struct gh_slot s = gh_slot_view(own->page, sizeof *own->page, now, stale, contexts);
    const struct gh_slot_process *unseen = &own->unseen;
    if (own->process == unseen && unseen->launched != unseen->done) { /* no record is free, so the file lacks us */
        s.launched += unseen->launched - unseen->done;
        ++*contexts;
    }
    return s;
}

#define WAITS_WITHIN (5 * GH_MS)   /* no sleep at the gate is longer than half of that */
#define UNKNOWN_MOST (400 * GH_MS) /* a command of unknown cost may wait for another process, and may never end */

static bool within(uint64_t at, uint64_t now, uint64_t length) { return (at > now ? at - now : now - at) <= length; }

/* Announce a long launch before the record shows it. Otherwise every process that waits for the container's turn would launch
 * a long command as soon as the turn comes. */
uint64_t slot_siblings(const struct slot_own *own, uint64_t now, uint64_t stale, uint64_t *seen) {
    uint32_t top = WORD_LOAD_RELAXED(&own->page->head.top);
    uint64_t most = 0, at = *seen = __atomic_load_n(&own->page->head.long_at, __ATOMIC_ACQUIRE);
    if (at & GH_LONG_OPEN && at != own->long_at && within(at, now, at & GH_LONG_UNKNOWN ? UNKNOWN_MOST : WAITS_WITHIN))
        return GH_S;
    for (uint32_t i = 0; i < top && i < GH_SLOT_PROCESSES; i++) {
        const struct gh_slot_process *record = &own->page->process[i];
        uint64_t silent = age64(now, WORD_LOAD_RELAXED(&record->heartbeat));
        if (record == own->process || !WORD_LOAD_RELAXED(&record->owner) || silent > stale ||
            WORD_LOAD_RELAXED(&record->launched) <= WORD_LOAD_RELAXED(&record->done))
            continue;
        most = max64(most, age64(min64(WORD_LOAD_RELAXED(&record->residue), GH_S), silent));
    }
    return most;
}

/* True if no process waits that came before. */
static bool is_next(const struct gh_slot_head *head, uint64_t came, uint64_t now) {
    return WORD_LOAD_RELAXED(&head->long_came) >= came ||
           !within(WORD_LOAD_RELAXED(&head->long_waits), now, WAITS_WITHIN);
}

void slot_waits_long(struct slot_own *own, uint64_t came, uint64_t now) {
    struct gh_slot_head *head = &own->page->head;
    if (!is_next(head, came, now))
        return;
    WORD_STORE_RELEASE(&head->long_came, came);
    WORD_STORE_RELEASE(&head->long_waits, now);
}

void slot_goes(struct slot_own *own, uint64_t came) {
    struct gh_slot_head *head = &own->page->head;
    if (WORD_LOAD_RELAXED(&head->long_came) == came)
        WORD_STORE_RELEASE(&head->long_waits, 0);
}

static uint64_t open_at(uint64_t now, bool unknown) {
    return (now & ~(GH_LONG_OPEN | GH_LONG_UNKNOWN)) | GH_LONG_OPEN | (unknown ? GH_LONG_UNKNOWN : 0);
}

bool slot_launches_long(struct slot_own *own, uint64_t seen, uint64_t came, uint64_t now, bool unknown) {
    struct gh_slot_head *head = &own->page->head;
    uint64_t at = open_at(now, unknown);
    if (!is_next(head, came, now) ||
        !__atomic_compare_exchange_n(&head->long_at, &seen, at, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return false;
    own->long_at = at;
    return true;
}

void slot_launches_unknown(struct slot_own *own, uint64_t now) {
    own->long_at = open_at(now, true);
    WORD_STORE_RELEASE(&own->page->head.long_at, own->long_at);
}

void slot_had_unknown(struct slot_own *own, uint32_t unknown) { own->had_unknown = unknown; }

void slot_shows_long(struct slot_own *own, uint32_t unknown) {
    uint64_t at = own->long_at;
    if (unknown <= own->had_unknown && at & GH_LONG_OPEN && WORD_LOAD_RELAXED(&own->page->head.long_at) == at)
        __atomic_compare_exchange_n(&own->page->head.long_at, &at, at & ~GH_LONG_OPEN, false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
}

void slot_publish(struct slot_own *own, const struct slot_record *r, uint64_t now) {
    struct gh_slot_process *record = own->process;
    WORD_STORE_RELEASE(&record->residue, r->residue);
    WORD_STORE_RELEASE(&record->uncharged, r->uncharged);
    WORD_STORE_RELEASE(&record->done_at, r->done_at);
    WORD_STORE_RELEASE(&record->done, r->done);
    WORD_STORE_RELEASE(&record->launched, r->launched);
    WORD_STORE_RELEASE(&record->held, (uint16_t)(r->held < UINT16_MAX ? r->held : UINT16_MAX));
    slot_show_waiting(own, r->waiting);
    slot_alive(own, now);
}

void slot_alive(struct slot_own *own, uint64_t now) { WORD_STORE_RELEASE(&own->process->heartbeat, now); }

void slot_show_waiting(struct slot_own *own, uint64_t threads) {
    WORD_STORE_RELEASE(&own->process->waiting, (uint8_t)(threads < UINT8_MAX ? threads : UINT8_MAX));
}

void slot_active(struct slot_own *own, uint64_t now) { WORD_STORE_RELEASE(&own->page->head.active_at, now); }
void slot_idle(struct slot_own *own, uint64_t now) { WORD_STORE_RELEASE(&own->page->head.idle_since, now); }
void slot_awake(struct slot_own *own, uint64_t now) { WORD_STORE_RELEASE(&own->page->head.woke_at, now); }
void slot_linger(struct slot_own *own, uint32_t linger) { WORD_STORE_RELEASE(&own->page->head.linger, linger); }

void slot_mode(struct slot_own *own, uint8_t mode, uint8_t by, uint64_t now) {
    struct gh_slot_head *head = &own->page->head;
    if (WORD_LOAD_RELAXED(&head->mode) == mode && WORD_LOAD_RELAXED(&head->mode_by) == by)
        return;
    WORD_STORE_RELEASE(&head->mode, mode);
    WORD_STORE_RELEASE(&head->mode_by, by);
    WORD_STORE_RELEASE(&head->mode_since, now);
}

void slot_ignores(struct slot_own *own) { __atomic_add_fetch(&own->page->head.ignorings, 1, __ATOMIC_RELAXED); }

void slot_claim(struct slot_own *own, uint64_t epoch, uint64_t start, uint64_t end, uint64_t probe_until) {
    struct gh_slot_head *head = &own->page->head;
    WORD_STORE_RELEASE(&head->end, 0); /* invalid until all of it is written */
    WORD_STORE_RELEASE(&head->start, start);
    WORD_STORE_RELEASE(&head->probe_until, probe_until);
    WORD_STORE_RELEASE(&head->epoch, epoch);
    WORD_STORE_RELEASE(&head->end, end);
}

void slot_yield(struct slot_own *own, uint64_t now) {
    if (WORD_LOAD_RELAXED(&own->page->head.end) > now)
        WORD_STORE_RELEASE(&own->page->head.end, now);
}

uint64_t slot_exits(struct slot_own *own) {
    uint64_t left = unpaid(own->process);
    WORD_STORE_RELEASE(&own->process->launched, WORD_LOAD_RELAXED(&own->process->done));
    slot_shows_long(own, 0);
    return left;
}
