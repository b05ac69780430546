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

#define TRIES 100000 /* of a compare-and-add; each failure is another's success, so this is never reached */
#define PAUSES 48    /* after the first failure; twice and four times as many after the next */
#define SWEEP_EVERY_MS 100
#define OFD_GETLK 36 /* Linux 3.15; not in the headers of old C libraries */
#define OFD_SETLK 37

/* ---- the page ---- */

static int open_page(void) {
    /* No O_CREAT on a file that is there: fs.protected_regular forbids it to other users in a sticky directory. */
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
        } else if (errno == EACCES) { /* made by another user a moment ago, its mode not yet widened */
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
            fchmod(fd, 0666); /* the umask took some of it */
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
    struct gh_account_page *page = LOAD(&st->account), *none = NULL;
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
    if (!CAS(&st->account, &none, page)) {
        munmap(page, sizeof *page);
        return none;
    }
    return page;
}

/* ---- one slot, one GPU: an operation that can be told apart after a kill ---- */

static bool carries(uint64_t total, unsigned slot, uint64_t tag) {
    return gh_word_slot(total) == slot && gh_tag(total) == tag;
}

static bool took_effect(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t tag) {
    /* Who overwrites the total acknowledges the operation in it first, so: total, then ack. */
    uint64_t w = LOAD(&page->gpu[gpu].total);
    return carries(w, slot, tag) || LOAD(&page->entry[slot][gpu].ack) == tag;
}

/* Before the word `w` is overwritten: note for its writer that its operation took effect, unless its own books say so
 * already. A compare-and-swap that fails met one of an earlier operation, by a process that was held up: once more. */
static void acknowledge(struct gh_account_page *page, unsigned gpu, uint64_t w, unsigned me) {
    unsigned slot = (unsigned)gh_word_slot(w);
    if (!slot || slot == me)
        return; /* an owner commits each operation before its next */
    struct gh_account_entry *e = &page->entry[slot][gpu];
    if (gh_tag(LOAD(&e->committed)) == gh_tag(w))
        return;
    uint64_t was = LOAD(&e->ack);
    for (int i = 0; i < TRIES && was != gh_tag(w) && LOAD(&page->gpu[gpu].total) == w; i++)
        if (CAS(&e->ack, &was, gh_tag(w)))
            return;
}

/* A tag that neither the total nor the ack holds for this slot from a round ago; 0 is never one. */
static uint64_t next_tag(uint64_t total, uint64_t ack, unsigned slot, uint64_t tag) {
    do {
        tag = (tag + 1) & GH_TAG_MASK;
    } while (!tag || carries(total, slot, tag) || ack == tag);
    return tag;
}

/* The slot's one writer adds `delta` to its share and to the total. */
static enum gh_booked add(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                          int64_t delta, uint64_t limit) {
    struct gh_account_entry *e = &page->entry[slot][gpu];
    _Atomic uint64_t *total = &page->gpu[gpu].total;
    uint64_t more = delta > 0 && limit < GH_UNLIMITED ? LOAD(&page->gpu[gpu].surcharge) : 0;
    uint64_t w = LOAD(total), tag = next_tag(w, LOAD(&e->ack), slot, mine->tag);
    enum gh_booked done = GH_NO_BOOKS;
    STORE(&e->announce, (uint64_t)delta << GH_TAG_BITS | tag);
    for (int i = 0; i < TRIES; i++) {
        int64_t value = (int64_t)gh_word_value(w) + delta;
        if (value < 0)
            value = 0; /* someone scribbled; the next sweep repairs it */
        if (delta > 0 && ((uint64_t)value > limit || more > limit - (uint64_t)value)) {
            done = GH_NO_ROOM;
            break;
        }
        acknowledge(page, gpu, w, slot);
        if (CAS(total, &w, gh_word((uint64_t)value, slot, tag))) {
            done = GH_BOOKED;
            mine->units += (uint64_t)delta;
            break;
        }
        /* Another process is at it, on another core: left alone, it does many operations while the word is in its
         * cache. Taking the word back at once costs both of them more than this does. */
        if (delta > 0)
            gh_spare_begin(page, gpu, mine, (uint64_t)value + more, limit);
        for (int k = 0; k < PAUSES << (i < 2 ? i : 2); k++)
            gh_relax();
        w = LOAD(total);
    }
    mine->tag = tag;
    STORE(&e->committed, mine->units << GH_TAG_BITS | tag);
    return done;
}

