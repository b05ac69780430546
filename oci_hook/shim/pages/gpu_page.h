/* The GPU page: by whom a GPU is shared, and how. Every container on the GPU has a copy of its own, which gpu-hook
 * writes on the host: page 1 + N of GH_POLICY_FILE, N the GPU's place in the policy page. Derived from the ledger alone.
 * Little-endian, naturally aligned, one page. Twin: oci_hook/core/gpu_page.py; a test compares the two.
 * seq is a seqlock as the policy page's, and the word on which a frozen thread sleeps (FUTEX_WAIT, works on a read-only
 * mapping). Who cannot read a page goes on with the last one it could read; without any, only the own cap is held. */
#ifndef GPU_HOOK_GPU_PAGE_H
#define GPU_HOOK_GPU_PAGE_H

#include <stdint.h>

#include "pages/gpu_view.h"

#define GH_GPU_MAGIC 0x3144524143504847ull /* "GHPCARD1" */
#define GH_GPU_VERSION 1u
#define GH_GPU_PAGE_SIZE 4096u

/* Common to all containers on the GPU: a file of GH_SLOT_FILE_SIZE zero bytes per granted slot, GH_SHARE_DIR/N/slot/II (two
 * decimal digits), a fresh inode per grant. The container's own is also mounted read-write, at GH_SLOT_FILE/N. */
#define GH_SLOT_FILE_SIZE 8192u

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* others read the file: every byte of it has a name */

struct gh_gpu_share {
    struct gh_share share;
    uint32_t reserved0;
    uint64_t born; /* another number for every grant that ever had this slot; 0 free */
    uint64_t reserved1;
};

/* What `gpu-hook gpus --probe` found that the GPU can do for preemption (core/tiers.py). */
enum gh_tier { GH_TIER_MEMOPS = 1 /* streams wait for words in host memory */ };

struct gh_gpu_page {
    uint64_t magic;
    uint32_t version;
    uint32_t size; /* GH_GPU_PAGE_SIZE */
    uint32_t seq;
    uint32_t time_scale; /* times of the rules are multiplied by it: 1, more on a slowed-down simulated GPU */
    uint64_t generation; /* counts the changes */
    uint64_t present;    /* bit i: slot i is granted */
    char uuid[48];
    uint32_t tiers; /* bits of enum gh_tier */
    uint8_t reserved[36];
    struct gh_gpu_share slot[GH_SLOTS];
};

#pragma GCC diagnostic pop

_Static_assert(sizeof(struct gh_share) == 12, "share");
_Static_assert(sizeof(struct gh_gpu_share) == 32, "GPU share");
_Static_assert(sizeof(struct gh_gpu_page) == 128 + 32 * GH_SLOTS, "head and slots");
_Static_assert(sizeof(struct gh_gpu_page) <= GH_GPU_PAGE_SIZE, "fits one page");

#endif
