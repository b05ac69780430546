#define _GNU_SOURCE
#include "account/account.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "account/free_cache.h"
#include "pages/layout.h"
#include "process/atomics.h"
#include "process/identity.h"

#define TRIES 100000 /* of a compare-and-swap; each failure means that another process succeeded: never reached */
#define PAUSES 48    /* pause instructions after the first failure; twice and four times as many after the next */
#define SWEEP_EVERY_MS 100
#define OFD_GETLK 36 /* Linux 3.15; not in the headers of old C libraries */
#define OFD_SETLK 37

/* ---- the page ---- */

static int open_page(void) {
    /* No O_CREAT on a file that exists: fs.protected_regular forbids it to other users in a sticky directory. */
    for (int i = 0; i < 100; i++) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_ACCOUNT_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
        if (fd >= 0)
            return fd;
        if (errno == ENOENT) {
            fd = (int)syscall(SYS_openat, AT_FDCWD, GH_ACCOUNT_FILE,
                              O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_CREAT | O_EXCL, 0666);
            if (fd >= 0)
                return fd;
            if (errno != EEXIST)
                return -1;
        } else if (errno == EACCES) { /* another user has just made it and not yet widened its mode */
            struct timespec ms = {0, 1000000};
            syscall(SYS_nanosleep, &ms, NULL);
        } else {
            return -1;
        }
    }
    return -1;
}

static struct gh_account_page *map_page(void) {
    const size_t size = sizeof(struct gh_account_page);
    int fd = open_page();
    struct stat st;
    void *p = MAP_FAILED;
    if (fd < 0)
        return NULL;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
        if ((st.st_mode & 0666) != 0666 && st.st_uid == geteuid())
            fchmod(fd, 0666); /* the umask has removed some bits */
        if ((st.st_size >= (off_t)size || !ftruncate(fd, (off_t)size)))
            p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    syscall(SYS_close, fd);
    return p == MAP_FAILED ? NULL : p;
}

static bool stamp(struct gh_account_page *page) {
    uint64_t magic = 0;
    uint32_t version = 0;
    atomic_compare_exchange_strong(&page->magic, &magic, GH_ACCOUNT_MAGIC);
    atomic_compare_exchange_strong(&page->version, &version, GH_ACCOUNT_VERSION);
    return (!magic || magic == GH_ACCOUNT_MAGIC) && (!version || version == GH_ACCOUNT_VERSION);
}

struct gh_account_page *gh_account_page(struct gh_state *st) {
    struct gh_account_page *page = LOAD_ACQUIRE(&st->account), *none = NULL;
    if (page)
        return page;
    page = map_page();
    if (page && !stamp(page)) {
        munmap(page, sizeof *page);
        page = NULL;
    }
    if (!page) {
        gh_say(GH_SAID_ACCOUNT, "gpu-hook: GH-308: the account page " GH_ACCOUNT_FILE
                                " cannot be used: device memory is refused; run `gpu-hook install` on the "
                                "host, then make the container anew\n");
        return NULL;
    }
    if (!CAS_ACQ_REL(&st->account, &none, page)) {
        munmap(page, sizeof *page);
        return none;
    }
    return page;
}

/* ---- one operation on one account slot and GPU: after a kill, others can tell whether it took effect ---- */

static bool carries(uint64_t total, unsigned slot, uint64_t tag) {
    return gh_word_slot(total) == slot && gh_tag(total) == tag;
}

static bool took_effect(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t tag) {
    /* A process overwrites the total only after it has acknowledged the operation there: so read the total first, then
     * the ack. */
    uint64_t w = LOAD_ACQUIRE(&page->gpu[gpu].total);
    return carries(w, slot, tag) || LOAD_ACQUIRE(&page->entry[slot][gpu].ack) == tag;
}

/* Before the total `w` is overwritten: notes for its writer that its operation took effect, unless its slot says so
 * already. If the compare-and-swap fails, a delayed process acknowledged an earlier operation: try again. */
