/* Slot files and their locks, as files: other containers can put read locks and leases on them, and decide how long a
 * test of a lock takes. */
#ifndef GPU_HOOK_SLOT_FILE_H
#define GPU_HOOK_SLOT_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "pages/slot_page.h"

#define SLOT_RETRY_EVERY (100 * GH_MS) /* real time until a missing file or lock is tried again */

/* A descriptor of ours. The program may have closed it, and opened another file with the same number. */
struct slot_file {
    int fd; /* 1 + descriptor; 0 none */
    uint64_t inode, device;
};

/* Opens a regular file without waiting: another container can have a lease on any file that it can open. fd 0: failed,
 * see errno. */
struct slot_file slot_file_open(const char *path, int flags, struct stat *st);
void slot_file_close(struct slot_file *file);
bool slot_file_is_ours(const struct slot_file *file);

enum slot_locked { SLOT_LOCKED, SLOT_BUSY, SLOT_NO_LOCKS };
/* A traditional record lock: the kernel drops it when the process exits or execs, and a forked child has none. */
enum slot_locked slot_file_lock(const struct slot_file *file, off_t at);
void slot_file_unlock(const struct slot_file *file, off_t at);
/* True if another process holds a write lock there. A write lock needs a file open for writing, and only its own
 * container can open a slot file for writing. Read locks can be anybody's, so they prove nothing. In doubt: yes. */
bool slot_file_write_locked(const struct slot_file *file, off_t at, off_t length);

/* When something that took from `since` to `now` may be done again, so that it takes at most a hundredth of the time. */
uint64_t slot_file_again(uint64_t since, uint64_t now, uint64_t at_least);
/* Writes n in decimal with that many digits, and returns the end. */
char *slot_file_number(char *to, unsigned n, unsigned digits);
/* Sleeps until the word differs from `seen`, a thread wakes us, or `ns` are over. word NULL: only sleeps. */
void slot_sleep(const uint32_t *word, uint32_t seen, uint64_t ns);

#endif
