/* The account page: the memory books of one container, shared by its processes. docs/internals/account-page.md tells the
 * protocol and why the books are right after a SIGKILL at any instruction.
 *
 * All zero is a valid empty page, so that creating it needs no initialiser that could be killed. Little-endian,
 * naturally aligned, every field one atomic word. Amounts are in units of 512 bytes.
 *
 * total[GPU]      value:34 | slot:10 | tag:20    sum of all slots, and the operation that wrote it
 * announce         delta:44 (signed) | tag:20     what the owner is about to do
 * committed        value:34 | tag:20              the owner's share after its operation `tag`
 * ack              tag                            the last operation of this slot that others saw take effect
 * spare            idle:24 | taken:40             of the owner's share: freed but not given back; what others took of it
 * surcharge[GPU]  units                          contexts, modules: what NVML sees beyond the total
 * owner[slot]      pid:22 | sweep:1 | ns:10 | start:31   0 free */
#ifndef GPU_HOOK_ACCOUNT_PAGE_H
#define GPU_HOOK_ACCOUNT_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define GH_ACCOUNT_MAGIC 0x3154434148474755ull /* "UGGHACT1" */
#define GH_ACCOUNT_VERSION 2u
#define GH_ACCOUNT_GPUS 16
#define GH_ACCOUNT_SLOTS 1024 /* slot 0 is nobody */
#define GH_UNIT_SHIFT 9

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* others read the file: every byte of it has a name */

struct gh_account_entry { /* one slot's share of one GPU */
    _Atomic uint64_t announce;
    _Atomic uint64_t committed;
    _Atomic uint64_t ack;
    _Atomic uint64_t contexts; /* how many contexts the process has on the GPU; for process lists only */
};

struct gh_account_gpu {
    _Atomic uint64_t total;
    _Atomic uint64_t surcharge; /* units beyond the total that NVML sees in use; written by the node's agent */
    _Atomic uint64_t pressure;  /* counts refusals: processes with idle pool memory then give it back */
    _Atomic uint64_t lent;      /* 1 once a slot has kept something idle */
    uint8_t reserved[32];       /* a cache line of its own */
};

struct gh_account_page {
    _Atomic uint64_t magic;
    _Atomic uint32_t version;
    uint8_t reserved[1012];
    struct gh_account_gpu gpu[GH_ACCOUNT_GPUS];
    uint8_t reserved2[2048];
    _Atomic uint64_t owner[GH_ACCOUNT_SLOTS];
    _Atomic uint64_t stack[GH_ACCOUNT_SLOTS]; /* the owner's stack bottom: differs after exec; 0 not known */
    struct gh_account_entry entry[GH_ACCOUNT_SLOTS][GH_ACCOUNT_GPUS];
    _Atomic uint64_t spare[GH_ACCOUNT_SLOTS][GH_ACCOUNT_GPUS];
};

#pragma GCC diagnostic pop

#define GH_TAG_BITS 20
#define GH_TAG_MASK 0xfffffull
#define GH_SLOT_MASK 0x3ffull
#define GH_VALUE_MAX ((1ull << 34) - 1)

static inline uint64_t gh_word(uint64_t value, uint64_t slot, uint64_t tag) { return value << 30 | slot << 20 | tag; }
static inline uint64_t gh_word_value(uint64_t w) { return w >> 30; }
static inline uint64_t gh_word_slot(uint64_t w) { return w >> 20 & GH_SLOT_MASK; }
static inline uint64_t gh_tag(uint64_t w) { return w & GH_TAG_MASK; }
static inline uint64_t gh_share(uint64_t committed) { return committed >> GH_TAG_BITS & GH_VALUE_MAX; }
#define GH_SPARE_BITS 40
#define GH_SPARE_MASK ((1ull << GH_SPARE_BITS) - 1)
static inline uint64_t gh_spare(uint64_t idle, uint64_t taken) {
    return idle << GH_SPARE_BITS | (taken & GH_SPARE_MASK);
}
static inline uint64_t gh_idle(uint64_t spare) { return spare >> GH_SPARE_BITS; }
static inline uint64_t gh_taken(uint64_t spare) { return spare & GH_SPARE_MASK; }
static inline int64_t gh_delta(uint64_t announce) { return (int64_t)announce >> GH_TAG_BITS; }

#define GH_OWNER_SWEEP (1ull << 41) /* held by a sweeper, not by a user of memory */
static inline uint64_t gh_owner(uint64_t pid, uint64_t ns, uint64_t start) {
    return (pid & 0x3fffff) << 42 | (ns & 0x3ff) << 31 | (start & 0x7fffffff);
}
static inline uint32_t gh_owner_pid(uint64_t o) { return (uint32_t)(o >> 42); }
static inline uint32_t gh_owner_ns(uint64_t o) { return o >> 31 & 0x3ff; }
static inline uint32_t gh_owner_start(uint64_t o) { return o & 0x7fffffff; }

_Static_assert(sizeof(struct gh_account_entry) == 32, "entry");
_Static_assert(sizeof(struct gh_account_page) == 4096 + 2 * 8192 + (512 + 128) * GH_ACCOUNT_SLOTS, "whole pages");
_Static_assert(sizeof(struct gh_account_page) < 1 << 20, "fits the container's tmpfs");

#endif
