/* Tells if a descriptor that a driver handed out is still open somewhere: in this process, in one that it was sent to or
 * inherited by, in any container, or on its way in a socket.
 *
 * The kernel knows. A lock of the kind F_OFD_SETLK belongs to the open file itself and goes when its last descriptor is
 * closed, whoever has that. So we lock one byte, which nobody else uses, through the descriptor, and look through another
 * open file of the same device or inode whether the lock is still there. */
#ifndef GPU_HOOK_DESCRIPTOR_H
#define GPU_HOOK_DESCRIPTOR_H

#include "memory/open_file.h"
#include "memory/poll_watch.h"
#include "process/state.h"

struct observer;
struct observers { /* of one process; all zero: none yet */
    struct gh_lock lock;
    struct observer *first;
    struct poll_set polled; /* for files that cannot be opened again */
};
struct watch { /* of one open file */
    struct watch *next;
    struct observer *by; /* NULL: it is in the set of polled files that has this mark */
    uint64_t mark;
    int64_t byte;
};

/* Begins to watch what the descriptor refers to, by a lock on this byte; 0: on a new one. NULL: not possible. */
struct watch *watch_open_file(struct observers *all, int fd, uint64_t byte);
/* The byte that a descriptor's open file has locked so, in whatever process; 0: none. */
uint64_t watched_byte(int fd);
/* Another watch of the same open file. NULL: no memory. */
struct watch *watch_copy(struct observers *all, const struct watch *w);
/* True if its last descriptor has certainly been closed. */
bool watch_says_closed(struct observers *all, const struct watch *w);
void watch_end(struct observers *all, struct watch *w);

#endif
