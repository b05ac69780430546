#define _GNU_SOURCE
#include "account/slot_lock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account/account_file.h"
#include "pages/layout.h"

#define OFD_GETLK 36 /* Linux 3.15; not in the headers of old C libraries */
#define OFD_SETLK 37
#define SECOND GH_ACCOUNT_SLOTS /* a slot's second byte comes so many after its first one */
#define HIGH 100                /* some programs rely on low descriptor numbers */
#define LOW 0x10000             /* vm.mmap_min_addr, as most systems have it */
#define LOW_END 0x1010000
#define FIXED_NOREPLACE 0x100000 /* Linux 4.17; before, the address is a hint */

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

static bool set(int fd, short type, unsigned at) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fd >= 0 && !syscall(SYS_fcntl, fd, OFD_SETLK, &lock);
}

bool gh_slot_locks_work(int fd) { return set(fd, F_UNLCK, 0); } /* slot 0 is nobody's */

/* The first byte's holder is the only one who may take the second: who has both, was alone. */
bool gh_slot_lock(int fd, unsigned slot) {
    if (!set(fd, F_WRLCK, slot))
        return false;
    if (set(fd, F_WRLCK, slot + SECOND))
        return true;
    set(fd, F_UNLCK, slot);
    return false;
}

void gh_slot_unlock(int fd, unsigned slot) {
    set(fd, F_UNLCK, slot + SECOND);
    set(fd, F_UNLCK, slot);
}

static bool is_set(int fd, unsigned at) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fd < 0 || syscall(SYS_fcntl, fd, OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

bool gh_slot_locked(int fd, unsigned slot) { return is_set(fd, slot) || is_set(fd, slot + SECOND); }

/* ---- keeping the locks ---- */

static int to_high(int fd) {
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH);
    if (high < 0)
        return fd;
    gh_slot_locks_close(fd);
    return high;
}

/* A reference to the open file waits in the queue of a socket that nobody reads. The kernel releases what a table of
 * descriptors held in one round, and what these files held in turn in the next one. Where that is impossible, it may release
 * fd's file before others of its table. */
static void queue_reference(int fd) {
    int pair[2];
    char text = 0;
    struct iovec one = {&text, 1};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof fd)];
    } control = {.bytes = {0}};
    struct msghdr message = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.head.cmsg_len = CMSG_LEN(sizeof fd);
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    if (syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return;
    bool queued = syscall(SYS_sendmsg, pair[0], &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
    gh_slot_locks_close(pair[0]);
    if (queued)
        to_high(pair[1]);
    else
        gh_slot_locks_close(pair[1]);
}

int gh_slot_locks_keep(int fd) {
    queue_reference(fd);
    return to_high(fd);
}

int gh_slot_locks_file(struct gh_state *st) {
    struct stat file;
    if (st->slot_fd > 0 && !fstat(st->slot_fd, &file) && file.st_dev == st->account_device &&
        file.st_ino == st->account_inode)
        return st->slot_fd;
    int fd = gh_slot_locks_open(st);
    if (fd >= 0)
        st->slot_fd = gh_slot_locks_keep(fd);
    return fd < 0 ? -1 : st->slot_fd;
}

/* A place below all other mappings: the kernel lets go of these in the order of their addresses, and releases last what it
 * let go of first. It takes a hint where it can, raised to the lowest address that it allows. Programs that run others
 * (Wine) have the first megabyte. */
static void *map_low(int fd) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap((void *)page, page, PROT_NONE, MAP_SHARED, fd, 0);
    for (uintptr_t at = LOW; p != MAP_FAILED && (uintptr_t)p > at && at < LOW_END; at += page) {
        munmap(p, page);
        p = mmap((void *)at, page, PROT_NONE, MAP_SHARED | FIXED_NOREPLACE, fd, 0);
        if (p == MAP_FAILED) /* something is there, or vm.mmap_min_addr is above */
            p = mmap((void *)(at + page), page, PROT_NONE, MAP_SHARED, fd, 0);
    }
    return p;
}

/* The lock of the slot's second byte moves from fd to an open file of its own, which a mapping alone keeps. */
static void *map_second(const struct gh_state *st, int fd, unsigned slot, short type) {
    void *p = MAP_FAILED;
    set(fd, F_UNLCK, slot + SECOND);
    int own = gh_slot_locks_open(st);
    if (set(own, type, slot + SECOND))
        p = map_low(own);
    gh_slot_locks_close(own);
    return p == MAP_FAILED ? NULL : p;
}

void *gh_slot_keep(const struct gh_state *st, int fd, unsigned slot) { return map_second(st, fd, slot, F_WRLCK); }

void *gh_slot_share(const struct gh_state *st, int fd, unsigned slot) {
    void *p = set(fd, F_RDLCK, slot) ? map_second(st, fd, slot, F_RDLCK) : NULL;
    if (!p)
        gh_slot_unlock(fd, slot);
    return p;
}

void gh_slot_unshare(int fd, unsigned slot, void *kept) {
    munmap(kept, (size_t)sysconf(_SC_PAGESIZE));
    gh_slot_unlock(fd, slot);
}