static uint64_t share(struct gh_account_page *page, unsigned slot, unsigned gpu, uint64_t *spare) {
    struct gh_account_entry *e = &page->entry[slot][gpu];
    uint64_t c = LOAD(&e->committed);
    for (int i = 0; i < 1000; i++) {
        uint64_t a = LOAD(&e->announce), again;
        bool counts = gh_tag(a) != gh_tag(c) && took_effect(page, slot, gpu, gh_tag(a));
        *spare = LOAD(&page->spare[slot][gpu]);
        if ((again = LOAD(&e->committed)) == c)
            return (gh_share(c) + (counts ? (uint64_t)gh_delta(a) : 0) - gh_taken(*spare)) & GH_VALUE_MAX;
        c = again;
    }
    return (gh_share(c) - gh_taken(*spare)) & GH_VALUE_MAX;
}

uint64_t gh_slot_share(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    uint64_t spare;
    return share(page, slot, gpu, &spare);
}

uint64_t gh_slot_use(struct gh_account_page *page, unsigned slot, unsigned gpu) {
    uint64_t spare, held = share(page, slot, gpu, &spare);
    return held > gh_idle(spare) ? held - gh_idle(spare) : 0;
}

/* ---- slots ---- */

/* The slot is ours alone and its last owner is gone: bring it to zero. Each step can be killed and done again. */
static void settle(struct gh_account_page *page, unsigned slot) {
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_account_entry *e = &page->entry[slot][gpu];
        uint64_t a = LOAD(&e->announce), c = LOAD(&e->committed), taken = gh_spare_settle(page, slot, gpu);
        struct gh_mine mine = {.units = gh_share(c), .tag = gh_tag(c)};
        if (gh_tag(a) != mine.tag) {
            if (took_effect(page, slot, gpu, gh_tag(a)))
                mine.units = (mine.units + (uint64_t)gh_delta(a)) & GH_VALUE_MAX;
            mine.tag = gh_tag(a);
            STORE(&e->committed, mine.units << GH_TAG_BITS | mine.tag);
        }
        uint64_t held = (mine.units - taken) & GH_VALUE_MAX;
        if (held)
            add(page, slot, gpu, &mine, -(int64_t)held, 0);
        STORE(&e->contexts, 0);
    }
}

static void bury(struct gh_state *st, struct gh_account_page *page, unsigned slot, uint64_t owner) {
    if (!CAS(&page->owner[slot], &owner, st->me | GH_OWNER_SWEEP))
        return; /* another does it */
    settle(page, slot);
    STORE(&page->stack[slot], 0);
    STORE(&page->owner[slot], 0);
}

/* For processes of other pid namespaces, to whom our pid says nothing: a lock that the kernel drops when we die or
 * exec. Its descriptor stays open; should the program close it, only those processes take us for dead. */
static void hold_lock(struct gh_state *st, unsigned slot) {
    int fd = open_page();
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    struct stat old, now;
    if (fd < 0)
        return;
    /* A slot that we lost: its lock must not speak for its next owner. Unless the number is another file's by now. */
    if (st->lock_fd && !fstat(fd, &now) && !fstat(st->lock_fd, &old) && old.st_ino == now.st_ino &&
        old.st_dev == now.st_dev)
        syscall(SYS_close, st->lock_fd);
    st->lock_fd = 0;
    /* Out of the way of programs that count on low numbers. */
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
    bool held = fd < 0 || syscall(SYS_fcntl, fd, OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
    if (fd >= 0)
        syscall(SYS_close, fd);
    return held;
}

bool gh_account_slot_alive(const struct gh_state *st, unsigned slot, uint64_t owner, uint64_t stack) {
    switch (gh_life_of(&(struct gh_identity){owner, stack}, st->me)) {
    case GH_ENDED: return false;
    case GH_RUNS: return true;
    case GH_OTHER_NAMESPACE: break;
    }
    return slot_locked(slot);
}

static unsigned claim(struct gh_state *st, struct gh_account_page *page) {
    unsigned from = gh_owner_pid(st->me);
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS; i++) {
        unsigned slot = (from + i) % GH_ACCOUNT_SLOTS;
        uint64_t nobody = 0;
        if (slot && !LOAD(&page->owner[slot]) && CAS(&page->owner[slot], &nobody, st->me)) {
            STORE(&page->stack[slot], st->stack);
            hold_lock(st, slot);
            settle(page, slot);
            return slot;
        }
    }
    return 0;
}

