/* The account page: how much device memory each process of one container uses. Its processes share it.
 * docs/internals/account-page.md has the protocol, and why the page is right after a SIGKILL at any instruction.
 *
 * A page of zeros is a valid empty page, so creating it takes no step that a kill could interrupt. Little-endian,
 * naturally aligned, every field is one atomic word. Amounts are units of 512 bytes. Each process has an account slot.
 *
 * total[GPU]       value:34 | slot:10 | tag:20   sum of all account slots, and which operation of which slot wrote it
 * announce         delta:44 (signed) | tag:20    the operation that the slot's owner is about to do
 * committed        value:34 | tag:20             what the owner is charged after its operation `tag`
 * ack              tag                           the last operation of this slot that another process saw take effect
 * free_cache       idle:24 | taken:40            of what is charged: freed but not released; what others took of that
 * waiting[GPU]     units that an allocation within its limit waits for, 0: none; waits counts its tries
 * surcharge[GPU]   units                         contexts, modules: what NVML sees in use beyond the total
 * fixed            a bit for each slot: its process has memory that the driver cannot move to the host
 * owner[slot]      pid:32 | start:32   0 free; shown to people, and proof of nothing
 *
 * A slot is in use while someone holds a lock on byte SLOT or SLOT + 1024 of the file (OFD locks): account/slot_lock.h. */
#ifndef GPU_HOOK_ACCOUNT_PAGE_H
#define GPU_HOOK_ACCOUNT_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define GH_ACCOUNT_MAGIC 0x3154434148474755ull /* "UGGHACT1" */
#define GH_ACCOUNT_VERSION 3u
#define GH_ACCOUNT_GPUS 16
#define GH_ACCOUNT_SLOTS 1024 /* slot 0 is never used */
#define GH_UNIT_SHIFT 9

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* other programs read the file, so every byte has a name */

struct gh_account_entry { /* one account slot on one GPU */
    _Atomic uint64_t announce;
    _Atomic uint64_t committed;
    _Atomic uint64_t ack;
    _Atomic uint64_t
        contexts; /* how many contexts the process has on the GPU; only for process lists. GPU 0 of a slot of
                                * shared memory: what it is known by */
};

struct gh_account_gpu {
    _Atomic uint64_t total;
    _Atomic uint64_t surcharge; /* units that NVML sees in use beyond the total; the node's agent writes it */
    _Atomic uint64_t pressure;  /* counts refusals; processes with idle pool memory release it when this changes */
    _Atomic uint64_t cached;    /* 1 once any slot has had something in its free cache */
    _Atomic uint64_t waiting;   /* units that one allocation waits for, since the GPU has no room for them; 0: none */
    _Atomic uint64_t waits;     /* counts its tries: who reads it anew sees whether it still waits */
    uint8_t reserved[16];       /* each GPU has its own cache line */
};

struct gh_account_page {
    _Atomic uint64_t magic;
    _Atomic uint32_t version;
    _Atomic uint32_t owners; /* changes after an owner word has changed */
    _Atomic uint64_t fixed[GH_ACCOUNT_SLOTS / 64];
    uint8_t reserved[880];
    struct gh_account_gpu gpu[GH_ACCOUNT_GPUS];
    _Atomic uint16_t
        shared[GH_ACCOUNT_SLOTS]; /* not 0: the slot is of shared memory, known by entry[slot][0].contexts */
    _Atomic uint64_t owner[GH_ACCOUNT_SLOTS];
    struct gh_account_entry entry[GH_ACCOUNT_SLOTS][GH_ACCOUNT_GPUS];
    _Atomic uint64_t free_cache[GH_ACCOUNT_SLOTS][GH_ACCOUNT_GPUS];
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
static inline uint64_t gh_committed_units(uint64_t committed) { return committed >> GH_TAG_BITS & GH_VALUE_MAX; }
#define GH_CACHE_BITS 40
#define GH_CACHE_MASK ((1ull << GH_CACHE_BITS) - 1)
static inline uint64_t gh_cache_word(uint64_t idle, uint64_t taken) {
    return idle << GH_CACHE_BITS | (taken & GH_CACHE_MASK);
}
static inline uint64_t gh_cache_idle(uint64_t unseen) { return unseen >> GH_CACHE_BITS; }
static inline uint64_t gh_cache_taken(uint64_t unseen) { return unseen & GH_CACHE_MASK; }
static inline int64_t gh_delta(uint64_t announce) { return (int64_t)announce >> GH_TAG_BITS; }

/* start: the low bits of the process's start time in ticks (field 22 of /proc/PID/stat); 0 not known */
static inline uint64_t gh_owner(uint32_t pid, uint32_t start) { return (uint64_t)pid << 32 | start; }
static inline uint32_t gh_owner_pid(uint64_t o) { return (uint32_t)(o >> 32); }
static inline uint32_t gh_owner_start(uint64_t o) { return (uint32_t)o; }

_Static_assert(sizeof(struct gh_account_entry) == 32, "entry");
_Static_assert(sizeof(struct gh_account_page) == 4096 + 8192 + (512 + 128) * GH_ACCOUNT_SLOTS, "whole pages");
_Static_assert(sizeof(struct gh_account_page) < 1 << 20, "fits the container's tmpfs");

#endif
