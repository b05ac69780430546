#define _GNU_SOURCE
#include "account/slot_lock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account/account_file.h"
#include "pages/layout.h"

#define OFD_GETLK 36 /* Linux 3.15; not in the headers of old C libraries */
#define OFD_SETLK 37
#define KEPT 4096 /* bytes; never read */
#define HIGH 100  /* some programs rely on low descriptor numbers */

int gh_slot_locks_open(const struct gh_state *st) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_ACCOUNT_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    struct stat file;
    if (fd >= 0 && (fstat(fd, &file) || file.st_dev != st->account_device || file.st_ino != st->account_inode)) {
        gh_slot_locks_close(fd);
        return -1;
    }
    return fd;
}

void gh_slot_locks_close(int fd) {
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static struct flock byte(short type, unsigned slot) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
}

bool gh_slot_lock(int fd, unsigned slot) {
    struct flock lock = byte(F_WRLCK, slot);
    return fd >= 0 && !syscall(SYS_fcntl, fd, OFD_SETLK, &lock);
}

bool gh_slot_share(int fd, unsigned slot) {
    struct flock lock = byte(F_RDLCK, slot);
    return fd >= 0 && !syscall(SYS_fcntl, fd, OFD_SETLK, &lock);
}

void gh_slot_unlock(int fd, unsigned slot) {
    struct flock lock = byte(F_UNLCK, slot);
    syscall(SYS_fcntl, fd, OFD_SETLK, &lock);
}

bool gh_slot_locked(int fd, unsigned slot) {
    struct flock lock = byte(F_WRLCK, slot);
    return fd < 0 || syscall(SYS_fcntl, fd, OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

void *gh_slot_locks_keep(int fd, int *kept) {
    void *p = mmap(NULL, KEPT, PROT_NONE, MAP_SHARED, fd, 0);
    *kept = -1;
    /* A child may share our descriptors and not our memory (CLONE_FILES): then the driver's files live on by their
     * descriptors, so the lock has one, too. If the program closes it, the mapping remains. */
    if (p != MAP_FAILED)
        *kept = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH);
    gh_slot_locks_close(fd);
    return p == MAP_FAILED ? NULL : p;
}
