/* The policy page tells the shim what its container may use. gpu-hook writes it on the host; containers only read it.
 * One page of 4096 bytes, little-endian, naturally aligned. Twin: oci_hook/core/policy_page.py; a test compares them.
 * seq is a seqlock: it is odd while the page is written, and a reader uses what it read only if seq was the same even
 * number before and after. With an unknown version, a short file or a bad magic the shim refuses device memory. */
#ifndef GPU_HOOK_POLICY_PAGE_H
#define GPU_HOOK_POLICY_PAGE_H

#include <stdint.h>

#define GH_POLICY_MAGIC 0x31594c4f50484755ull /* "UGHPOLY1" */
#define GH_POLICY_VERSION 1u
#define GH_POLICY_SIZE 4096u
#define GH_POLICY_GPUS 16

enum gh_policy { GH_BEST_EFFORT = 0, GH_FIXED_SHARE = 1, GH_BURST_SHARE = 2 };
enum gh_class { GH_OFFLINE = 0, GH_DEFAULT = 1, GH_ONLINE = 2 };
enum gh_gpu_flags { GH_GPU_WHOLE = 1u << 0 /* no limit is enforced on this GPU */ };

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* other programs read the file, so every byte has a name */

struct gh_gpu_policy {
    char uuid[48];           /* "GPU-xxxxxxxx-...", NUL-padded */
    uint64_t memory_limit;   /* bytes */
    uint64_t memory_total;   /* bytes of the physical GPU; only shown */
    uint32_t compute;        /* guaranteed per cent of the GPU's time; 0 none */
    uint32_t compute_limit;  /* most per cent of the GPU's time */
    uint32_t flags;          /* enum gh_gpu_flags */
    uint32_t minor;          /* /dev/nvidiaN */
    uint64_t context_bytes;  /* memory that a CUDA context takes on this GPU; 0 not known */
    uint32_t slot;           /* 1 + the container's slot on the GPU page; 0: the GPU's time is not shared */
    uint32_t block_bytes;    /* in which the driver takes linear memory from this GPU; 0: 512 */
    uint64_t memory_request; /* bytes of the limit that are always there; what is above may be lent. 0: all are */
    uint8_t reserved[24];
};

struct gh_policy_page {
    uint64_t magic;
    uint32_t version;
    uint32_t size; /* GH_POLICY_SIZE */
    uint32_t seq;
    uint32_t ngpus;       /* 0..GH_POLICY_GPUS */
    uint32_t policy;      /* enum gh_policy */
    uint32_t class_;      /* enum gh_class */
    char key[40];         /* the grant's key, NUL-padded */
    uint32_t suspended;   /* not 0: its memory is in the host's, or on its way; what would take device memory waits */
    uint32_t memory_wait; /* seconds that an allocation within its limit waits for room; 0: it fails at once */
    uint64_t hold_until;  /* ns of CLOCK_MONOTONIC: until then what would take device memory waits, too, since another
                             container's memory comes back; 0: nothing does */
    uint8_t reserved[40];
    struct gh_gpu_policy gpu[GH_POLICY_GPUS];
};

#pragma GCC diagnostic pop

_Static_assert(sizeof(struct gh_gpu_policy) == 128, "GPU record");
_Static_assert(sizeof(struct gh_policy_page) == 128 + 128 * GH_POLICY_GPUS, "page head and GPUs");
_Static_assert(sizeof(struct gh_policy_page) <= GH_POLICY_SIZE, "fits one page");

#endif