static void acknowledge(struct gh_account_page *page, unsigned gpu, uint64_t w, unsigned me) {
    unsigned slot = (unsigned)gh_word_slot(w);
    if (!slot || slot == me)
        return; /* an owner commits each operation before it begins the next */
    struct gh_account_entry *e = &page->entry[slot][gpu];
    if (gh_tag(LOAD_ACQUIRE(&e->committed)) == gh_tag(w))
        return;
    uint64_t was = LOAD_ACQUIRE(&e->ack);
    for (int i = 0; i < TRIES && was != gh_tag(w) && LOAD_ACQUIRE(&page->gpu[gpu].total) == w; i++)
        if (CAS_ACQ_REL(&e->ack, &was, gh_tag(w)))
            return;
}

/* The next tag. Tags wrap, so skip those that the total or the ack still hold for this slot; 0 is never used. */
static uint64_t next_tag(uint64_t total, uint64_t ack, unsigned slot, uint64_t tag) {
    do {
        tag = (tag + 1) & GH_TAG_MASK;
    } while (!tag || carries(total, slot, tag) || ack == tag);
    return tag;
}

/* Adds `delta` to what the slot is charged, and to the total. Only one thread writes a slot at a time. */
static enum gh_reservation add(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                               int64_t delta, uint64_t limit) {
    struct gh_account_entry *e = &page->entry[slot][gpu];
    _Atomic uint64_t *total = &page->gpu[gpu].total;
    uint64_t more = delta > 0 && limit < GH_UNLIMITED ? LOAD_ACQUIRE(&page->gpu[gpu].surcharge) : 0;
    uint64_t w = LOAD_ACQUIRE(total), tag = next_tag(w, LOAD_ACQUIRE(&e->ack), slot, mine->tag);
    enum gh_reservation done = GH_NO_ACCOUNT;
    STORE_RELEASE(&e->announce, (uint64_t)delta << GH_TAG_BITS | tag);
    for (int i = 0; i < TRIES; i++) {
        int64_t value = (int64_t)gh_word_value(w) + delta;
        if (value < 0)
            value = 0; /* a process has written garbage; the next sweep repairs it */
        if (delta > 0 && ((uint64_t)value > limit || more > limit - (uint64_t)value)) {
            done = GH_NO_ROOM;
            break;
        }
        acknowledge(page, gpu, w, slot);
        if (CAS_ACQ_REL(total, &w, gh_word((uint64_t)value, slot, tag))) {
            done = GH_RESERVED;
            mine->units += (uint64_t)delta;
            break;
        }
        /* A process on another core writes the same word. While the word is in its cache it does many operations
         * quickly; pausing costs both processes less than taking the cache line back at once. */
        if (delta > 0)
            gh_free_cache_begin(page, gpu, mine, (uint64_t)value + more, limit);
        for (int k = 0; k < PAUSES << (i < 2 ? i : 2); k++)
            gh_relax();
        w = LOAD_ACQUIRE(total);
    }
    mine->tag = tag;
    STORE_RELEASE(&e->committed, mine->units << GH_TAG_BITS | tag);
    return done;
}

static uint64_t charged(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t *cache) {
    struct gh_account_entry *e = &page->entry[slot][gpu];
    uint64_t c = LOAD_ACQUIRE(&e->committed);
    for (int i = 0; i < 1000; i++) {
        uint64_t a = LOAD_ACQUIRE(&e->announce), again;
        bool counts = gh_tag(a) != gh_tag(c) && took_effect(page, slot, gpu, gh_tag(a));
        *cache = LOAD_ACQUIRE(&page->free_cache[slot][gpu]);
        if ((again = LOAD_ACQUIRE(&e->committed)) == c)
            return (gh_committed_units(c) + (counts ? (uint64_t)gh_delta(a) : 0) - gh_cache_taken(*cache)) &
                   GH_VALUE_MAX;
        c = again;
    }
    return (gh_committed_units(c) - gh_cache_taken(*cache)) & GH_VALUE_MAX;
}

uint64_t gh_account_slot_charged(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    uint64_t cache;
    return charged(page, slot, gpu, &cache);
}

uint64_t gh_account_slot_used(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    uint64_t cache, units = charged(page, slot, gpu, &cache);
    return units > gh_cache_idle(cache) ? units - gh_cache_idle(cache) : 0;
}

/* ---- account slots ---- */

/* Sets a slot to zero. Its last owner has ended, and only we write it now. If we are killed at any step, the next
 * sweeper can do all of it again. */
