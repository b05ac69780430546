/* A process that has the container's whole limit ends, and the kernel takes long to release what it had open; meanwhile
 * another one tries to take the limit, too.
 *
 * outlive hold MIB HOW...: takes MIB, says "full", later "ready", and ends by `exec`, `exit`, `exit_group` (in a thread),
 * `fault`, or by the test's SIGKILL. Before, by HOW:
 *   memory, mapped       a memfd of 256 MiB, by a descriptor or a mapping alone
 *   linger               a socket that waits for its peer when it is closed
 *   threads, late        more threads; one that is late to let go of the descriptors
 *   low-taken            the lowest addresses are taken before, as by programs that run others
 *   low, close           the driver's descriptors get the lowest numbers; all are closed
 *   files, memory-too    a child that shares the descriptors, or the memory alone
 *   import               another process has made the memory, and has exited
 * outlive storm MIB CHILDREN: each child tries until it has MIB, says "taken", and begins anew by exec with a lingering
 * socket.
 * outlive take MIB: says "ready"; once told to begin, tries until it has MIB, and says "taken". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long u64;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, size_t);
struct handle {
    char bytes[64];
};
int cuIpcGetMemHandle(struct handle *, u64);
int cuIpcOpenMemHandle_v2(u64 *, struct handle, unsigned);

#define MIB (1ull << 20)
#define SLOW (256 * MIB)
#define LINGER 2 /* seconds */
#define SETS 64  /* semaphores that the kernel looks at between memory and descriptors: 32000 in each */

static char **how;
static int asked(const char *word) {
    for (char **h = how; *h; h++)
        if (!strcmp(*h, word))
            return 1;
    return 0;
}

static int start(void) {
    void *ctx;
    int r = cuInit(0);
    r = r ? r : cuDevicePrimaryCtxRetain(&ctx, 0);
    return r ? r : cuCtxSetCurrent(ctx);
}

/* ---- slow releases ---- */

static void memory(void *at) {
    int fd = (int)syscall(SYS_memfd_create, "slow", 1 /* MFD_CLOEXEC */);
    if (fd < 0 || ftruncate(fd, SLOW))
        exit(11);
    void *p = mmap(at, SLOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE | (at ? MAP_FIXED : 0), fd, 0);
    if (p == MAP_FAILED)
        exit(12);
    if (at)
        close(fd);
    else
        munmap(p, SLOW);
}

static struct sockaddr_in peer = {.sin_family = AF_INET};

/* Before the driver is opened: a process that accepts connections and reads nothing. */
static void listen_elsewhere(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    socklen_t size = sizeof peer;
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (bind(fd, (void *)&peer, sizeof peer) || listen(fd, 8) || getsockname(fd, (void *)&peer, &size))
        exit(13);
    pid_t parent = getpid();
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        close(1);
        close(2);
        for (;;)
            pause();
    }
    close(fd);
}

static void lingering(void) {
    static char bytes[1 << 16];
    struct linger wait = {1, LINGER};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &wait, sizeof wait) || connect(fd, (void *)&peer, sizeof peer) ||
        fcntl(fd, F_SETFL, O_NONBLOCK))
        exit(14);
    while (write(fd, bytes, sizeof bytes) > 0)
        ;
}

/* ---- threads and children ---- */

static void *wait_for_ever(void *none) {
    for (;;)
        pause();
    return none;
}

static void *end_all(void *none) {
    syscall(SYS_exit_group, 0);
    return none;
}

static int set[SETS];
static volatile int late_is_ready;

/* With a list of its own of semaphores to undo (no CLONE_SYSVSEM), which comes between memory and descriptors. */
static int be_late(void *none) {
    struct sembuf two[] = {{0, 1, SEM_UNDO}, {31999, 1, SEM_UNDO}};
    for (int i = 0; i < SETS; i++)
        if (semop(set[i], two, 2))
            _exit(15);
    late_is_ready = 1;
    for (;;)
        pause();
    return none != NULL;
}

static int end_with_the_parent(void *none) {
    usleep(300000);
    _exit(none != NULL);
}

static void clone_of(int (*run)(void *), int flags) {
    char *stack = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (clone(run, stack + MIB, flags, NULL) < 0)
        exit(16);
}

static void threads_and_children(void) {
    pthread_t thread;
    if (asked("late")) {
        if (unshare(CLONE_NEWIPC)) /* they end with it */
            exit(18);
        for (int i = 0; i < SETS; i++)
            if ((set[i] = semget(IPC_PRIVATE, 32000, 0600)) < 0)
                exit(17);
        clone_of(be_late, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD);
        while (!late_is_ready)
            usleep(1000);
    }
    for (int i = 0; asked("threads") && i < 8; i++)
        pthread_create(&thread, NULL, wait_for_ever, NULL);
    if (asked("files"))
        clone_of(end_with_the_parent, CLONE_FILES | SIGCHLD);
    if (asked("memory-too"))
        clone_of(end_with_the_parent, CLONE_VM | SIGCHLD);
}

