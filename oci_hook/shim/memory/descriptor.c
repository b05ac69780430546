#define _GNU_SOURCE
#include "memory/descriptor.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_GETLK /* Linux 3.15 */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/* Two open files of one inode, through which we look. Each holds a lock that the other one sees: if a program closed
 * one of them, and its number now stands for another open file, that lock is gone and the observer is not believed. */
struct observer {
    struct observer *next;
    uint64_t inode;
    unsigned watches;
    int fd[2];
    int64_t byte[2];
};

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    return (x ^ x >> 27) * 0x94d049bb133111ebull;
}

#define FIRST_BYTE (1ll << 61)

/* A byte far beyond the end of any file, which nobody else is likely to lock. */
static int64_t new_byte(void) {
    static _Atomic uint64_t count;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t x = mix((uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)(uintptr_t)&now);
    x = mix(x ^ (uint64_t)syscall(SYS_getpid) << 40 ^ atomic_fetch_add(&count, 1));
    return (int64_t)(x & (FIRST_BYTE - 1)) | FIRST_BYTE;
}

static bool lock_byte(int fd, int64_t byte) {
    struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (!fcntl(fd, F_OFD_SETLK, &l))
        return true;
    l.l_type = F_WRLCK; /* a descriptor that cannot be read from takes only this kind */
    return !fcntl(fd, F_OFD_SETLK, &l);
}

static const char *after_words(const char *at, int words) {
    while (words--) {
        for (; *at && *at != ' '; at++) {}
        for (; *at == ' '; at++) {}
    }
    return at;
}

/* proc(5), fdinfo: the locks of the descriptor's open file, by whichever process they were taken. */
uint64_t watched_byte(int fd) {
    char path[40], text[4096];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    int info = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    ssize_t n = info < 0 ? 0 : syscall(SYS_read, info, text, sizeof text - 1);
    if (info >= 0)
        syscall(SYS_close, info);
    text[n > 0 ? n : 0] = 0;
    for (const char *line = text; (line = strstr(line, "OFDLCK")); line++) {
        uint64_t byte = strtoull(after_words(line, 5), NULL, 10); /* OFDLCK ADVISORY READ PID DEVICE:INODE FIRST LAST */
        if (byte >= FIRST_BYTE)
            return byte;
    }
    return 0;
}

/* 1 or 0: whether any other open file has locked the byte; -1: not known. */
static int is_locked(int fd, int64_t byte) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (fcntl(fd, F_OFD_GETLK, &l))
        return -1;
    return l.l_type != F_UNLCK;
}

/* Another open file of the same inode. */
static int open_again(int fd) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int other = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    int high = other < 0 ? -1 : hold_open_file(other);
    if (other >= 0)
        syscall(SYS_close, other);
    return high;
}

static void close_observer(struct observer *o) {
    for (int i = 0; i < 2; i++)
        if (o->fd[i] >= 0)
            let_go_of_open_file(o->fd[i], o->inode);
    free(o);
}

static struct observer *new_observer(int fd) {
    struct observer *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    *o = (struct observer){
        .inode = inode_of(fd), .fd = {open_again(fd), open_again(fd)}, .byte = {new_byte(), new_byte()}};
    for (int i = 0; i < 2; i++)
        if (o->fd[i] < 0 || inode_of(o->fd[i]) != o->inode || !lock_byte(o->fd[i], o->byte[i])) {
            close_observer(o);
            return NULL;
        }
    return o;
}

static bool believed(const struct observer *o) {
    return inode_of(o->fd[0]) == o->inode && inode_of(o->fd[1]) == o->inode && is_locked(o->fd[0], o->byte[1]) == 1 &&
           is_locked(o->fd[1], o->byte[0]) == 1;
}

/* With the lock held: a driver's descriptors are often of one device, so that one observer is enough. */
static struct observer *observer_of(struct observers *all, int fd) {
    uint64_t inode = inode_of(fd);
    for (struct observer *o = all->first; o; o = o->next)
        if (o->inode == inode && believed(o))
            return o;
    struct observer *o = inode ? new_observer(fd) : NULL;
    if (o) {
        o->next = all->first;
        all->first = o;
    }
    return o;
}

/* With the lock held. */
static void drop_observer(struct observers *all, struct observer *o) {
    struct observer **p = &all->first;
    if (--o->watches)
        return;
    while (*p && *p != o)
        p = &(*p)->next;
    if (*p)
        *p = o->next;
    close_observer(o);
}

/* With the lock held. The observer must see the lock: it does not, if the descriptor itself became part of it. */
static bool watch_by_lock(struct observers *all, struct watch *w, int fd) {
    w->by = observer_of(all, fd);
    if (!w->by)
        return false;
    w->by->watches++;
    if (lock_byte(fd, w->byte) && is_locked(w->by->fd[0], w->byte) == 1 && is_locked(w->by->fd[1], w->byte) == 1)
        return true;
    drop_observer(all, w->by);
    w->by = NULL;
    return false;
}

struct watch *watch_open_file(struct observers *all, int fd, uint64_t byte) {
    struct watch *w = calloc(1, sizeof *w);
    if (!w || !gh_lock(&all->lock)) {
        free(w);
        return NULL;
    }
    w->byte = byte ? (int64_t)byte : new_byte();
    if (!watch_by_lock(all, w, fd) && !poll_watch(&all->polled, fd, (uint64_t)w->byte)) {
        free(w);
        w = NULL;
    }
    if (w)
        w->mark = all->polled.mark_id;
    gh_unlock(&all->lock);
    return w;
}

struct watch *watch_copy(struct observers *all, const struct watch *w) {
    struct watch *copy = malloc(sizeof *copy);
    if (!copy || !gh_lock(&all->lock)) {
        free(copy);
        return NULL;
    }
    *copy = *w;
    if (copy->by)
        copy->by->watches++;
    gh_unlock(&all->lock);
    return copy;
}

bool watch_says_closed(struct observers *all, const struct watch *w) {
    if (w->by)
        return !is_locked(w->by->fd[0], w->byte) && !is_locked(w->by->fd[1], w->byte) && believed(w->by);
    if (!gh_lock(&all->lock))
        return false;
    bool closed = w->mark == all->polled.mark_id && !poll_watched(&all->polled, (uint64_t)w->byte);
    gh_unlock(&all->lock);
    return closed;
}

void watch_end(struct observers *all, struct watch *w) {
    if (w->by && gh_lock(&all->lock)) {
        drop_observer(all, w->by);
        gh_unlock(&all->lock);
    }
    free(w);
}
