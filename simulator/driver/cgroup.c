/* Which cgroup (version 2) a process is in, and which one a directory is, by numbers: a cgroup's number is its directory's
 * inode number, and no other cgroup ever has it again. */
#define _GNU_SOURCE
#include "gpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LONGEST 4096
#define TOP 1ull                     /* number of the hierarchy's top */
#define INITIAL_NAMESPACE 4026531835 /* the inode number of /proc/PID/ns/cgroup in which paths are whole */

/* --- numbers --- */

struct pidfd_info { /* linux/pidfd.h, Linux 6.13 */
    uint64_t mask, cgroup;
    uint32_t ids[12];
};
#define GET_INFO _IOWR(0xff, 11, struct pidfd_info)
#define PIDFD_OPEN 434   /* Linux 5.3 */
#define INFO_CGROUP 4ull /* PIDFD_INFO_CGROUPID */

/* 0: the kernel does not say. */
static uint64_t my_number(void) {
    int fd = (int)syscall(PIDFD_OPEN, getpid(), 0);
    struct pidfd_info info = {.mask = INFO_CGROUP};
    bool said = fd >= 0 && !ioctl(fd, GET_INFO, &info) && info.mask & INFO_CGROUP;
    if (fd >= 0)
        close(fd);
    return said ? info.cgroup : 0;
}

/* 0: it is no cgroup's directory. */
static uint64_t number_of(const char *directory) {
    struct stat st;
    struct statfs fs;
    int fd = open(directory, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool is = fd >= 0 && !fstatfs(fd, &fs) && fs.f_type == 0x63677270 /* CGROUP2_SUPER_MAGIC */ && !fstat(fd, &st);
    if (fd >= 0)
        close(fd);
    return is ? st.st_ino : 0;
}

bool cgroup_mounted(void) { return number_of(GPU_CGROUP) != 0; }
bool cgroup_all_mounted(void) { return number_of(GPU_CGROUP) == TOP; }

uint64_t cgroup_number(const char *path) {
    char directory[LONGEST];
    int n = snprintf(directory, sizeof directory, "%s%s", GPU_CGROUP, path);
    return n > 0 && n < (int)sizeof directory ? number_of(directory) : 0;
}

/* FNV-1a. */
static uint64_t hash(const char *text) {
    uint64_t h = 14695981039346656037ull;
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 1099511628211ull;
    return h ? h : 1;
}

/* Fills in the numbers of a cgroup and of those above it, up to the mount's top. directory: mount + path; cut here. False:
 * there are more than GPU_DEPTH. */
static bool climb(char *directory, size_t mount, struct gpu_home *out) {
    for (int i = 0;; i++) {
        uint64_t number = number_of(directory);
        char *slash = strrchr(directory, '/');
        if (!number)
            return true;
        if (i == GPU_DEPTH)
            return false;
        out->id[i] = number;
        if (strlen(directory) <= mount || !slash)
            return true;
        *(slash < directory + mount ? directory + mount : slash) = 0;
    }
}

/* --- a process's own --- */

/* Its path as /proc/self/cgroup has it, which begins at its cgroup namespace. */
static bool my_path(char *path, size_t size) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    bool found = false;
    while (f && !found && fgets(path, (int)size, f))
        if (!strncmp(path, "0::/", 4)) {
            path[strcspn(path, "\n")] = 0;
            memmove(path, path + 3, strlen(path + 3) + 1);
            found = true;
        }
    if (f)
        fclose(f);
    return found;
}

/* Where the hierarchy is mounted, such that this path is in it: the mount point, and the path below it. */
static bool my_directory(const char *path, char *directory, size_t size, size_t *mount) {
    char line[2 * LONGEST], root[LONGEST], point[LONGEST];
    FILE *f = fopen("/proc/self/mountinfo", "re");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *type = strstr(line, " - ");
        if (!type || strncmp(type, " - cgroup2 ", 11) || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2)
            continue;
        size_t n = strcmp(root, "/") ? strlen(root) : 0;
        if (strncmp(path, root, n) || (path[n] && path[n] != '/'))
            continue;
        const char *rest = strcmp(path + n, "/") ? path + n : "";
        int length = snprintf(directory, size, "%s%s", point, rest);
        *mount = strlen(point);
        found = length > 0 && length < (int)size;
    }
    if (f)
        fclose(f);
    return found;
}

static bool whole_paths(void) {
    struct stat st;
    return !stat("/proc/self/ns/cgroup", &st) && st.st_ino == INITIAL_NAMESPACE;
}

bool cgroup_mine(struct gpu_home *out) {
    char path[LONGEST], directory[2 * LONGEST];
    size_t mount;
    uint64_t number = my_number();
    memset(out, 0, sizeof *out);
    if (my_path(path, sizeof path)) {
        if (whole_paths())
            out->name = hash(path);
        if (my_directory(path, directory, sizeof directory, &mount) && !climb(directory, mount, out))
            return false;
    }
    if (number && out->id[0] != number) { /* what is mounted is another hierarchy than it seems */
        memset(out->id, 0, sizeof out->id);
        out->id[0] = number;
    }
    return true;
}

/* --- one that is named --- */

/* The path below /sys/fs/cgroup in its one spelling: begins with a slash, no other slash that means nothing. */
static bool spell(const char *given, char *path, size_t size) {
    size_t n = strlen(GPU_CGROUP), end = 0;
    if (strncmp(given, GPU_CGROUP, n) || (given[n] && given[n] != '/'))
        return false;
    for (const char *p = given + n; *p;) {
        size_t length = strcspn(p += strspn(p, "/"), "/");
        if ((length == 1 && *p == '.') || (length == 2 && !strncmp(p, "..", 2)) || end + length + 2 > size)
            return false;
        if (length) {
            path[end++] = '/';
            memcpy(path + end, p, length);
        }
        end += length;
        p += length;
    }
    path[end] = 0;
    return true;
}

enum cgroup_found cgroup_of(const char *given, struct gpu_home *out, char *path, size_t size) {
    char directory[2 * LONGEST];
    memset(out, 0, sizeof *out);
    if (!spell(given, path, size))
        return CGROUP_NONE;
    if (cgroup_all_mounted())
        out->name = hash(*path ? path : "/");
    snprintf(directory, sizeof directory, "%s%s", GPU_CGROUP, path);
    if (!climb(directory, strlen(GPU_CGROUP), out) || out->id[0] == TOP)
        return CGROUP_NONE;
    struct stat st;
    if (out->id[0])
        return CGROUP_THERE;
    snprintf(directory, sizeof directory, "%s%s", GPU_CGROUP, path);
    return lstat(directory, &st) ? CGROUP_GONE : CGROUP_NONE;
}