/* ---- the driver's descriptors ---- */

static int is_driver(int fd) {
    char link[64], path[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return strstr(path, "/gpus/") != NULL || strstr(path, "/dev/nvidia") != NULL;
}

static void to_lowest(void) {
    close(0);
    for (int fd = 3; fd < 64; fd++)
        if (is_driver(fd) && fcntl(fd, F_DUPFD_CLOEXEC, 0) < fd)
            close(fd);
}

/* Before the driver is opened: a child that makes the memory, and exits once told to. */
static int memory_elsewhere(u64 mib, int out[2], int in[2]) {
    struct handle handle;
    u64 at;
    char word;
    if (pipe2(out, O_CLOEXEC) || pipe2(in, O_CLOEXEC))
        return -1;
    pid_t pid = fork();
    if (!pid)
        _exit(start() || cuMemAlloc_v2(&at, mib * MIB) || cuIpcGetMemHandle(&handle, at) ||
              write(out[1], &handle, sizeof handle) != sizeof handle || read(in[0], &word, 1) != 1);
    return pid;
}

static int get(u64 mib) {
    struct handle handle;
    u64 at;
    int out[2], in[2], failed, pid = asked("import") ? memory_elsewhere(mib, out, in) : 0;
    if (start())
        return 1;
    if (!pid)
        return cuMemAlloc_v2(&at, mib * MIB);
    failed = read(out[0], &handle, sizeof handle) != sizeof handle || cuIpcOpenMemHandle_v2(&at, handle, 1);
    return write(in[1], "", 1) != 1 || waitpid(pid, NULL, 0) != pid || failed;
}

#define LOW_TAKEN (5 << 20)

static int hold(u64 mib) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* the first small mapping goes above the place for the slow one, the driver's file goes below */
    void *top = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *place = mmap(NULL, SLOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(top, page);
    if (asked("linger"))
        listen_elsewhere();
    if (asked("low-taken") &&
        mmap((void *)0x10000, LOW_TAKEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        return 14;
    if (get(mib))
        return 10;
    puts("full");
    fflush(stdout);
    if (asked("low"))
        to_lowest();
    if (asked("close"))
        syscall(SYS_close_range, 3, ~0u, 0);
    if (asked("linger"))
        lingering();
    if (asked("memory"))
        memory(NULL);
    if (asked("mapped"))
        memory(place);
    threads_and_children();
    puts("ready");
    fflush(stdout);
    if (asked("exec"))
        execl("/bin/sleep", "sleep", "600", NULL);
    if (asked("exit_group")) {
        pthread_t thread;
        pthread_create(&thread, NULL, end_all, NULL);
        wait_for_ever(NULL);
    }
    if (asked("fault"))
        raise(SIGSEGV);
    if (asked("exit"))
        return 0;
    wait_for_ever(NULL);
    return 1;
}

/* ---- the next one to take the limit ---- */

static int take(u64 mib) {
    u64 at;
    if (start())
        return 20;
    puts("ready");
    fflush(stdout);
    getchar();
    while (cuMemAlloc_v2(&at, mib * MIB))
        usleep(500);
    puts("taken");
    fflush(stdout);
    return getchar() == EOF ? 21 : 0;
}

/* ---- again and again ---- */

static int again(const char *self, const char *mib, const char *port) {
    u64 at;
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer.sin_port = (in_port_t)atoi(port);
    while (start())
        usleep(500);
    while (cuMemAlloc_v2(&at, strtoull(mib, NULL, 10) * MIB))
        usleep(500);
    puts("taken");
    fflush(stdout);
    lingering();
    execl(self, self, "again", mib, port, NULL);
    return 30;
}

static int storm(const char *self, const char *mib, int children) {
    char port[16];
    listen_elsewhere();
    snprintf(port, sizeof port, "%d", peer.sin_port);
    while (children--)
        if (!fork())
            execl(self, self, "again", mib, port, NULL);
    wait_for_ever(NULL);
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    how = argv + 3;
    u64 mib = strtoull(argv[2], NULL, 10);
    if (!strcmp(argv[1], "storm"))
        return storm(argv[0], argv[2], atoi(argv[3]));
    if (!strcmp(argv[1], "again"))
        return again(argv[0], argv[2], argv[3]);
    return strcmp(argv[1], "take") ? hold(mib) : take(mib);
}
