/* A hostile tenant: does its worst on what gpu-hook mounts into its container, for as long as it lives. It is root with
 * the capabilities that docker gives by default. argv: the attacks, by name; each gets a process of its own. "ready" on
 * standard output once all have begun. Linux only; linked statically. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAUSE_US 200
#define FILES 4096
#define DRIVER "/usr/lib64"

static struct held {
    char path[256];
    int fd;
} held[FILES];
static unsigned held_count;

static int known(const char *path) {
    for (unsigned i = 0; i < held_count; i++)
        if (!strcmp(held[i].path, path))
            return 1;
    return 0;
}

/* All files below a folder, each opened once. */
static void find(const char *folder, int depth) {
    DIR *d = depth ? opendir(folder) : NULL;
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char path[256];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path || lstat(path, &st))
            continue;
        if (S_ISDIR(st.st_mode)) {
            find(path, depth - 1);
        } else if (S_ISREG(st.st_mode) && held_count < FILES && !known(path)) {
            int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
            if (fd >= 0) {
                strcpy(held[held_count].path, path);
                held[held_count++].fd = fd;
            }
        }
    }
    if (d)
        closedir(d);
}

/* A lease on everything, of the kind that can be had, retaken at once when it is broken. */
static void leases(void) {
    signal(SIGIO, SIG_IGN);
    for (unsigned round = 0;; round++) {
        if (round % 50 == 0) {
            find("/run/gpu-hook", 6);
            find(DRIVER, 1);
        }
        for (unsigned i = 0; i < held_count; i++) {
            struct stat st;
            if (fcntl(held[i].fd, F_GETLEASE) != F_UNLCK || fstat(held[i].fd, &st))
                continue;
            setfsuid(st.st_uid); /* CAP_SETUID: any user's lease can be had */
            if (fcntl(held[i].fd, F_SETLEASE, F_WRLCK))
                fcntl(held[i].fd, F_SETLEASE, F_RDLCK);
            setfsuid(0);
        }
        usleep(PAUSE_US);
    }
}

static void lock(int fd, short type, off_t at, off_t length) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = length};
    fcntl(fd, F_SETLK, &l);
}

/* Long lists of record locks on its own slot file, and read locks on everybody's. */
static void locks(void) {
    int own = open("/run/gpu-hook/slot/0", O_RDWR | O_CLOEXEC);
    for (off_t at = 1 << 20; own >= 0 && at < (1 << 20) + 2 * 60000; at += 2)
        lock(own, F_WRLCK, at, 1);
    for (;;) {
        find("/run/gpu-hook/share", 4);
        for (unsigned i = 0; i < held_count; i++)
            lock(held[i].fd, F_RDLCK, 0, 0);
        usleep(100 * PAUSE_US);
    }
}

/* Watches on everything, whose events nobody reads. */
static void watches(void) {
    int fd = inotify_init1(IN_CLOEXEC);
    const char *folders[] = {"/run/gpu-hook", "/run/gpu-hook/share/0", "/run/gpu-hook/share/0/slot",
                             "/run/gpu-hook/slot"};
    for (unsigned i = 0; i < sizeof folders / sizeof *folders; i++)
        inotify_add_watch(fd, folders[i], IN_ALL_EVENTS);
    for (;;) {
        find("/run/gpu-hook", 6);
        for (unsigned i = 0; i < held_count; i++)
            inotify_add_watch(fd, held[i].path, IN_ALL_EVENTS);
        usleep(100 * PAUSE_US);
    }
}

/* Fills whatever it may write, again and again. */
static void fill(void) {
    static char block[1 << 16];
    for (;;) {
        for (unsigned n = 0; n < 16; n++) {
            char path[64];
            snprintf(path, sizeof path, "/run/gpu-hook/slot/%u", n);
            int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
            if (fd < 0)
                continue;
            lseek(fd, 0, SEEK_END);
            while (write(fd, block, sizeof block) > 0)
                ;
            close(fd);
        }
        usleep(PAUSE_US);
    }
}

/* Other things in the place of its account page. */
static void places(void) {
    const char *page = "/run/gpu-hook/account/page";
    for (unsigned round = 0;; round++) {
        unlink(page);
        rmdir(page);
        switch (round % 4) {
        case 0: mkfifo(page, 0666); break;
        case 1: mkdir(page, 0777); break;
        case 2:
            if (symlink("/run/gpu-hook/account/page", page))
                exit(1);
            break;
        default: close(open(page, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
        }
        usleep(10 * PAUSE_US);
    }
}

/* Reads the common folders without end: each reading holds a lock of the folder, shared. */
static void readers(void) {
    static char entries[1 << 15];
    for (;;) {
        int fd = open("/run/gpu-hook/share/0/slot", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (unsigned i = 0; fd >= 0 && i < 50; i++) {
            lseek(fd, 0, SEEK_SET);
            if (syscall(SYS_getdents64, fd, entries, sizeof entries) < 0)
                break;
        }
        if (fd >= 0)
            close(fd);
        usleep(PAUSE_US);
    }
}

/* No attack: uses as much of the processors as it can get, to compare with. */
static void spins(void) {
    for (volatile unsigned long n = 0;; n++)
        ;
}

static const struct {
    const char *name;
    void (*run)(void);
} attacks[] = {{"leases", leases}, {"locks", locks},     {"watches", watches}, {"fill", fill},
               {"places", places}, {"readers", readers}, {"spins", spins}};

int main(int argc, char **argv) {
    for (int n = 1; n < argc; n++)
        for (unsigned i = 0; i < sizeof attacks / sizeof *attacks; i++)
            if (!strcmp(argv[n], attacks[i].name) && !fork())
                attacks[i].run();
    sleep(1);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
