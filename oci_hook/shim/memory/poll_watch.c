#define _GNU_SOURCE
#include "memory/poll_watch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/open_file.h"

static bool add(int set, int fd, uint64_t id) {
    struct epoll_event nothing = {.events = 0, .data = {.u64 = id}};
    return !syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &nothing);
}

/* Closes `low`, and returns the same file under a number that is out of the way. */
static int moved(int low) {
    int high = low < 0 ? -1 : hold_open_file(low);
    if (low >= 0)
        syscall(SYS_close, low);
    return high;
}

static bool make(struct poll_set *set, uint64_t id) {
    *set = (struct poll_set){moved((int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC)),
                             moved((int)syscall(SYS_eventfd2, 0, EFD_CLOEXEC)), id};
    if (set->fd >= 0 && set->mark >= 0 && add(set->fd, set->mark, id))
        return true;
    if (set->fd >= 0)
        syscall(SYS_close, set->fd);
    if (set->mark >= 0)
        syscall(SYS_close, set->mark);
    *set = (struct poll_set){0, 0, 0};
    return false;
}

/* Each line of a file in the set has "data:" and its number in hexadecimal. `found` has a bit for each of the two. */
static void look_at(const char *line, const uint64_t id[2], unsigned *found) {
    const char *data = strstr(line, "data:");
    uint64_t value = data ? strtoull(data + 5, NULL, 16) : 0;
    for (int i = 0; i < 2; i++)
        *found |= data && value == id[i] ? 1u << i : 0;
}

static unsigned find(int set, const uint64_t id[2]) {
    char path[40], text[4096 + 1];
    size_t have = 0;
    unsigned found = 0;
    ssize_t n;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    while (fd >= 0 && (n = syscall(SYS_read, fd, text + have, sizeof text - 1 - have)) > 0) {
        char *line = text, *end;
        text[have += (size_t)n] = 0;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            look_at(line, id, &found);
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
    }
    if (fd >= 0)
        syscall(SYS_close, fd);
    return found;
}

int poll_watched(const struct poll_set *set, uint64_t id) {
    unsigned found = set->mark_id ? find(set->fd, (const uint64_t[2]){id, set->mark_id}) : 0;
    return found & 1 ? 1 : found & 2 ? 0 : -1;
}

bool poll_watch(struct poll_set *set, int fd, uint64_t id) {
    /* A set that the program closed is made anew; what was in it stays charged. */
    if (poll_watched(set, 0) < 0 && !make(set, id ^ 1))
        return false;
    return add(set->fd, fd, id);
}
