#define _GNU_SOURCE
#include "card.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t card_now(const struct card_file *file)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec) / card_scale(file);
}

/* --- finding the cards --- */

static bool node_refuses(unsigned minor)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%u", minor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd < 0 && (errno == EPERM || errno == EACCES);
}

static bool ends(const char *text, size_t size) { return memchr(text, 0, size) != NULL; }

static bool map_card(struct card *card, const char *path, bool writable)
{
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return false;
    struct stat st;
    struct card_file *file = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof *file)
        file = mmap(NULL, sizeof *file, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        return false; /* fd stays open: closing it could drop a lock that this process holds on the same file */
    const struct card_head *h = &file->head;
    if (h->magic != (CARD_MAGIC) || h->version != CARD_VERSION || h->file_size != sizeof *file ||
        !ends(h->uuid, sizeof h->uuid) || !ends(h->name, sizeof h->name) || !ends(h->pci, sizeof h->pci) ||
        !ends(h->driver_version, sizeof h->driver_version)) {
        munmap(file, sizeof *file);
        return false;
    }
    card->fd = fd;
    card->file = file;
    card->slot = -1;
    pthread_mutex_init(&card->mutex, NULL);
    return true;
}

int cards_open(struct card *cards, int max, bool writable)
{
    const char *dir = getenv("GPU_HOOK_SIM_CARDS");
    if (!dir || !*dir)
        dir = "/dev/nvidia-sim";
    unsigned minors[CARD_MAX];
    int found = 0;
    DIR *d = opendir(dir);
    if (!d)
        return 0;
    for (struct dirent *e; found < CARD_MAX && (e = readdir(d));) {
        char *end;
        unsigned long minor = strtoul(e->d_name, &end, 10);
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || *end || minor > 254)
            continue;
        int at = found++;
        for (; at > 0 && minors[at - 1] > minor; at--)
            minors[at] = minors[at - 1];
        minors[at] = (unsigned)minor;
    }
    closedir(d);
    int count = 0;
    for (int i = 0; i < found && count < max; i++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%u", dir, minors[i]) >= (int)sizeof path || node_refuses(minors[i]))
            continue;
        if (map_card(&cards[count], path, writable))
            count++;
    }
    return count;
}

/* --- slots and memory --- */

static int record_lock(int fd, short type, off_t byte, bool wait)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int r;
    while ((r = fcntl(fd, wait ? F_SETLKW : F_SETLK, &l)) < 0 && (errno == EINTR || (wait && errno == EDEADLK)))
        if (errno == EDEADLK) /* the kernel takes threads that wait for two cards' locks for a circle of processes */
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return r;
}

static uint64_t my_start_ticks(void)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *p = strrchr(text, ')'); /* the command may hold blanks and brackets; field 3 follows it */
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

static bool owned_by_me(const struct card_slot *slot)
{
    return slot->pid == getpid() && slot->start_ticks == my_start_ticks();
}

int card_owner(const struct card *card, int slot)
{
    const struct card_slot *s = &card->file->slot[slot];
    if (card->slot == slot)
        return getpid();
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_SLOT + slot, .l_len = 1};
    if (fcntl(card->fd, F_GETLK, &l) < 0)
        return 0;
    if (l.l_type != F_UNLCK)
        return l.l_pid > 0 ? l.l_pid : 0;
    /* Our own locks are not reported to us; the other library of this process may hold this one. */
    return s->pid && owned_by_me(s) ? getpid() : -1;
}

static void clear_slot(struct card_slot *s)
{
    atomic_store(&s->used, 0);
    atomic_store(&s->tail, 0);
    atomic_store(&s->head, 0);
    s->head_started = 0;
    s->contexts = 0;
    s->pid = 0;
    s->start_ticks = 0;
    memset(s->command, 0, sizeof s->command);
    memset(&s->busy, 0, sizeof s->busy);
}

/* Mutex and engine lock held. */
static void reap(struct card *card, int slot)
{
    struct card_slot *s = &card->file->slot[slot];
    bool empty = !s->pid && !atomic_load(&s->used) && atomic_load(&s->head) == atomic_load(&s->tail);
    if (slot == card->slot || empty || record_lock(card->fd, F_WRLCK, LOCK_SLOT + slot, false) < 0)
        return;
    clear_slot(s);
    record_lock(card->fd, F_UNLCK, LOCK_SLOT + slot, false);
}

static void reap_all(struct card *card)
{
    for (int i = 0; i < card_slots(card->file); i++)
        reap(card, i);
}