static void empty_slot(struct gh_account_page *page, unsigned slot) {
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_account_entry *e = &page->entry[slot][gpu];
        uint64_t a = LOAD_ACQUIRE(&e->announce), c = LOAD_ACQUIRE(&e->committed),
                 taken = gh_free_cache_close(page, slot, gpu);
        struct gh_mine mine = {.units = gh_committed_units(c), .tag = gh_tag(c)};
        if (gh_tag(a) != mine.tag) {
            if (took_effect(page, slot, gpu, gh_tag(a)))
                mine.units = (mine.units + (uint64_t)gh_delta(a)) & GH_VALUE_MAX;
            mine.tag = gh_tag(a);
            STORE_RELEASE(&e->committed, mine.units << GH_TAG_BITS | mine.tag);
        }
        uint64_t left = (mine.units - taken) & GH_VALUE_MAX;
        if (left)
            add(page, slot, gpu, &mine, -(int64_t)left, 0);
        STORE_RELEASE(&e->contexts, 0);
    }
}

static void reclaim_slot(struct gh_state *st, struct gh_account_page *page, unsigned slot, uint64_t owner) {
    if (!CAS_ACQ_REL(&page->owner[slot], &owner, st->me | GH_OWNER_SWEEP))
        return; /* another process reclaims it */
    empty_slot(page, slot);
    STORE_RELEASE(&page->stack[slot], 0);
    STORE_RELEASE(&page->owner[slot], 0);
}

/* Takes a lock that the kernel drops when we end or exec, for processes of other pid namespaces, to which our pid means
 * nothing. The descriptor stays open; if the program closes it, only those processes take us for ended. */
static void lock_slot(struct gh_state *st, unsigned slot) {
    int fd = open_page();
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    struct stat old, now;
    if (fd < 0)
        return;
    /* We lost an earlier slot: its lock must not count for its next owner. Keep the descriptor if the program has since
     * given its number to another file. */
    if (st->lock_fd && !fstat(fd, &now) && !fstat(st->lock_fd, &old) && old.st_ino == now.st_ino &&
        old.st_dev == now.st_dev)
        syscall(SYS_close, st->lock_fd);
    st->lock_fd = 0;
    /* Some programs rely on low descriptor numbers. */
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100);
    if (high >= 0) {
        syscall(SYS_close, fd);
        fd = high;
    }
    if (syscall(SYS_fcntl, fd, OFD_SETLK, &lock))
        syscall(SYS_close, fd);
    else
        st->lock_fd = fd;
}

/* Whether any process holds the lock of an account slot. In doubt one does. */
static bool slot_locked(unsigned slot) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_ACCOUNT_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    bool locked = fd < 0 || syscall(SYS_fcntl, fd, OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
    if (fd >= 0)
        syscall(SYS_close, fd);
    return locked;
}

bool gh_account_slot_alive(const struct gh_state *st, unsigned slot, uint64_t owner, uint64_t stack) {
    switch (gh_life_of(&(struct gh_identity){owner, stack}, st->me)) {
    case GH_ENDED: return false;
    case GH_RUNS: return true;
    case GH_OTHER_NAMESPACE: break;
    }
    return slot_locked(slot);
}

static unsigned claim_slot(struct gh_state *st, struct gh_account_page *page) {
    unsigned from = gh_owner_pid(st->me);
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS; i++) {
        unsigned slot = (from + i) % GH_ACCOUNT_SLOTS;
        uint64_t nobody = 0;
        if (slot && !LOAD_ACQUIRE(&page->owner[slot]) && CAS_ACQ_REL(&page->owner[slot], &nobody, st->me)) {
            STORE_RELEASE(&page->stack[slot], st->stack);
            lock_slot(st, slot);
            empty_slot(page, slot);
            return slot;
        }
    }
    return 0;
}

/* Publishes the slot as ours. If we lost the last slot because a process wrote garbage there, charges the new slot with
 * all that we were charged. */
