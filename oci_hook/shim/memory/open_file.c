#define _GNU_SOURCE
#include "memory/open_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIGH 100 /* lowest descriptor that we use: some programs rely on low ones */
static _Atomic int lowest = HIGH;

uint64_t inode_of(int fd) {
    struct stat s;
    if (fstat(fd, &s))
        return 0;
    uint64_t id = (uint64_t)s.st_dev * 0x9e3779b97f4a7c15ull ^ (uint64_t)s.st_ino ^ (uint64_t)s.st_rdev << 40;
    return id ? id : 1;
}

/* Raises the process's limit once we have half of the numbers up to it: our next ones are above the old limit, and the other
 * half stays the program's. */
static bool raise_limit(int high) {
    struct rlimit now;
    int error = errno;
    bool none = high < 0 && error == EMFILE;
    if ((high < 0 && !none) || getrlimit(RLIMIT_NOFILE, &now) || now.rlim_cur >= now.rlim_max)
        return false;
    rlim_t before = now.rlim_cur;
    if (!none && (rlim_t)high < (before + (rlim_t)atomic_load(&lowest)) / 2)
        return false;
    now.rlim_cur = before < now.rlim_max / 2 ? 2 * before : now.rlim_max;
    bool raised = !setrlimit(RLIMIT_NOFILE, &now);
    if (raised)
        atomic_store(&lowest, (int)before);
    errno = error;
    return raised;
}

int hold_open_file(int fd) {
    int high = fcntl(fd, F_DUPFD_CLOEXEC, atomic_load(&lowest));
    if (high < 0 && errno == EINVAL) /* the process may not have so many */
        high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (raise_limit(high) && high < 0)
        high = fcntl(fd, F_DUPFD_CLOEXEC, atomic_load(&lowest));
    if (high < 0 && errno == EMFILE) /* rather the program's half than none */
        high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    return high;
}

void let_go_of_open_file(int fd, uint64_t inode) {
    if (inode_of(fd) == inode)
        syscall(SYS_close, fd);
}