bool card_claim(struct card *card)
{
    pthread_mutex_lock(&card->mutex);
    record_lock(card->fd, F_WRLCK, LOCK_ENGINE, true);
    for (int i = 0; card->slot < 0 && i < CARD_SLOTS; i++) {
        if (record_lock(card->fd, F_WRLCK, LOCK_SLOT + i, false) < 0)
            continue;
        struct card_slot *s = &card->file->slot[i];
        clear_slot(s);
        s->start_ticks = my_start_ticks();
        FILE *f = fopen("/proc/self/comm", "re");
        if (f) {
            if (!fgets(s->command, sizeof s->command, f))
                s->command[0] = 0;
            s->command[strcspn(s->command, "\n")] = 0;
            fclose(f);
        }
        s->pid = getpid();
        card->slot = i;
        _Atomic uint32_t *slots = &card->file->head.engine.slots;
        if (atomic_load(slots) <= (uint32_t)i)
            atomic_store(slots, (uint32_t)i + 1);
    }
    record_lock(card->fd, F_UNLCK, LOCK_ENGINE, false);
    pthread_mutex_unlock(&card->mutex);
    return card->slot >= 0;
}

static uint64_t sum_used(const struct card_file *file)
{
    uint64_t sum = 0;
    for (int i = 0, n = card_slots(file); i < n; i++)
        sum += atomic_load(&file->slot[i].used);
    return sum;
}

static bool try_reserve(struct card *card, uint64_t bytes)
{
    _Atomic uint64_t *used = &card->file->slot[card->slot].used;
    atomic_fetch_add(used, bytes);
    if (sum_used(card->file) <= card->file->head.memory_total)
        return true;
    atomic_fetch_sub(used, bytes);
    return false;
}

bool card_reserve(struct card *card, uint64_t bytes)
{
    if (bytes > card->file->head.memory_total)
        return false;
    if (try_reserve(card, bytes))
        return true;
    /* Two that tried at once may both have been refused, and the dead still count: decide again, one at a time. */
    pthread_mutex_lock(&card->mutex);
    record_lock(card->fd, F_WRLCK, LOCK_ENGINE, true);
    reap_all(card);
    bool ok = try_reserve(card, bytes);
    record_lock(card->fd, F_UNLCK, LOCK_ENGINE, false);
    pthread_mutex_unlock(&card->mutex);
    return ok;
}

void card_release(struct card *card, uint64_t bytes)
{
    atomic_fetch_sub(&card->file->slot[card->slot].used, bytes);
}

uint64_t card_used(struct card *card, bool do_reap)
{
    if (do_reap) {
        pthread_mutex_lock(&card->mutex);
        record_lock(card->fd, F_WRLCK, LOCK_ENGINE, true);
        reap_all(card);
        record_lock(card->fd, F_UNLCK, LOCK_ENGINE, false);
        pthread_mutex_unlock(&card->mutex);
        return sum_used(card->file);
    }
    uint64_t sum = 0;
    for (int i = 0, n = card_slots(card->file); i < n; i++) {
        uint64_t used = atomic_load(&card->file->slot[i].used);
        if (used && card_owner(card, i) >= 0)
            sum += used;
    }
    return sum;
}

/* --- the engine --- */

#define SHORTEST_SLICE_NS 10000ull /* bounds the steps from one look to the next */

static void account(struct card_busy *b, uint64_t from, uint64_t ns)
{
    b->total_ns += ns;
    while (ns) {
        uint64_t period = from / CARD_PERIOD_NS, room = (period + 1) * CARD_PERIOD_NS - from;
        uint64_t part = ns < room ? ns : room;
        unsigned cell = period % CARD_PERIODS;
        if (b->period[cell] != period) {
            b->period[cell] = period;
            b->ns[cell] = 0;
        }
        b->ns[cell] += part;
        from += part;
        ns -= part;
    }
}

unsigned card_utilisation(const struct card_busy *b, uint64_t now_ns)
{
    uint64_t period = now_ns / CARD_PERIOD_NS - 1;
    unsigned cell = period % CARD_PERIODS;
    return b->period[cell] == period ? (unsigned)((b->ns[cell] * 100 + CARD_PERIOD_NS / 2) / CARD_PERIOD_NS) : 0;
}

/* When the slot's next work may start; UINT64_MAX: it has none, or scribbled over its own figures. */
static uint64_t ready_at(struct card_slot *s)
{
    uint64_t head = atomic_load(&s->head), waiting = atomic_load(&s->tail) - head;
    return waiting && waiting <= CARD_RING ? s->ring[head % CARD_RING].submit_ns : UINT64_MAX;
}

/* The next slot in turn that has work at time t, beginning after `after`; else -1 and *next = when there is some. */
static int pick(struct card_file *f, int after, uint64_t t, uint64_t *next)
{
    int n = card_slots(f);
    *next = UINT64_MAX;
    for (int k = 1; k <= n; k++) {
        int i = (after + k) % n;
        uint64_t at = ready_at(&f->slot[i]);
        if (at <= t)
            return i;
        if (at < *next)
            *next = at;
    }
    return -1;
}

