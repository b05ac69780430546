#define _GNU_SOURCE
#include "account/account_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pages/layout.h"
#include "process/atomics.h"

static int open_page(void) {
    /* No O_CREAT on a file that exists: fs.protected_regular forbids it to other users in a sticky directory. */
    for (int i = 0; i < 100; i++) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, GH_ACCOUNT_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
        if (fd >= 0)
            return fd;
        if (errno == ENOENT) {
            fd = (int)syscall(SYS_openat, AT_FDCWD, GH_ACCOUNT_FILE,
                              O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_CREAT | O_EXCL, 0666);
            if (fd >= 0)
                return fd;
            if (errno != EEXIST)
                return -1;
        } else if (errno == EACCES) { /* another user has just made it and not yet widened its mode */
            struct timespec ms = {0, 1000000};
            syscall(SYS_nanosleep, &ms, NULL);
        } else {
            return -1;
        }
    }
    return -1;
}

/* The whole file, allocated: a page that the tmpfs had no room for would end the program by SIGBUS when it is touched. A
 * file that grows past RLIMIT_FSIZE would end it by SIGXFSZ. */
static bool allocate(int fd, off_t has, off_t size) {
    struct rlimit old, enough;
    bool raise = has < size && !getrlimit(RLIMIT_FSIZE, &old) && old.rlim_cur < (rlim_t)size;
    if (raise) {
        enough = (struct rlimit){(rlim_t)size, old.rlim_max};
        if (setrlimit(RLIMIT_FSIZE, &enough)) {
            errno = EFBIG;
            return false;
        }
    }
    bool done = !syscall(SYS_fallocate, fd, 0, (off_t)0, size);
    int error = errno;
    if (raise)
        setrlimit(RLIMIT_FSIZE, &old);
    errno = error;
    return done;
}

/* With st->attach held, since the process has one RLIMIT_FSIZE. NULL: errno says why, 0 a file that is no account page. */
static struct gh_account_page *map_page(struct gh_state *st) {
    const size_t size = sizeof(struct gh_account_page);
    int fd = open_page();
    struct stat file;
    void *p = MAP_FAILED;
    if (fd < 0)
        return NULL;
    int error = 0;
    if (!fstat(fd, &file) && S_ISREG(file.st_mode)) {
        if ((file.st_mode & 0666) != 0666 && file.st_uid == geteuid())
            fchmod(fd, 0666); /* the umask has removed some bits */
        if (allocate(fd, file.st_size, (off_t)size))
            p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = errno;
        atomic_store(&st->account_device, file.st_dev);
        atomic_store(&st->account_inode, file.st_ino);
    }
    syscall(SYS_close, fd);
    errno = error;
    return p == MAP_FAILED ? NULL : p;
}

static bool stamp(struct gh_account_page *page) {
    uint64_t magic = 0;
    uint32_t version = 0;
    atomic_compare_exchange_strong(&page->magic, &magic, GH_ACCOUNT_MAGIC);
    atomic_compare_exchange_strong(&page->version, &version, GH_ACCOUNT_VERSION);
    return (!magic || magic == GH_ACCOUNT_MAGIC) && (!version || version == GH_ACCOUNT_VERSION);
}

#define UNUSABLE(remedy) \
    "gpu-hook: GH-308: the account page " GH_ACCOUNT_FILE " cannot be used: device memory is refused; " remedy "\n"

static const char *unusable(int error) {
    switch (error) {
    case ENOENT:
    case EACCES:
    case EPERM:
    case EROFS: return UNUSABLE("run `gpu-hook install` on the host, then make the container anew");
    case ENOSPC: return UNUSABLE("its folder is full: remove other files there, then start the program again");
    case EFBIG: return UNUSABLE("start the program with a larger file size limit (ulimit -f)");
    case EMFILE:
    case ENFILE: return UNUSABLE("no file descriptor was left: start the program with a larger limit (ulimit -n)");
    case ENOLCK:
        return UNUSABLE(
            "fcntl(F_OFD_SETLK) is refused: allow it in the filter of system calls, or use Linux 3.15 or newer");
    default: return UNUSABLE("something in the container changed it: make the container anew");
    }
}

void gh_account_unusable(int error) { gh_say(GH_SAID_ACCOUNT, unusable(error)); }

struct gh_account_page *gh_account_page(struct gh_state *st) {
    struct gh_account_page *page = LOAD_ACQUIRE(&st->account), *none = NULL;
    if (page)
        return page;
    page = NULL;
    int error = 0;
    if (gh_lock(&st->attach)) {
        page = map_page(st);
        error = page ? 0 : errno;
        gh_unlock(&st->attach);
    }
    if (page && !stamp(page)) {
        munmap(page, sizeof *page);
        page = NULL;
    }
    if (!page) {
        gh_account_unusable(error);
        return NULL;
    }
    if (!CAS_ACQ_REL(&st->account, &none, page)) {
        munmap(page, sizeof *page);
        return none;
    }
    return page;
}
