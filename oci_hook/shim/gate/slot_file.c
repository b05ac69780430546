#define _GNU_SOURCE
#include "gate/slot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ASK_PART 100
#define HIGH 100 /* lowest descriptor that we use: some programs rely on low ones */

uint64_t slot_file_again(uint64_t since, uint64_t now, uint64_t at_least) {
    uint64_t pause = (now - since) * ASK_PART;
    return now + (pause > at_least ? pause : at_least);
}

char *slot_file_number(char *to, unsigned n, unsigned digits) {
    for (unsigned i = digits; i--; n /= 10)
        to[i] = (char)('0' + n % 10);
    return to + digits;
}

struct slot_file slot_file_open(const char *path, int flags, struct stat *st) {
    const int always = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags | always, 0666);
    if (fd < 0)
        return (struct slot_file){0};
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, HIGH);
    if (high >= 0) {
        syscall(SYS_close, fd);
        fd = high;
    }
    if (!fstat(fd, st) && S_ISREG(st->st_mode))
        return (struct slot_file){.fd = fd + 1, .inode = st->st_ino, .device = st->st_dev};
    syscall(SYS_close, fd);
    errno = EINVAL;
    return (struct slot_file){0};
}

bool slot_file_is_ours(const struct slot_file *file) {
    struct stat st;
    return file->fd && !fstat(file->fd - 1, &st) && st.st_ino == file->inode && st.st_dev == file->device;
}

void slot_file_close(struct slot_file *file) {
    if (slot_file_is_ours(file))
        syscall(SYS_close, file->fd - 1);
    *file = (struct slot_file){0};
}

enum slot_locked slot_file_lock(const struct slot_file *file, off_t at) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (!file->fd || !slot_file_is_ours(file))
        return SLOT_NO_LOCKS;
    if (!syscall(SYS_fcntl, file->fd - 1, F_SETLK, &lock))
        return SLOT_LOCKED;
    return errno == EAGAIN || errno == EACCES ? SLOT_BUSY : SLOT_NO_LOCKS;
}

void slot_file_unlock(const struct slot_file *file, off_t at) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    if (slot_file_is_ours(file))
        syscall(SYS_fcntl, file->fd - 1, F_SETLK, &lock);
}

bool slot_file_write_locked(const struct slot_file *file, off_t at, off_t length) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = length};
    return syscall(SYS_fcntl, file->fd - 1, F_GETLK, &lock) || lock.l_type != F_UNLCK;
}

void slot_sleep(const uint32_t *word, uint32_t seen, uint64_t ns) {
    struct timespec t = {(time_t)(ns / GH_S), (long)(ns % GH_S)};
    if (word)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
    else
        syscall(SYS_nanosleep, &t, NULL);
}
