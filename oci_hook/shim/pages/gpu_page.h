/* The GPU page says which containers share a GPU, and how. gpu-hook writes it on the host, from the ledger alone.
 * Every container on the GPU has its own read-only copy: page 1 + N of GH_POLICY_FILE, where N is the GPU's index in
 * the policy page. One page, little-endian, naturally aligned. Twin: oci_hook/core/gpu_page.py; a test compares them.
 * seq is a seqlock, as in the policy page, and the futex word on which the threads of a frozen container sleep
 * (FUTEX_WAIT works on a read-only mapping). A process that cannot read the page keeps the last one that it read; with
 * none at all it only holds its own cap. */
#ifndef GPU_HOOK_GPU_PAGE_H
#define GPU_HOOK_GPU_PAGE_H

#include <stdint.h>

#include "pages/gpu_view.h"

#define GH_GPU_MAGIC 0x3130555047504847ull /* "GHPGPU01" */
#define GH_GPU_VERSION 1u
#define GH_GPU_PAGE_SIZE 4096u

/* Each slot has a file of this many bytes, at first zero: GH_SHARE_DIR/N/slot/II (II: two decimal digits), which all
 * containers on the GPU can read; a fresh inode for each grant. Its own container can write it, at GH_SLOT_FILE/N. */
#define GH_SLOT_FILE_SIZE 8192u

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* other programs read the file, so every byte has a name */

struct gh_gpu_share {
    struct gh_share share;
    uint32_t reserved0;
    uint64_t born; /* differs for every grant that ever had this slot; 0 free */
    uint64_t reserved1;
};

/* Preemption that the GPU offers, as `gpu-hook gpus --probe` found (core/tiers.py). */
enum gh_tier { GH_TIER_MEMOPS = 1 /* streams wait for words in host memory */ };

struct gh_gpu_page {
    uint64_t magic;
    uint32_t version;
    uint32_t size; /* GH_GPU_PAGE_SIZE */
    uint32_t seq;
    uint32_t time_scale; /* real time runs so many times faster than the GPU's: 1, more on a simulated GPU */
    uint64_t generation; /* counts the changes */
    uint64_t present;    /* bit i: slot i is granted */
    char uuid[48];
    uint32_t tiers; /* bits of enum gh_tier */
    uint8_t reserved[36];
    struct gh_gpu_share slot[GH_SLOTS];
    /* The agent's count at its last look. It writes these words by themselves, seq stands still meanwhile. */
    uint64_t counted_until; /* CLOCK_MONOTONIC up to which it holds; 0: nobody counts */
    uint8_t
        contexts[GH_SLOTS]; /* most processes of the container in that slot that can have work on the GPU, 1 at least */
};

#pragma GCC diagnostic pop

_Static_assert(sizeof(struct gh_share) == 12, "share");
_Static_assert(sizeof(struct gh_gpu_share) == 32, "GPU share");
_Static_assert(sizeof(struct gh_gpu_page) == 128 + 32 * GH_SLOTS + 8 + GH_SLOTS, "head, slots and counts");
_Static_assert(sizeof(struct gh_gpu_page) <= GH_GPU_PAGE_SIZE, "fits one page");

#endif
