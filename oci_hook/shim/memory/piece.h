/* Pieces of memory from cuMemCreate, and linear memory that was exported. A piece exists as long as a handle or a mapping
 * of it, or an open descriptor by which it was exported, so it is charged until the last of these is gone. Whoever
 * imports a piece keeps a descriptor of the export open for as long as he uses it: so one look at the descriptors tells
 * the maker of all importers, in any process and container. */
#ifndef GPU_HOOK_PIECE_H
#define GPU_HOOK_PIECE_H

#include "account/account.h"
#include "driver/cuda.h"
#include "memory/descriptor.h"
#include "process/note.h"

struct bond { /* memory that is bound to a place in a multicast object or a logical endpoint, which keeps it */
    struct piece *memory;
    unsigned endpoint; /* number of the logical endpoint */
    int gpu;           /* on which; NO_GPU: not known, so no unbinding ends it */
    uint64_t at, size, made;
    struct bond *next;
};

struct piece {
    uint64_t units; /* 0: imported, or host memory, or a shared slot has them */
    unsigned gpu;
    unsigned slot;          /* the shared slot that is charged for it, or that we hold for an import; 0 none */
    uint64_t known;         /* what others find that slot by */
    unsigned handles, maps; /* how many of each exist; a bond counts as a mapping */
    unsigned calls;         /* running calls that may add or remove some */
    uint64_t touched;       /* clock of the last mapping, export or other use by a handle value */
    bool permanent;         /* charged until the process ends */
    bool imported;
    int descriptor; /* of an imported piece: ours, which keeps its maker charged */
    uint64_t inode; /* of that */
    struct watch *exports;
    struct bond *bonds; /* of a multicast object, which is a piece without memory */
    struct piece *next; /* that waits for its exports to be closed */
};

struct handle_uses { /* how often the driver has returned a handle value */
    struct piece *piece;
    unsigned times;
};

struct mapping {
    uint64_t at, size, made;
    struct piece *piece;
};

/* A driver may give the value of a released handle to the next piece at once. So a thread that maps by a value while
 * others release and create may map another piece than we think. The value is then noted as STRANGE, with the clock, and
 * a piece that the driver made with this value meanwhile stays charged until the process ends. Programs that do not race
 * for one handle never meet this. */
struct vmm {
    struct gh_lock lock;
    uint64_t clock; /* numbers mappings and the like, to tell those made during a call */
    struct mapping *map;
    size_t count, room;
    struct piece *waiting;  /* pieces that nobody here uses, for their exports to be closed */
    _Atomic uint32_t waits; /* how many */
    _Atomic int64_t looked_ms;
    struct bond *endpoints; /* bonds of logical endpoints */
    struct observers observers;
};

struct vmm *vmm_of(struct gh_state *st);
struct vmm *vmm_if_any(struct gh_state *st);
uint64_t vmm_clock(struct vmm *v);

/* Releases pieces whose exports have been closed, and memory that a stream has freed. True: there were some. */
bool pieces_reclaim(struct gh_state *st);
/* The same, at most so often. */
#define RECLAIM_EVERY_MS 100
void pieces_reclaim_now_and_then(struct gh_state *st);

/* Linear memory that share_linear made a piece was freed. All that was allocated in a context was, and what was opened there
 * by IPC handles is closed. */
void shared_freed(struct gh_state *st, uint64_t address);
void shared_lost(struct gh_state *st, unsigned context);

/* Notes a new piece with one handle. began: the clock before the driver made it. NULL: no memory for the note. */
struct piece *note_piece(struct gh_state *st, struct vmm *v, CUmemHandle handle, struct piece like, uint64_t began);

/* A call that may add or remove handles or mappings of a piece: the piece stays while it runs. */
struct piece_call {
    struct gh_state *st;
    struct vmm *v;
    struct piece *piece; /* NULL: not known */
    uint64_t began;
};
struct piece_call begin_by_handle(CUmemHandle handle);

/* The rest needs the lock. */

void hold(struct piece_call *c, struct piece *p);
void let_go(const struct piece_call *c);
/* The piece that a handle value stands for, as far as we know; that is mapped at an address. */
struct piece *piece_of(struct gh_state *st, CUmemHandle handle);
struct piece *piece_at(const struct vmm *v, uint64_t address);
/* The driver has returned this handle value for the piece once more; it has released it once. */
bool add_use(struct gh_state *st, CUmemHandle handle, struct piece *p);
void release_use(const struct piece_call *c, CUmemHandle handle);
/* The call has used the piece by this handle value: marks the value as strange if it does not stand for that piece. */
void used_by_handle(const struct piece_call *c, CUmemHandle handle);
/* A call begins that uses a value that we do not know. */
void use_unknown(const struct piece_call *c, CUmemHandle handle);
/* Makes the linear memory at an address a piece, whose one handle is the allocation. NULL: there is none, or no memory. */
struct piece *share_linear(struct gh_state *st, uint64_t address);
/* Others may now have the piece, and know it by this: has a slot of its own charged for it, so that it stays charged while
 * any of them holds it. */
void give_slot(struct gh_state *st, struct piece *p, uint64_t known);
/* Adds a watch of a new export, and forgets those that were closed. */
void note_export(const struct piece_call *c, struct watch *w);
void note_map(struct vmm *v, struct piece *p, uint64_t at, uint64_t bytes);
/* began: the clock before the driver's call. What another thread has mapped there since then has a higher number. */
void note_unmap(struct gh_state *st, struct vmm *v, uint64_t at, uint64_t bytes, uint64_t began);
/* The memory is bound to an object with this list of bonds. like: where. */
void note_bond(struct vmm *v, struct bond **list, struct bond like);
/* All bonds in this place that were made before `began` have gone. */
void note_unbind(struct gh_state *st, struct vmm *v, struct bond **list, struct bond where, uint64_t began);

#endif