/* Publishes the slot as ours, and takes our whole share along when the last one was lost to a scribbler. */
static bool move_in(struct gh_state *st, struct gh_account_page *page, unsigned slot) {
    unsigned held = 0;
    while (held < GH_ACCOUNT_GPUS && gh_lock(&st->mine[held].lock))
        held++;
    bool ours = held == GH_ACCOUNT_GPUS;
    for (unsigned gpu = 0; ours && gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_mine *mine = &st->mine[gpu];
        uint64_t units = gh_own(st, gpu);
        /* a share of nothing, as settle() left it */
        mine->units = mine->lent = gh_taken(LOAD(&page->spare[slot][gpu]));
        mine->keeps = 0;
        mine->tag = gh_tag(LOAD(&page->entry[slot][gpu].committed));
        if (units && add(page, slot, gpu, mine, (int64_t)units, GH_UNLIMITED) != GH_BOOKED)
            mine->units += units; /* the total was scribbled over, too: the next sweep restates and repairs */
    }
    STORE(&st->slot, ours ? slot : 0);
    while (held--)
        gh_unlock(&st->mine[held].lock);
    return ours;
}

bool gh_account_attach(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    unsigned slot = LOAD(&st->slot);
    if (page && slot && LOAD(&page->owner[slot]) == st->me)
        return true;
    if (!page || !gh_lock(&st->attach))
        return false;
    slot = LOAD(&st->slot);
    bool ours = slot && LOAD(&page->owner[slot]) == st->me;
    if (!ours) {
        slot = claim(st, page);
        if (!slot) {
            gh_sweep(st);
            slot = claim(st, page);
        }
        ours = slot && move_in(st, page, slot);
    }
    gh_unlock(&st->attach);
    if (!ours)
        gh_say(GH_SAID_FULL, "gpu-hook: GH-308: the account page has no free slot: more than 1000 processes of this "
                             "container use the GPU; device memory is refused\n");
    return ours;
}

/* ---- booking ---- */

static enum gh_booked change(struct gh_account_page *page, unsigned slot, unsigned gpu, struct gh_mine *mine,
                             int64_t delta, uint64_t limit) {
    if (mine->keeps) {
        if (gh_spare_do(page, slot, gpu, mine, delta, limit))
            delta = 0;
        if (!--mine->keeps) {
            uint64_t idle = gh_spare_end(page, slot, gpu, mine);
            if (idle)
                add(page, slot, gpu, mine, -(int64_t)idle, 0);
        }
    }
    return delta ? add(page, slot, gpu, mine, delta, limit) : GH_BOOKED;
}

static enum gh_booked book(struct gh_state *st, unsigned gpu, int64_t delta, uint64_t limit) {
    for (int i = 0; i < 3 && gpu < GH_ACCOUNT_GPUS; i++) {
        struct gh_mine *mine = &st->mine[gpu];
        if (!gh_lock(&mine->lock))
            return GH_NO_BOOKS;
        unsigned slot = LOAD(&st->slot);
        struct gh_account_page *page = slot ? LOAD(&st->account) : NULL;
        bool ours = page && LOAD(&page->owner[slot]) == st->me;
        enum gh_booked done = ours ? change(page, slot, gpu, mine, delta, limit) : GH_NO_BOOKS;
        gh_unlock(&mine->lock);
        if (ours)
            return done;
        if (!gh_account_attach(st)) /* our first, or the slot was lost */
            return GH_NO_BOOKS;
    }
    return GH_NO_BOOKS;
}

enum gh_booked gh_reserve(struct gh_state *st, unsigned gpu, uint64_t units, uint64_t limit) {
    if (units > GH_VALUE_MAX)
        return GH_NO_ROOM;
    enum gh_booked done = book(st, gpu, (int64_t)units, limit);
    if (done == GH_NO_ROOM && units <= limit) {
        gh_sweep(st);
        done = book(st, gpu, (int64_t)units, limit);
    }
    return done;
}

