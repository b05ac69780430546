/* The slot file: how one container shows itself to the others on its GPU. Written by the container's own processes,
 * read by everybody else and trusted by nobody (slot.c, gh_slot_view). GH_SLOT_FILE_SIZE bytes: a head that the
 * container's processes share, and a sub-slot for each of them. All zero: never used. Little-endian, naturally aligned.
 * Times are CLOCK_MONOTONIC nanoseconds divided by the GPU page's time_scale, as are durations. docs/internals/compute-gate.md */
#ifndef GPU_HOOK_SLOT_PAGE_H
#define GPU_HOOK_SLOT_PAGE_H

#include <stddef.h>

#include "pages/gpu_page.h"

#define GH_SLOT_MAGIC 0x31544f4c53504847ull /* "GHPSLOT1" */
#define GH_SLOT_VERSION 1u
#define GH_SUB_SLOTS 120u
#define GH_WAITS 16u               /* bins of waits at the gate: shorter than GH_WAIT_FIRST << i, */
#define GH_WAIT_FIRST (64 * GH_US) /* the last one any longer */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* others read the file: every byte of it has a name */

struct gh_slot_head {
    uint64_t magic;
    uint32_t version;
    uint32_t top;        /* sub-slots ever taken: nothing is beyond */
    uint64_t generation; /* the last number that a sub-slot's owner got */
    uint32_t word;       /* changes when somebody may go on: FUTEX_WAIT here, works on a read-only mapping */
    uint32_t linger;     /* ns */
    uint64_t v;
    uint64_t charged; /* GPU time charged so far */
    uint64_t credit;  /* a capped container's bucket: the time at which it would have been empty */
    uint64_t epoch, start, end, probe_until;
    uint64_t active_at, idle_since, woke_at;
    uint32_t duty; /* ppm */
    uint8_t saturated;
    uint8_t mode;    /* enum gh_mode of the last decision, */
    uint8_t mode_by; /* 1 + the slot that it waits for, 0 none */
    uint8_t counts;  /* 1: waits and wanted are counted */
    uint64_t mode_since;
    uint64_t preempt_bound; /* learned: after a freeze, this long at most until its work has left the GPU */
    uint64_t distrusts;     /* how often its equals held it too long */
    uint64_t wanted;        /* how long there was work in flight, or a launch at the gate */
    uint64_t wanted_at;     /* up to when that is counted */
    uint64_t waited;        /* at the gate, by all launches that were held there; this and the bins are in real time, */
    uint64_t waits[GH_WAITS]; /* whatever time_scale is. Launches that passed at once are in no bin */
    uint64_t reserved1[27];
};

struct gh_sub_slot {
    /* a generation number; 0 free. Its process holds a write lock on the byte of the sub-slot's number */
    uint64_t owner;
    uint64_t launched, done;
    uint64_t done_at, heartbeat;
    uint64_t residue;
    uint32_t held;     /* threads that wait at the gate for their turn: the others reckon with them */
    uint32_t pid;      /* as the process sees itself; for people */
    uint32_t waiting;  /* threads at the gate, also those that wait for a higher class, a cap or the end of a freeze */
    uint32_t withheld; /* 1: it has no lock, since others' read locks are in the way: no lock proves no death then */
};

struct gh_slot_page {
    struct gh_slot_head head;
    struct gh_sub_slot sub[GH_SUB_SLOTS];
};

#pragma GCC diagnostic pop

_Static_assert(sizeof(struct gh_slot_head) == 512 && sizeof(struct gh_sub_slot) == 64, "head and sub-slots");
_Static_assert(sizeof(struct gh_slot_page) == GH_SLOT_FILE_SIZE, "slot file");

/* What any bytes say, if they are a slot file: anything but GH_SLOT_FILE_SIZE bytes with magic and version is an
 * empty slot. Pure. A process that has shown no sign of life for `stale` has no work; contexts: how many have. */
struct gh_slot gh_slot_view(const void *bytes, size_t length, uint64_t now, uint64_t stale, unsigned *contexts);

#endif
