/* Raw system calls are no cancellation points, so a cancelled thread cannot leave a sweep half done. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pages/account_page.h"
#include "process/identity.h"

struct stat_line {
    char status;
    uint64_t pid, threads, start, stack;
};

static uint64_t number(const char *text) {
    uint64_t n = 0;
    while (*text >= '0' && *text <= '9')
        n = n * 10 + (uint64_t)(*text++ - '0');
    return n;
}

/* proc_pid_stat(5): pid (comm) state ...; comm may contain blanks and brackets, so count from the last bracket. */
static bool read_stat(const char *path, struct stat_line *out) {
    char line[1024];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return false;
    ssize_t n = (ssize_t)syscall(SYS_read, fd, line, sizeof line - 1);
    syscall(SYS_close, fd);
    if (n <= 0)
        return false;
    line[n] = 0;
    char *field = strrchr(line, ')');
    if (!field)
        return false;
    *out = (struct stat_line){.pid = number(line)};
    for (int i = 3; (field = strchr(field, ' ')); i++) {
        field++;
        if (i == 3)
            out->status = *field;
        else if (i == 20)
            out->threads = number(field);
        else if (i == 22)
            out->start = number(field);
        else if (i == 28) {
            out->stack = number(field);
            return true;
        }
    }
    return false;
}

static uint32_t pid_namespace(void) {
    char target[64];
    ssize_t n = (ssize_t)syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", target, sizeof target - 1);
    if (n <= 0)
        return 0;
    target[n] = 0;
    const char *inode = strchr(target, '[');
    uint64_t ino = inode ? number(inode + 1) : 0;
    return (uint32_t)(ino ^ ino >> 10 ^ ino >> 20) & 0x3ff;
}

struct gh_identity gh_identify(void) {
    struct stat_line self = {0};
    uint64_t pid = (uint64_t)syscall(SYS_getpid);
    /* Without /proc, or with the /proc of another pid namespace, the pid alone identifies us. */
    bool known = read_stat("/proc/self/stat", &self) && self.pid == pid;
    return (struct gh_identity){gh_owner(pid, pid_namespace(), known ? self.start : 0), known ? self.stack : 0};
}

static void stat_path(char *out, uint32_t pid) {
    char digits[12];
    int n = 0;
    do {
        digits[n++] = (char)('0' + pid % 10);
    } while (pid /= 10);
    out = strcpy(out, "/proc/") + 6;
    while (n)
        *out++ = digits[--n];
    strcpy(out, "/stat");
}

enum gh_life gh_life_of(const struct gh_identity *other, uint64_t own) {
    char path[32];
    struct stat_line now;
    uint32_t pid = gh_owner_pid(other->owner);
    if (!pid)
        return GH_ENDED;
    if (gh_owner_ns(other->owner) != gh_owner_ns(own))
        return GH_OTHER_NAMESPACE;
    if (syscall(SYS_kill, pid, 0) && errno == ESRCH)
        return GH_ENDED;
    stat_path(path, pid);
    if (!gh_owner_start(own) || !read_stat(path, &now))
        return GH_RUNS; /* the pid exists, but its /proc is hidden from us (hidepid) */
    if (gh_owner_start(other->owner) && gh_owner_start(other->owner) != (now.start & 0x7fffffff))
        return GH_ENDED; /* the kernel has given its pid to another process */
    if ((now.status == 'Z' || now.status == 'X') && now.threads <= 1)
        return GH_ENDED; /* the process's memory is gone, only its exit status is left */
    if (!(other->owner & GH_OWNER_SWEEP) && other->stack && now.stack > 1 && now.stack != other->stack)
        return GH_ENDED; /* the process has executed another program since */
    return GH_RUNS;
}
