/* Memory limits of cgroups, as driver 615 has them. All that is charged to a limit's cgroup together stays within it.
 *
 * Two back-ends, which are this simulator's model and were not measured:
 * - dmem: a limit belongs to the cgroup, by its number, and counts its descendants.
 * - misc: a limit belongs to a path. It stays when the cgroup is removed, and holds for a new one of that path.
 *
 * With dmem, each soft limit is added to those of the cgroups above. When a cgroup is removed whose soft limit was not made 0
 * before, NVML's page says that it goes (LIMITS_DMEM), and NVIDIA's guide to limits with MPS that those above keep it
 * (LIMITS_KEEP).
 *
 * A setter writes a free cell of the table under the cell's lock, and publishes it by its stamp; then it frees the cells that
 * the new one replaces. Readers take the highest stamp, and read the table again if something was replaced meanwhile: they
 * might have passed the new cell before it was written, and come to the old one when it was free. So a setter that is
 * killed at any instruction leaves the old limit or the new one, and a cell that the kernel unlocks; setters do not wait
 * for each other. */
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define OFD_SETLK 37 /* F_OFD_SETLK, Linux 3.15 */

static unsigned limits(const struct gpu_file *f) { return gpu_count(&f->head.limits, GPU_LIMIT_CELLS); }

/* A copy of a cell, without its path. False: it is free, or others write it all the time. */
static bool read_cell(const struct gpu_limit *cell, struct gpu_limit *out) {
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t stamp = atomic_load(&cell->stamp);
        if (!stamp)
            return false;
        out->soft = cell->soft;
        out->hard = cell->hard;
        out->home = cell->home;
        atomic_init(&out->present, atomic_load(&cell->present));
        atomic_init(&out->stamp, stamp);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load(&cell->stamp) == stamp)
            return true;
    }
    return false;
}

struct reading {
    uint64_t changes;
    int tries;
};

/* True if the table is to be read (again). Constant writers make readers wrong, but do not hang them. */
static bool reads(const struct gpu_file *f, struct reading *r) {
    uint64_t changes = atomic_load(&f->head.limit_changes);
    bool more = !r->tries || (changes != r->changes && r->tries < 1000);
    r->changes = changes;
    r->tries++;
    return more;
}

/* The place of this number in the list; -1: it is not there. */
static int place(const struct gpu_home *home, uint64_t id) {
    for (int i = 0; id && i < GPU_DEPTH && home->id[i]; i++)
        if (home->id[i] == id)
            return i;
    return -1;
}

static int length(const struct gpu_home *home) {
    int n = 0;
    while (n < GPU_DEPTH && home->id[n])
        n++;
    return n;
}

static bool same(const struct gpu_file *f, const struct gpu_home *a, const struct gpu_home *b) {
    if (f->head.limits_by == LIMITS_MISC && a->name && b->name)
        return a->name == b->name;
    return a->id[0] && a->id[0] == b->id[0];
}

/* A client in a cgroup namespace cannot see what is above it; who set a limit for its cgroup, or for one above, could. */
static struct gpu_home complete(const struct gpu_file *f, const struct gpu_home *seen) {
    struct gpu_home home = *seen;
    for (unsigned c = 0; c < limits(f); c++) {
        struct gpu_limit cell;
        int at = place(&home, f->limit[c].home.id[0]);
        if (at >= 0 && read_cell(&f->limit[c], &cell) && cell.home.id[0] == home.id[at] &&
            length(&cell.home) > length(&home) - at)
            memcpy(&home.id[at], cell.home.id, sizeof home.id[0] * (size_t)(GPU_DEPTH - at));
    }
    return home;
}

/* True if what is charged to `who` counts for a limit of `whose`. who: complete. */
static bool counts(const struct gpu_file *f, const struct gpu_home *who, const struct gpu_home *whose) {
    return f->head.limits_by == LIMITS_MISC ? same(f, who, whose) : place(who, whose->id[0]) >= 0;
}

static bool counts_seen(const struct gpu_file *f, const struct gpu_home *seen, const struct gpu_home *whose) {
    if (counts(f, seen, whose))
        return true;
    struct gpu_home who = complete(f, seen);
    return counts(f, &who, whose);
}

/* Bytes of a slot that limits count. Between the two figures' changes it may be too much, but not too little. */
static uint64_t counted(const struct gpu_slot *slot) {
    uint64_t used = 0;
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t managed = atomic_load(&slot->managed);
        used = atomic_load(&slot->used);
        if (atomic_load(&slot->managed) == managed)
            return used > managed ? used - managed : 0;
    }
    return used;
}