void gh_release(struct gh_state *st, unsigned gpu, uint64_t units) {
    if (units)
        book(st, gpu, -(int64_t)units, 0);
}

uint64_t gh_total(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page || gpu >= GH_ACCOUNT_GPUS)
        return GH_VALUE_MAX;
    uint64_t total = gh_word_value(LOAD(&page->gpu[gpu].total)), more = LOAD(&page->gpu[gpu].surcharge);
    uint64_t idle = gh_spare_sum(page, gpu);
    total = total > idle ? total - idle : 0;
    return more < GH_VALUE_MAX - total ? total + more : GH_VALUE_MAX;
}

uint64_t gh_own(struct gh_state *st, unsigned gpu) { return (st->mine[gpu].units - st->mine[gpu].lent) & GH_VALUE_MAX; }

void gh_press(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    if (page)
        atomic_store(&st->pressure_seen[gpu], atomic_fetch_add(&page->gpu[gpu].pressure, 1) + 1);
}

bool gh_pressed(struct gh_state *st, unsigned gpu) {
    struct gh_account_page *page = gh_account_page(st);
    uint64_t now = page ? LOAD(&page->gpu[gpu].pressure) : 0;
    return now != atomic_exchange(&st->pressure_seen[gpu], now);
}

void gh_count_contexts(struct gh_state *st, unsigned gpu, int more) {
    if (gpu < GH_ACCOUNT_GPUS && gh_account_attach(st))
        atomic_fetch_add(&LOAD(&st->account)->entry[LOAD(&st->slot)][gpu].contexts, (uint64_t)(int64_t)more);
}

/* ---- sweeping ---- */

/* A total that differs from its slots' sum while no operation takes effect was scribbled over. */
static void repair(struct gh_account_page *page, unsigned gpu) {
    _Atomic uint64_t *total = &page->gpu[gpu].total;
    for (int i = 0; i < 100; i++) {
        uint64_t w = LOAD(total), sum = 0;
        for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
            if (LOAD(&page->owner[slot]))
                sum += gh_slot_share(page, slot, gpu);
        if (LOAD(total) != w)
            continue;
        if (sum == gh_word_value(w) || sum > GH_VALUE_MAX)
            return;
        acknowledge(page, gpu, w, 0);
        CAS(total, &w, gh_word(sum, 0, (gh_tag(w) + 1) & GH_TAG_MASK));
        /* and look again: scribbled slots may differ now */
    }
}

/* Our own slot as we know it, should someone have scribbled over it. */
static void restate(struct gh_state *st, struct gh_account_page *page) {
    unsigned slot = LOAD(&st->slot);
    for (unsigned gpu = 0; slot && gpu < GH_ACCOUNT_GPUS; gpu++) {
        struct gh_mine *mine = &st->mine[gpu];
        if (!gh_lock(&mine->lock))
            continue;
        uint64_t right = mine->units << GH_TAG_BITS | mine->tag;
        struct gh_account_entry *e = &page->entry[slot][gpu];
        if (LOAD(&page->owner[slot]) == st->me && LOAD(&st->slot) == slot &&
            (LOAD(&e->committed) != right || gh_tag(LOAD(&e->announce)) != mine->tag)) {
            STORE(&e->announce, mine->tag);
            STORE(&e->committed, right);
        }
        if (LOAD(&page->owner[slot]) == st->me && LOAD(&st->slot) == slot)
            gh_spare_restate(page, slot, gpu, mine);
        gh_unlock(&mine->lock);
    }
}

void gh_sweep(struct gh_state *st) {
    struct gh_account_page *page = gh_account_page(st);
    if (!page)
        return;
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++) {
        uint64_t owner = LOAD(&page->owner[slot]), stack = LOAD(&page->stack[slot]);
        if (!owner || owner == (st->me | GH_OWNER_SWEEP) || (owner == st->me && slot == LOAD(&st->slot)))
            continue;
        if (!gh_account_slot_alive(st, slot, owner, stack))
            bury(st, page, slot, owner);
    }
    restate(st, page);
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        gh_spare_take(page, gpu);
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
