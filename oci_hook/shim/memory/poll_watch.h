/* Watches open files that cannot be opened again, such as a DMA-BUF. A set of epoll(7) keeps no file open, and the kernel
 * removes a file from it when the file's last descriptor, wherever it is, has been closed. What is in the set is told by
 * /proc/self/fdinfo (Linux 3.8). */
#ifndef GPU_HOOK_POLL_WATCH_H
#define GPU_HOOK_POLL_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct poll_set { /* of one process; all zero: none yet */
    int fd, mark; /* the set; a file that is always in it, so that a closed set is noticed */
    uint64_t mark_id;
};

/* Adds the file. False: it cannot be polled, or no descriptor is free. */
bool poll_watch(struct poll_set *set, int fd, uint64_t id);
/* 1: the file is still open somewhere; 0: its last descriptor was closed; -1: not known. */
int poll_watched(const struct poll_set *set, uint64_t id);

#endif