/* Bytes charged to a cgroup. live: without what belongs to closed files, which readers cannot clear. */
static uint64_t charged(struct gpu *gpu, const struct gpu_home *whose, bool live) {
    const struct gpu_file *f = gpu->file;
    uint64_t sum = 0;
    for (int i = 0; i < gpu_slots(f); i++) {
        uint64_t bytes = counted(&f->slot[i]);
        if (bytes && counts_seen(f, &f->slot_home[i], whose) && (!live || gpu_owner(gpu, i) >= 0))
            sum += bytes;
    }
    for (int i = 0; i < (int)gpu_count(&f->head.pieces, GPU_PIECES); i++)
        if (gpu_piece_bytes(gpu, i) && counts_seen(f, &f->piece_home[i], whose) && (!live || gpu_piece_held(gpu, i)))
            sum += gpu_piece_bytes(gpu, i);
    return sum;
}

/* The home of a limit: by `misc`, the cgroup that has its path now. */
static struct gpu_home owner(const struct gpu_file *f, const struct gpu_limit *cell) {
    struct gpu_home home = cell->home;
    if (f->head.limits_by == LIMITS_MISC)
        home.id[0] = cell->present;
    return home;
}

/* Puts a newer limit of the same cgroup in its place, if there is one. */
static bool renew(const struct gpu_file *f, struct gpu_limit *limit) {
    bool newer = false;
    for (unsigned c = 0; c < limits(f); c++) {
        struct gpu_limit other;
        if (!read_cell(&f->limit[c], &other) || other.stamp <= limit->stamp || !same(f, &other.home, &limit->home))
            continue;
        memcpy(limit, &other, sizeof other);
        newer = true;
    }
    return newer;
}

/* The next limit that holds for a cgroup, from cell *c on; perhaps the same one twice. home: complete. */
static bool next(const struct gpu_file *f, const struct gpu_home *home, unsigned *c, struct gpu_limit *out) {
    while (*c < limits(f)) {
        if (!read_cell(&f->limit[(*c)++], out))
            continue;
        struct gpu_home whose = owner(f, out);
        if (!counts(f, home, &whose))
            continue;
        renew(f, out);
        out->home = owner(f, out);
        return true;
    }
    return false;
}

static bool hold(struct gpu *gpu, const struct gpu_home *seen, uint64_t more) {
    struct gpu_limit limit;
    struct gpu_home home = complete(gpu->file, seen);
    for (unsigned c = 0; next(gpu->file, &home, &c, &limit);)
        if (charged(gpu, &limit.home, false) + more > limit.hard)
            return false;
    return true;
}

bool gpu_limits_hold(struct gpu *gpu, const struct gpu_home *home, uint64_t more) {
    bool ok = true;
    for (struct reading r = {0}; limits(gpu->file) && reads(gpu->file, &r);)
        ok = hold(gpu, home, more);
    return ok;
}

static struct gpu_bound lowest(struct gpu *gpu, const struct gpu_home *seen) {
    struct gpu_limit limit;
    struct gpu_home home = complete(gpu->file, seen), whose = {0};
    struct gpu_bound found = {0, GPU_UNLIMITED, 0};
    for (unsigned c = 0; next(gpu->file, &home, &c, &limit);)
        if (limit.hard < found.hard) {
            found = (struct gpu_bound){limit.soft, limit.hard, 0};
            whose = limit.home;
        }
    if (found.hard < GPU_UNLIMITED)
        found.used = charged(gpu, &whose, true);
    return found;
}

bool gpu_limit_lowest(struct gpu *gpu, const struct gpu_home *home, struct gpu_bound *out) {
    for (struct reading r = {0}; reads(gpu->file, &r);)
        *out = lowest(gpu, home);
    return out->hard < GPU_UNLIMITED;
}

/* True if the limit's cgroup was removed. */
static bool is_gone(const struct gpu_file *f, unsigned c, const struct gpu_limit *cell) {
    char path[sizeof cell->path];
    memcpy(path, f->limit[c].path, sizeof path);
    path[sizeof path - 1] = 0;
    return f->head.limits_by != LIMITS_MISC && *path && cgroup_all_mounted() && cgroup_number(path) != cell->home.id[0];
}

static bool is_replaced(const struct gpu_file *f, const struct gpu_limit *cell) {
    struct gpu_limit newest = *cell;
    return renew(f, &newest);
}

/* The soft limits of the cgroups below. */
static uint64_t soft_below(const struct gpu_file *f, const struct gpu_home *home) {
    uint64_t sum = 0;
    for (unsigned c = 0; f->head.limits_by != LIMITS_MISC && c < limits(f); c++) {
        struct gpu_limit cell;
        if (!read_cell(&f->limit[c], &cell) || place(&cell.home, home->id[0]) < 1 || is_replaced(f, &cell))
            continue;
        if (f->head.limits_by == LIMITS_KEEP || !is_gone(f, c, &cell))
            sum += cell.soft;
    }
    return sum;
}

static bool limit_of(struct gpu *gpu, const struct gpu_home *home, struct gpu_bound *out) {
    struct gpu_limit limit;
    *out = (struct gpu_bound){soft_below(gpu->file, home), GPU_UNLIMITED, charged(gpu, home, true)};
    for (unsigned c = 0; next(gpu->file, home, &c, &limit);)
        if (same(gpu->file, &limit.home, home)) {
            out->soft += limit.soft;
            out->hard = limit.hard;
            return true;
        }
    return false;
}