static bool publish_slot(struct gh_state *st, struct gh_account_page *page, unsigned slot) {
    unsigned locked = 0;
    while (locked < GH_ACCOUNT_GPUS && gh_lock(&st->mine[locked].lock))
        locked++;
    bool ours = locked == GH_ACCOUNT_GPUS;
    for (unsigned gpu = 0; ours && gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_mine *mine = &st->mine[gpu];
        uint64_t units = gh_own_units(st, gpu);
        /* empty_slot() has left the slot charged with nothing but these */
        mine->units = mine->cached = gh_cache_taken(LOAD_ACQUIRE(&page->free_cache[slot][gpu]));
        mine->cache_operations = 0;
        mine->tag = gh_tag(LOAD_ACQUIRE(&page->entry[slot][gpu].committed));
        if (units && add(page, slot, gpu, mine, (int64_t)units, GH_UNLIMITED) != GH_RESERVED)
            mine->units += units; /* the total is garbage, too; the next sweep repairs both */
    }
    STORE_RELEASE(&st->slot, ours ? slot : 0);
    while (locked--)
        gh_unlock(&st->mine[locked].lock);
    return ours;
}

bool gh_account_attach(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    unsigned slot = LOAD_ACQUIRE(&st->slot);
    if (page && slot && LOAD_ACQUIRE(&page->owner[slot]) == st->me)
        return true;
    if (!page || !gh_lock(&st->attach))
        return false;
    slot = LOAD_ACQUIRE(&st->slot);
    bool ours = slot && LOAD_ACQUIRE(&page->owner[slot]) == st->me;
    if (!ours) {
        slot = claim_slot(st, page);
        if (!slot) {
            gh_sweep(st);
            slot = claim_slot(st, page);
        }
        ours = slot && publish_slot(st, page, slot);
    }
    gh_unlock(&st->attach);
    if (!ours)
        gh_say(GH_SAID_FULL, "gpu-hook: GH-308: the account page has no free slot: more than 1000 processes of this "
                             "container use the GPU; device memory is refused\n");
    return ours;
}

/* ---- reserving and releasing ---- */

static enum gh_reservation change(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                                  int64_t delta, uint64_t limit) {
    if (mine->cache_operations) {
        if (gh_free_cache_change(page, slot, gpu, mine, delta, limit))
            delta = 0;
        if (!--mine->cache_operations) {
            uint64_t idle = gh_free_cache_end(page, slot, gpu, mine);
            if (idle)
                add(page, slot, gpu, mine, -(int64_t)idle, 0);
        }
    }
    return delta ? add(page, slot, gpu, mine, delta, limit) : GH_RESERVED;
}

static enum gh_reservation change_charge(struct gh_state *st, unsigned gpu, int64_t delta, uint64_t limit) {
    for (int i = 0; i < 3 && gpu < GH_ACCOUNT_GPUS; i++) {
        struct gh_mine *mine = &st->mine[gpu];
        if (!gh_lock(&mine->lock))
            return GH_NO_ACCOUNT;
        unsigned slot = LOAD_ACQUIRE(&st->slot);
        struct gh_account_page *page = slot ? LOAD_ACQUIRE(&st->account) : NULL;
        bool ours = page && LOAD_ACQUIRE(&page->owner[slot]) == st->me;
        enum gh_reservation done = ours ? change(page, slot, gpu, mine, delta, limit) : GH_NO_ACCOUNT;
        gh_unlock(&mine->lock);
        if (ours)
            return done;
        if (!gh_account_attach(st)) /* the process has no slot yet, or has lost it */
            return GH_NO_ACCOUNT;
    }
    return GH_NO_ACCOUNT;
}

enum gh_reservation gh_reserve(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t limit) {
    if (units > GH_VALUE_MAX)
        return GH_NO_ROOM;
    enum gh_reservation done = change_charge(st, gpu, (int64_t)units, limit);
    if (done == GH_NO_ROOM && units <= limit) {
        gh_sweep(st);
        done = change_charge(st, gpu, (int64_t)units, limit);
    }
    return done;
}

void gh_release(struct gh_state *st, unsigned gpu, uint64_t units) {
    if (units)
        change_charge(st, gpu, -(int64_t)units, 0);
}

uint64_t gh_total(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page || gpu >= GH_ACCOUNT_GPUS)
        return GH_VALUE_MAX;
    uint64_t total = gh_word_value(LOAD_ACQUIRE(&page->gpu[gpu].total)), more = LOAD_ACQUIRE(&page->gpu[gpu].surcharge);
    uint64_t idle = gh_free_cache_sum(page, gpu);
    total = total > idle ? total - idle : 0;
    return more < GH_VALUE_MAX - total ? total + more : GH_VALUE_MAX;
}

