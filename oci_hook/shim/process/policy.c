#define _GNU_SOURCE
#include "process/policy.h"

#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pages/layout.h"

#define WAIT_NS 5000000
#define HOLD_MOST 3600000000000ull /* ns; a longer one is damage */
#define TRIES 100000 /* a writer needs a microsecond; a page whose writer was killed in the middle is refused */

bool gh_policy_valid(const struct gh_policy_page *page) {
    return page->magic == GH_POLICY_MAGIC && page->version == GH_POLICY_VERSION && page->size == GH_POLICY_SIZE &&
           page->ngpus <= GH_POLICY_GPUS;
}

static const struct gh_policy_page *map_page(void) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_POLICY_FILE, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (fd < 0)
        return NULL;
    struct stat st;
    void *p = MAP_FAILED;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size >= (off_t)GH_POLICY_SIZE)
        p = mmap(NULL, GH_POLICY_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return p == MAP_FAILED ? NULL : p;
}

static const struct gh_policy_page *policy(struct gh_state *st) {
    const struct gh_policy_page *page = atomic_load_explicit(&st->policy, memory_order_acquire), *none = NULL;
    if (page)
        return page;
    if (!(page = map_page()))
        return NULL;
    if (!atomic_compare_exchange_strong(&st->policy, &none, page)) {
        munmap((void *)page, GH_POLICY_SIZE);
        return none;
    }
    return page;
}

static uint32_t sequence(const struct gh_policy_page *page) { return __atomic_load_n(&page->seq, __ATOMIC_ACQUIRE); }

/* Copies the record of one GPU, ngpus and the class, all from the same version of the page. */
static bool copy_gpu(struct gh_state *st, unsigned gpu, struct gh_gpu_policy *out, uint32_t *ngpus, uint32_t *class_) {
    const struct gh_policy_page *page = policy(st);
    for (int i = 0; page && i < TRIES; i++) {
        uint32_t seq = sequence(page);
        if (seq & 1)
            continue;
        bool valid = gh_policy_valid(page);
        *ngpus = page->ngpus;
        *class_ = page->class_;
        *out = page->gpu[gpu];
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (sequence(page) == seq) {
            if (valid)
                return true;
            break;
        }
    }
    return false;
}

bool gh_policy_gpu(struct gh_state *st, unsigned gpu, struct gh_gpu_policy *out, uint32_t *ngpus, uint32_t *class_) {
    return gpu < GH_POLICY_GPUS && copy_gpu(st, gpu, out, ngpus, class_);
}

static bool snapshot(struct gh_state *st, unsigned gpu, struct gh_gpu_policy *out, uint32_t *ngpus) {
    uint32_t class_;
    if (copy_gpu(st, gpu, out, ngpus, &class_))
        return true;
    gh_say(GH_SAID_POLICY, "gpu-hook: GH-307: the policy page " GH_POLICY_FILE
                           " is missing or damaged: device memory is refused; start the container anew with "
                           "gpu-hook\n");
    return false;
}

bool gh_policy_limit(struct gh_state *st, unsigned gpu, struct gh_limit *out) {
    const struct gh_policy_page *page = atomic_load_explicit(&st->policy, memory_order_acquire);
    if (page) { /* the usual case: no record is copied */
        uint32_t seq = sequence(page);
        if (!(seq & 1) && gh_policy_valid(page) && gpu < page->ngpus) {
            out->bytes = __atomic_load_n(&page->gpu[gpu].memory_limit, __ATOMIC_RELAXED);
            out->context_bytes = __atomic_load_n(&page->gpu[gpu].context_bytes, __ATOMIC_RELAXED);
            out->request_bytes = __atomic_load_n(&page->gpu[gpu].memory_request, __ATOMIC_RELAXED);
            out->block_bytes = __atomic_load_n(&page->gpu[gpu].block_bytes, __ATOMIC_RELAXED);
            out->whole = __atomic_load_n(&page->gpu[gpu].flags, __ATOMIC_RELAXED) & GH_GPU_WHOLE;
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (sequence(page) == seq)
                return true;
        }
    }
    struct gh_gpu_policy record;
    uint32_t ngpus;
    if (gpu >= GH_POLICY_GPUS || !snapshot(st, gpu, &record, &ngpus) || gpu >= ngpus)
        return false;
    *out = (struct gh_limit){record.memory_limit, record.context_bytes, record.memory_request, record.block_bytes,
                             record.flags & GH_GPU_WHOLE};
    return true;
}

static bool is_held(const struct gh_policy_page *page) {
    uint64_t until = __atomic_load_n(&page->hold_until, __ATOMIC_RELAXED);
    struct timespec now;
    if (!until || clock_gettime(CLOCK_MONOTONIC, &now))
        return false;
    uint64_t left = until - (uint64_t)now.tv_sec * 1000000000ull - (uint64_t)now.tv_nsec;
    return left - 1 < HOLD_MOST; /* what is over has wrapped around */
}

void gh_policy_wait(struct gh_state *st) {
    const struct gh_policy_page *page = policy(st);
    while (page && (__atomic_load_n(&page->suspended, __ATOMIC_RELAXED) || is_held(page)) && gh_policy_valid(page))
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = WAIT_NS}, NULL);
}

void gh_policy_wait_here(void) {
    struct gh_state *st = gh_here();
    if (st)
        gh_policy_wait(st);
}

uint32_t gh_policy_memory_wait(struct gh_state *st) {
    const struct gh_policy_page *page = policy(st);
    return page && gh_policy_valid(page) ? __atomic_load_n(&page->memory_wait, __ATOMIC_RELAXED) : 0;
}

bool gh_policy_usable(struct gh_state *st) {
    struct gh_gpu_policy record;
    uint32_t ngpus;
    return snapshot(st, 0, &record, &ngpus);
}

/* The identity is what follows "GPU-" or "MIG-". */
static const char *bare(const char *uuid) {
    return strncasecmp(uuid, "GPU-", 4) && strncasecmp(uuid, "MIG-", 4) ? uuid : uuid + 4;
}

int gh_policy_find(struct gh_state *st, const char *uuid) {
    struct gh_gpu_policy record;
    uint32_t ngpus = 1;
    for (unsigned i = 0; i < ngpus && i < GH_POLICY_GPUS; i++) {
        if (!snapshot(st, i, &record, &ngpus))
            return -1;
        record.uuid[sizeof record.uuid - 1] = 0;
        if (i < ngpus && record.uuid[0] && !strcasecmp(bare(record.uuid), bare(uuid)))
            return (int)i;
    }
    return -1;
}