bool gpu_limit_of(struct gpu *gpu, const struct gpu_home *home, struct gpu_bound *out) {
    bool any = false;
    for (struct reading r = {0}; reads(gpu->file, &r);)
        any = limit_of(gpu, home, out);
    return any;
}

/* --- setting --- */

static bool lock(int fd, short type, unsigned cell) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_LIMIT + cell, .l_len = 1};
    int r;
    while ((r = fcntl(fd, OFD_SETLK, &l)) < 0 && errno == EINTR)
        ;
    return r == 0;
}

/* Frees the limits of this cgroup that are older than `stamp`. */
static void replace(struct gpu_file *f, const struct gpu_home *home, uint64_t stamp) {
    atomic_fetch_add(&f->head.limit_changes, 1);
    for (unsigned c = 0; c < limits(f); c++) {
        struct gpu_limit cell;
        if (read_cell(&f->limit[c], &cell) && cell.stamp < stamp && same(f, &cell.home, home)) {
            uint64_t old = cell.stamp;
            atomic_compare_exchange_strong(&f->limit[c].stamp, &old, 0);
        }
    }
}

/* Frees cells that hold for nobody, and that those above do not keep. */
static void tidy(struct gpu_file *f) {
    for (unsigned c = 0; c < limits(f); c++) {
        struct gpu_limit cell;
        if (!read_cell(&f->limit[c], &cell))
            continue;
        bool kept = f->head.limits_by == LIMITS_KEEP && cell.soft;
        if (!is_replaced(f, &cell) && (kept || !is_gone(f, c, &cell)))
            continue;
        atomic_fetch_add(&f->head.limit_changes, 1);
        uint64_t old = cell.stamp;
        atomic_compare_exchange_strong(&f->limit[c].stamp, &old, 0);
    }
}

/* True if the table takes a limit of this cgroup: one more, or instead of its present one. */
static bool takes(const struct gpu_file *f, const struct gpu_home *home) {
    unsigned in_use = 0;
    for (unsigned c = 0; c < limits(f); c++) {
        struct gpu_limit cell;
        bool set = read_cell(&f->limit[c], &cell);
        if (set && same(f, &cell.home, home))
            return true;
        in_use += set;
    }
    return in_use < GPU_LIMITS;
}

static bool publish(struct gpu *gpu, int fd, const struct gpu_limit *limit) {
    struct gpu_file *f = gpu->file;
    for (unsigned c = 0; c < GPU_LIMIT_CELLS; c++) {
        struct gpu_limit *cell = &f->limit[c];
        if (atomic_load(&cell->stamp) || !lock(fd, F_WRLCK, c))
            continue;
        bool is_free = !atomic_load(&cell->stamp);
        if (is_free) {
            cell->soft = limit->soft;
            cell->hard = limit->hard;
            cell->home = limit->home;
            atomic_store(&cell->present, limit->home.id[0]);
            memcpy(cell->path, limit->path, sizeof cell->path);
            uint32_t n = atomic_load(&f->head.limits);
            while (n <= c && !atomic_compare_exchange_weak(&f->head.limits, &n, c + 1))
                ;
            uint64_t stamp = atomic_fetch_add(&f->head.limit_stamp, 1) + 1;
            atomic_store(&cell->stamp, stamp);
            replace(f, &limit->home, stamp);
        }
        lock(fd, F_UNLCK, c);
        if (is_free)
            return true;
    }
    return false;
}

bool gpu_limit_set(struct gpu *gpu, const struct gpu_home *home, const char *path, uint64_t soft, uint64_t hard) {
    struct gpu_limit limit = {.soft = soft, .hard = hard, .home = *home};
    if (strlen(path) < sizeof limit.path)
        memcpy(limit.path, path, strlen(path));
    struct gpu_file *f = gpu->file;
    bool done = true;
    pthread_mutex_lock(&gpu->mutex);
    int fd = gpu_descriptor(gpu);
    if (!soft && hard == GPU_UNLIMITED)
        replace(f, home, atomic_fetch_add(&f->head.limit_stamp, 1) + 1);
    else {
        if (!takes(f, home))
            tidy(f);
        done = fd >= 0 && takes(f, home) && publish(gpu, fd, &limit);
    }
    pthread_mutex_unlock(&gpu->mutex);
    return done;
}

void gpu_limits_look(struct gpu *gpu) {
    struct gpu_file *f = gpu->file;
    for (unsigned c = 0; f->head.limits_by == LIMITS_MISC && cgroup_all_mounted() && c < limits(f); c++) {
        char path[sizeof f->limit[c].path];
        uint64_t stamp = atomic_load(&f->limit[c].stamp);
        memcpy(path, f->limit[c].path, sizeof path);
        path[sizeof path - 1] = 0;
        uint64_t number = *path ? cgroup_number(path) : 0, before = atomic_load(&f->limit[c].present);
        if (stamp && number != before && atomic_load(&f->limit[c].stamp) == stamp)
            atomic_store(&f->limit[c].present, number);
    }
}
