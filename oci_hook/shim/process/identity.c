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
    uint64_t pid, threads, start;
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
        else if (i == 22) {
            out->start = number(field);
            return true;
        }
    }
    return false;
}

uint64_t gh_identify(void) {
    struct stat_line self = {0};
    uint32_t pid = (uint32_t)syscall(SYS_getpid);
    /* Without /proc, or with the /proc of another pid namespace, the pid alone identifies us. */
    bool known = read_stat("/proc/self/stat", &self) && self.pid == pid;
    return gh_owner(pid, known ? (uint32_t)self.start : 0);
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

bool gh_runs_here(uint64_t owner) {
    char path[32];
    struct stat_line now;
    uint32_t pid = gh_owner_pid(owner);
    if (!pid || (syscall(SYS_kill, pid, 0) && errno == ESRCH))
        return false;
    stat_path(path, pid);
    if (!gh_owner_start(owner) || !read_stat(path, &now))
        return true; /* the pid exists, but its /proc is hidden from us (hidepid) */
    bool zombie = (now.status == 'Z' || now.status == 'X') && now.threads <= 1;
    return gh_owner_start(owner) == (uint32_t)now.start && !zombie;
}
