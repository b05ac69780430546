/* Who we are, and whether another process of the container still lives. Raw system calls: they are no cancellation
 * points, so a cancelled thread cannot leave a sweep half done. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"

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

/* proc_pid_stat(5): pid (comm) state ...; comm may hold blanks and brackets, so count from the last bracket. */
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

void gh_identify(struct gh_state *st) {
    struct stat_line self = {0};
    uint64_t pid = (uint64_t)syscall(SYS_getpid);
    /* Without /proc, or with the /proc of another pid namespace: by pid alone. */
    bool known = read_stat("/proc/self/stat", &self) && self.pid == pid;
    st->me = gh_owner(pid, pid_namespace(), known ? self.start : 0);
    st->stack = known ? self.stack : 0;
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

bool gh_alive(const struct gh_state *st, unsigned slot, uint64_t owner, uint64_t stack) {
    char path[32];
    struct stat_line now;
    uint32_t pid = gh_owner_pid(owner);
    if (!pid)
        return false;
    if (gh_owner_ns(owner) != gh_owner_ns(st->me))
        return gh_slot_locked(slot); /* a nested pid namespace: its numbers say nothing here */
    if (syscall(SYS_kill, pid, 0) && errno == ESRCH)
        return false;
    stat_path(path, pid);
    if (!gh_owner_start(st->me) || !read_stat(path, &now))
        return true; /* there, but hidden (hidepid): believe it */
    if (gh_owner_start(owner) && gh_owner_start(owner) != (now.start & 0x7fffffff))
        return false; /* its number was given to another process */
    if ((now.status == 'Z' || now.status == 'X') && now.threads <= 1)
        return false; /* its memory is gone, only its exit status is left */
    if (!(owner & GH_OWNER_SWEEP) && stack && now.stack > 1 && now.stack != stack)
        return false; /* another program since exec */
    return true;
}