uint64_t gh_own_units(struct gh_state *st, unsigned gpu) {
    return (st->mine[gpu].units - st->mine[gpu].cached) & GH_VALUE_MAX;
}

void gh_press(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    if (page)
        atomic_store(&st->pressure_seen[gpu], atomic_fetch_add(&page->gpu[gpu].pressure, 1) + 1);
}

bool gh_pressed(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    uint64_t now = page ? LOAD_ACQUIRE(&page->gpu[gpu].pressure) : 0;
    return now != atomic_exchange(&st->pressure_seen[gpu], now);
}

void gh_count_contexts(struct gh_state *st, unsigned gpu, int more) {
    if (gpu < GH_ACCOUNT_GPUS && gh_account_attach(st))
        atomic_fetch_add(&LOAD_ACQUIRE(&st->account)->entry[LOAD_ACQUIRE(&st->slot)][gpu].contexts,
                         (uint64_t)(int64_t)more);
}

/* ---- sweeping ---- */

/* Sets a total to the sum of its slots: if they differ while no operation takes effect, a process wrote garbage. */
static void repair(struct gh_account_page *page, unsigned gpu) {
    _Atomic uint64_t *total = &page->gpu[gpu].total;
    for (int i = 0; i < 100; i++) {
        uint64_t w = LOAD_ACQUIRE(total), sum = 0;
        for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
            if (LOAD_ACQUIRE(&page->owner[slot]))
                sum += gh_account_slot_charged(page, slot, gpu);
        if (LOAD_ACQUIRE(total) != w)
            continue;
        if (sum == gh_word_value(w) || sum > GH_VALUE_MAX)
            return;
        acknowledge(page, gpu, w, 0);
        CAS_ACQ_REL(total, &w, gh_word(sum, 0, (gh_tag(w) + 1) & GH_TAG_MASK));
        /* go on and check again, since slots with garbage may have changed meanwhile */
    }
}

/* Writes our own slot again, in case a process has overwritten it. */
static void restate(struct gh_state *st, struct gh_account_page *page) {
    unsigned slot = LOAD_ACQUIRE(&st->slot);
    for (unsigned gpu = 0; slot && gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_mine *mine = &st->mine[gpu];
        if (!gh_lock(&mine->lock))
            continue;
        uint64_t right = mine->units << GH_TAG_BITS | mine->tag;
        struct gh_account_entry *e = &page->entry[slot][gpu];
        if (LOAD_ACQUIRE(&page->owner[slot]) == st->me && LOAD_ACQUIRE(&st->slot) == slot &&
            (LOAD_ACQUIRE(&e->committed) != right || gh_tag(LOAD_ACQUIRE(&e->announce)) != mine->tag)) {
            STORE_RELEASE(&e->announce, mine->tag);
            STORE_RELEASE(&e->committed, right);
        }
        if (LOAD_ACQUIRE(&page->owner[slot]) == st->me && LOAD_ACQUIRE(&st->slot) == slot)
            gh_free_cache_restate(page, slot, gpu, mine);
        gh_unlock(&mine->lock);
    }
}

void gh_sweep(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page)
        return;
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++) {
        uint64_t owner = LOAD_ACQUIRE(&page->owner[slot]), stack = LOAD_ACQUIRE(&page->stack[slot]);
        if (!owner || owner == (st->me | GH_OWNER_SWEEP) || (owner == st->me && slot == LOAD_ACQUIRE(&st->slot)))
            continue;
        if (!gh_account_slot_alive(st, slot, owner, stack))
            reclaim_slot(st, page, slot, owner);
    }
    restate(st, page);
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        gh_free_cache_take_all(page, gpu);
        repair(page, gpu);
    }
}

void gh_sweep_now_and_then(struct gh_state *st) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    int64_t ms = now.tv_sec * 1000ll + now.tv_nsec / 1000000, last = atomic_load(&st->swept_ms);
    if (ms - last >= SWEEP_EVERY_MS && atomic_compare_exchange_strong(&st->swept_ms, &last, ms))
        gh_sweep(st);
}
