/* The slot file: what one container tells the others on its GPU. Its own processes write it; the others read it and
 * trust none of it (gate/slot_peer.c, gh_slot_view). GH_SLOT_FILE_SIZE bytes: a head that the container's processes share,
 * and a record for each process. A file of zeros was never used. Little-endian, naturally aligned. Times and durations
 * are CLOCK_MONOTONIC nanoseconds divided by the GPU page's time_scale. docs/internals/compute-gate.md */
#ifndef GPU_HOOK_SLOT_PAGE_H
#define GPU_HOOK_SLOT_PAGE_H

#include <stddef.h>

#include "pages/gpu_page.h"

#define GH_SLOT_MAGIC 0x31544f4c53504847ull /* "GHPSLOT1" */
#define GH_SLOT_VERSION 2u
#define GH_SLOT_PROCESSES 112u
#define GH_LONG_OPEN 1ull          /* its process does not show it yet, or it is unknown and in flight */
#define GH_LONG_UNKNOWN 2ull       /* its cost is unknown */
#define GH_WAITS 16u               /* bins of waits at the gate: bin i counts waits below GH_WAIT_FIRST << i */
#define GH_WAIT_FIRST (64 * GH_US) /* the last bin counts all longer ones */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded" /* other programs read the file, so every byte has a name */

struct gh_slot_head {
    uint64_t magic;
    uint32_t version;
    uint32_t top;        /* number of process records ever used; those after it are empty */
    uint64_t generation; /* the last number given to the owner of a process record */
    uint32_t word;       /* futex word (works on a read-only mapping): changes when others may go on */
    uint32_t linger;     /* ns */
    uint64_t v;
    uint64_t charged; /* GPU time charged so far */
    uint64_t credit;  /* a capped container's token bucket, as the time at which it would have been empty */
    uint64_t epoch, start, end, probe_until;
    uint64_t active_at, idle_since, woke_at;
    uint32_t duty; /* ppm */
    uint8_t saturated;
    uint8_t mode;    /* enum gh_mode of the last decision */
    uint8_t mode_by; /* 1 + the slot that it waits for; 0 none */
    uint8_t counts;  /* 1: the fields wanted, waited and waits are counted */
    uint64_t mode_since;
    uint64_t preempt_bound;   /* learned: the longest time from a freeze until its work has left the GPU */
    uint64_t ignorings;       /* how often a neighbour cost it more than its part, and was ignored from then on */
    uint64_t wanted;          /* for how long it had work in flight or a launch at the gate */
    uint64_t wanted_at;       /* up to when `wanted` is counted */
    uint64_t waited;          /* sum of all waits at the gate, in real time */
    uint64_t waits[GH_WAITS]; /* launches that waited, by real time; those that did not wait are not counted */
    /* For how long the container in slot i held this one at the gate, with nothing of its own in flight. It was this
     * container's gate that decided so, by its own clock: what the other one writes has no part in it. */
    uint64_t held_for[GH_SLOTS];
    uint64_t held_at;               /* up to when held_for is counted */
    uint64_t asked_at, asked, used; /* `wanted` and `charged` at the last count of `want` */
    /* in what part of the time, less that in held_for, it had work or a launch at the gate: ppm; 0: not known */
    uint32_t want;
    uint32_t reserved0;
    uint64_t asked_held;    /* the sum of `held_for` at the last count of `want` */
    uint64_t burst;         /* GPU time that it has at a time */
    uint64_t burst_charged; /* `charged` when that was counted; 0: not yet */
    /* Long commands, which its processes launch one by one while neighbours may come: */
    uint64_t long_at;    /* time of the last launch, GH_LONG_OPEN and GH_LONG_UNKNOWN in place of its last bits */
    uint64_t long_came;  /* of all that wait to launch one: when the first came to the gate */
    uint64_t long_waits; /* when its process last said that it waits */
    uint64_t reserved1[16];
};

struct gh_slot_process {
    /* a generation number; 0 free. The process holds a write lock on the byte whose offset is the record's number */
    uint64_t owner;
    uint64_t launched, done;
    uint64_t done_at, heartbeat;
    uint64_t residue; /* estimated GPU time until its launched work is done, as of the heartbeat */
    uint64_t
        uncharged;    /* estimated GPU time of launched commands that v does not contain yet; unknown ones count as 0 */
    uint32_t pid;     /* in the process's own pid namespace; only shown */
    uint16_t held;    /* threads that wait at the gate for their turn; other containers take these into account */
    uint8_t waiting;  /* all threads at the gate, whatever they wait for; 255: so many or more */
    uint8_t withheld; /* 1: read locks of others keep it from its lock: a missing lock proves nothing */
};

struct gh_slot_page {
    struct gh_slot_head head;
    struct gh_slot_process process[GH_SLOT_PROCESSES];
};

#pragma GCC diagnostic pop

_Static_assert(sizeof(struct gh_slot_head) == 1024 && sizeof(struct gh_slot_process) == 64, "head and process records");
_Static_assert(sizeof(struct gh_slot_page) == GH_SLOT_FILE_SIZE, "slot file");

/* The slot that these bytes describe. Anything but GH_SLOT_FILE_SIZE bytes with magic and version is an empty slot.
 * A process without a sign of life for `stale` ns counts as having no work. *contexts: how many processes have work.
 * Pure. */
struct gh_slot gh_slot_view(const void *bytes, size_t length, uint64_t now, uint64_t stale, unsigned *contexts);

#endif