void card_advance(struct card_file *f, uint64_t now)
{
    struct card_engine *e = &f->head.engine;
    uint64_t t = e->now_ns < now ? e->now_ns : now, next;
    uint64_t slice = f->head.slice_ns > SHORTEST_SLICE_NS ? f->head.slice_ns : SHORTEST_SLICE_NS;
    if (e->current < -1 || e->current >= card_slots(f))
        e->current = -1;
    if (e->switch_left_ns > f->head.switch_ns)
        e->switch_left_ns = f->head.switch_ns;
    if (e->slice_left_ns > slice)
        e->slice_left_ns = slice;
    for (;;) {
        if (t >= now)
            break;
        if (e->switch_left_ns) {
            uint64_t part = e->switch_left_ns < now - t ? e->switch_left_ns : now - t;
            e->switch_left_ns -= part;
            t += part;
            continue;
        }
        if (e->current < 0 || !e->slice_left_ns || ready_at(&f->slot[e->current]) > t) {
            int turn = pick(f, e->current, t, &next);
            if (turn < 0) {
                t = next < now ? next : now;
                continue;
            }
            if (turn != e->current && e->current >= 0)
                e->switch_left_ns = f->head.switch_ns;
            e->current = turn;
            e->slice_left_ns = slice;
            continue;
        }
        struct card_slot *s = &f->slot[e->current];
        uint64_t head = atomic_load(&s->head);
        struct card_work *w = &s->ring[head % CARD_RING];
        if (!s->head_started) {
            s->head_left_ns = w->duration_ns;
            s->head_started = 1;
        }
        uint64_t run = s->head_left_ns;
        if (run > now - t)
            run = now - t;
        if (run > e->slice_left_ns)
            run = e->slice_left_ns;
        account(&e->busy, t, run);
        account(&s->busy, t, run);
        t += run;
        s->head_left_ns -= run;
        e->slice_left_ns -= run;
        if (!s->head_left_ns) {
            w->done_ns = t;
            s->head_started = 0;
            atomic_store(&s->head, head + 1);
        }
    }
    e->now_ns = t;
}

/* Mutex held. Kernels of dead processes leave the card with them. */
static void advance_locked(struct card *card)
{
    record_lock(card->fd, F_WRLCK, LOCK_ENGINE, true);
    for (int i = 0, n = card_slots(card->file); i < n; i++)
        if (i != card->slot && ready_at(&card->file->slot[i]) != UINT64_MAX)
            reap(card, i);
    card_advance(card->file, card_now(card->file));
    record_lock(card->fd, F_UNLCK, LOCK_ENGINE, false);
}

/* Mutex held: nanoseconds of own work up to and including seq, at least. */
static uint64_t work_left(const struct card_slot *s, uint64_t seq)
{
    uint64_t head = atomic_load(&s->head), left = 0;
    for (uint64_t i = head; i <= seq && i - head < CARD_RING; i++)
        left += i == head && s->head_started ? s->head_left_ns : s->ring[i % CARD_RING].duration_ns;
    return left;
}

bool card_done(struct card *card, uint64_t seq)
{
    struct card_slot *s = &card->file->slot[card->slot];
    if (atomic_load(&s->head) > seq)
        return true;
    pthread_mutex_lock(&card->mutex);
    advance_locked(card);
    pthread_mutex_unlock(&card->mutex);
    return atomic_load(&s->head) > seq;
}

/* Mutex held on entry and exit, not while sleeping. */
static void wait_locked(struct card *card, uint64_t seq)
{
    struct card_slot *s = &card->file->slot[card->slot];
    for (;;) {
        if (atomic_load(&s->head) > seq)
            return;
        advance_locked(card);
        if (atomic_load(&s->head) > seq)
            return;
        uint64_t left = work_left(s, seq), scale = card_scale(card->file);
        left = left > 50000000 ? 50000000 : left * scale;
        if (left < 20000)
            left = 20000;
        if (left > 50000000)
            left = 50000000;
        pthread_mutex_unlock(&card->mutex);
        struct timespec t = {.tv_sec = 0, .tv_nsec = (long)left};
        nanosleep(&t, NULL);
        pthread_mutex_lock(&card->mutex);
    }
}

void card_wait(struct card *card, uint64_t seq)
{
    pthread_mutex_lock(&card->mutex);
    wait_locked(card, seq);
    pthread_mutex_unlock(&card->mutex);
}

uint64_t card_submit(struct card *card, uint64_t duration_ns, card_retire *retire, card_note *note, void *argument)
{
    struct card_slot *s = &card->file->slot[card->slot];
    pthread_mutex_lock(&card->mutex);
    uint64_t seq;
    while ((seq = atomic_load_explicit(&s->tail, memory_order_relaxed)) - atomic_load(&s->head) >= CARD_RING)
        wait_locked(card, seq - CARD_RING);
    if (seq >= CARD_RING)
        retire(card, seq - CARD_RING, s->ring[seq % CARD_RING].done_ns);
    if (note)
        note(card, seq, argument);
    s->ring[seq % CARD_RING] = (struct card_work){.submit_ns = card_now(card->file), .duration_ns = duration_ns};
    atomic_store_explicit(&s->tail, seq + 1, memory_order_release);
    pthread_mutex_unlock(&card->mutex);
    return seq;
}

uint64_t card_done_ns(struct card *card, uint64_t seq)
{
    return card->file->slot[card->slot].ring[seq % CARD_RING].done_ns;
}
