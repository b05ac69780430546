/* Kills a process of the container after each single instruction of an operation on the account page, and checks the
 * page.
 *
 * stepper alloc|free|refuse|sweep [other]: for k = 1, 2, ...: a child attaches, warms up and stops before the call.
 * The observer traces it k instructions into the call and kills it there. It steps from the last system call before
 * that instruction on: up to there the child runs from one system call to the next. With "other", the observer changes its own
 * charge between the last step and the kill, so that the total is overwritten and the child's operation is found
 * only in the acknowledgement. After the kill one sweep must leave exactly what the observer holds. For "sweep" the
 * call is a sweep over a process that was killed with memory; only the instructions at which the sweeper has the
 * slot's lock are tried.
 * stepper attach: kills a process that takes its slot, from its first call to its first allocation.
 * stepper pause: the child is stopped, not killed, at instruction k while the observer allocates and sweeps. A sweep
 * must not undo an operation that took effect, nor keep one that did not; when the child has gone on, the page must
 * be exact.
 * stepper keep: kills within an allocation and a free that use the free cache, which the child has after a conflict
 * with another process on the total. These two must leave the total alone.
 * stepper lend: the child is stopped there, not killed, while the observer takes what is in its free cache and then
 * all that is left. Both together must never have more than the limit.
 * stepper lower: the limit is lowered, once, below what is in use. The free cache must be no way around that.
 * Runs over a driver that does nothing, and so can be used after a fork. Prints how many instructions were tried. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pages/account_page.h"
#include "pages/policy_page.h"

typedef unsigned long long u64;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, size_t);
int cuMemFree_v2(u64);
int cuMemGetInfo_v2(size_t *, size_t *);

#define MIB (1ull << 20)
static struct gh_account_page *page;
static int page_fd;

static void die(const char *what, unsigned k) {
    fprintf(stderr, "step %u: %s (errno %d)\n", k, what, errno);
    exit(1);
}
static void start(void) {
    void *ctx;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
        die("no context", 0);
}
static u64 take(size_t n) {
    u64 p;
    return cuMemAlloc_v2(&p, n) ? 0 : p;
}
static u64 used(void) {
    size_t f, t;
    if (cuMemGetInfo_v2(&f, &t))
        die("no figures", 0);
    return t - f;
}

static void swept(u64 expected, unsigned k) {
    /* An allocation that is refused below the limit sweeps. */
    if (take(1ull << 30))
        die("the whole limit was granted", k);
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
        if (atomic_load(&page->owner[slot]) && gh_owner_pid(atomic_load(&page->owner[slot])) != (uint32_t)getpid())
            die("an ended process keeps a slot", k);
    if (used() != expected) {
        fprintf(stderr, "used %llu, expected %llu\n", used(), expected);
        die("the account page is wrong", k);
    }
}

static unsigned slot_of(pid_t pid) {
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
        if (gh_owner_pid(atomic_load(&page->owner[slot])) == (uint32_t)pid)
            return slot;
    return 0;
}

/* Whether a process has the lock of this slot, whose owner is dead: then it sweeps. */
static int sweeping(unsigned slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    if (fcntl(page_fd, 36 /* F_OFD_GETLK */, &lock))
        die("no OFD locks", 0);
    return lock.l_type != F_UNLCK;
}

/* Waits until a condition holds; on a busy machine that may take long. */
#define UNTIL(condition)                      \
    do {                                      \
        for (int i_ = 0; !(condition); i_++)  \
            if (i_ == 5000)                   \
                die("never: " #condition, 0); \
            else                              \
                usleep(1000);                 \
    } while (0)

static int zombie(pid_t pid) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    char *end = f && fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
    if (f)
        fclose(f);
    return end && end[2] == 'Z';
}

static void stopped(pid_t child, unsigned k) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
        die("the child did not stop", k);
}

/* Whether the next instruction of a traced child is a system call. */
static int at_system_call(pid_t child) {
    struct user_regs_struct regs;
    struct iovec into = {&regs, sizeof regs};
    if (ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &into))
        die("no registers", 0);
#ifdef __x86_64__
    return (ptrace(PTRACE_PEEKTEXT, child, regs.rip, 0) & 0xffff) == 0x050f;
#else
    return (ptrace(PTRACE_PEEKTEXT, child, regs.pc, 0) & 0xffffffff) == 0xd4000001;
#endif
}

/* Lets a child go on to its next stop by this request. 0: it has ended, or come to the end of what is tried. */
static int on(pid_t child, int request) {
    int status;
    ptrace(request, child, 0, 0);
    if (waitpid(child, &status, 0) != child)
        die("lost the child", 0);
    return WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP;
}

/* Lets a child run to the end of its next system call. */
static int call_on(pid_t child) { return on(child, PTRACE_SYSCALL) && on(child, PTRACE_SYSCALL); }

static pid_t spawn(const char *what, pid_t dead) {
    pid_t child = fork();
    if (child)
        return child;
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    if (!strcmp(what, "attach")) {
        raise(SIGSTOP);
        start();
        _exit(!take(5 * MIB));
    }
    start();
    u64 held = take(3 * MIB), p = take(2 * MIB);
    cuMemFree_v2(p);
    if (!held)
        _exit(3);
    if (dead) { /* its parent reaps it later; a zombie counts as ended */
        kill(dead, SIGKILL);
        UNTIL(zombie(dead));
    }
    int kept = !strcmp(what, "keep") || !strcmp(what, "lend") || !strcmp(what, "lower");
    if (kept) {
        raise(SIGSTOP);
        cuMemFree_v2(take(2 * MIB));
    }
    raise(SIGSTOP);
    if (kept) {
        if ((p = take(2 * MIB)))
            cuMemFree_v2(p);
    } else if (!strcmp(what, "alloc") || !strcmp(what, "pause"))
        take(5 * MIB);
    else if (!strcmp(what, "free"))
        cuMemFree_v2(held);
    else
        take(1ull << 30); /* is refused, and so sweeps */
    if (!strcmp(what, "pause") || kept)
        raise(SIGSTOP);
    _exit(kept && !p ? 4 : 0);
}

/* A child with 2 MiB in its free cache: it was stopped within an allocation while we changed the total, which made the
 * conflict that starts caching. */
static pid_t spawn_keeping(const char *what) {
    static unsigned at = 1; /* the instruction at which that succeeds */
    for (; at < 3000; at++) {
        pid_t child = spawn(what, 0);
        int status;
        stopped(child, at);
        for (unsigned i = 0; i < at; i++) {
            ptrace(PTRACE_SINGLESTEP, child, 0, 0);
            if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
                die("lost the child", at);
        }
        cuMemFree_v2(take(MIB));
        ptrace(PTRACE_CONT, child, 0, 0);
        stopped(child, at);
        unsigned slot = slot_of(child);
        if (slot && gh_cache_idle(atomic_load(&page->free_cache[slot][0])) == 2 * MIB >> GH_UNIT_SHIFT)
            return child;
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        swept(7 * MIB, at);
    }
    die("no child ever kept anything", at);
    return 0;
}

static void set_limit(u64 bytes) {
    int fd = open("/run/gpu-hook/policy", O_RDWR);
    if (pwrite(fd, &bytes, sizeof bytes, offsetof(struct gh_policy_page, gpu[0].memory_limit)) != sizeof bytes)
        die("no policy page", 0);
    close(fd);
}

static void lower(void) {
    for (int i = 0; i < 2; i++) {
        int status;
        pid_t child = spawn_keeping("lower");
        if (i)
            set_limit((7 + 3 + 1) * MIB);
        ptrace(PTRACE_CONT, child, 0, 0);
        stopped(child, 0);
        ptrace(PTRACE_CONT, child, 0, 0);
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != (i ? 4 : 0))
            die(i ? "granted beyond a limit that was lowered" : "refused", 0);
        set_limit(1ull << 30);
        swept(7 * MIB, 0);
    }
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    int other = argc > 2, sweep = !strcmp(what, "sweep"), status;
    /* GH_STEP, GH_FIRST: not every instruction, but each GH_STEP-th from this one on. */
    unsigned step = getenv("GH_STEP") ? (unsigned)atoi(getenv("GH_STEP")) : 1, tried = 0;
    unsigned first = getenv("GH_FIRST") ? (unsigned)atoi(getenv("GH_FIRST")) : 0;
    unsigned most = !strcmp(what, "refuse") ? 600 : 100000; /* a refusal also sweeps */
    start();
    u64 mine = take(7 * MIB);
    page_fd = open("/run/gpu-hook/account/page", O_RDWR | O_CLOEXEC);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    if (!mine || page == MAP_FAILED)
        die("no page", 0);
    if (!strcmp(what, "lower")) {
        lower();
        printf("%u\n", 2);
        return 0;
    }
    /* k: the instruction that is tried, which is the `in`-th after `calls` system calls. */
    unsigned k = 1 + first, in = k, calls = 0;
    for (; k < most; k += step, in += step) {
        pid_t victim = 0;
        if (sweep && !(victim = fork())) {
            start();
            take(11 * MIB);
            for (;;)
                pause();
        }
        if (victim)
            UNTIL(gh_word_value(atomic_load(&page->gpu[0].total)) << 9 == (7 + 11) * MIB);
        unsigned theirs = victim ? slot_of(victim) : 0;
        int keep = !strcmp(what, "keep"), lend = !strcmp(what, "lend");
        pid_t child = keep || lend ? spawn_keeping(what) : spawn(what, victim);
        if (!keep && !lend)
            stopped(child, k);
        u64 total = atomic_load(&page->gpu[0].total);
        int ended = 0;
        while (sweep && !ended && !sweeping(theirs))
            ended = !call_on(child);
        for (unsigned call = 0; !ended && call < calls; call++)
            ended = !call_on(child);
        for (unsigned steps = 0; !ended && steps < in;) {
            int call = at_system_call(child);
            ended = !on(child, PTRACE_SINGLESTEP) || (sweep && call && !sweeping(theirs));
            steps++;
            if (call) {
                calls++;
                in -= steps;
                steps = 0;
            }
        }
        u64 extra = other ? take(MIB) : 0;
        if (other && !extra)
            die("no room for the other", k);
        if (!strcmp(what, "pause")) {
            extra = take(MIB);
            u64 now = gh_word_value(atomic_load(&page->gpu[0].total)) << 9, before = (7 + 3 + 1) * MIB;
            if (!extra || take(1ull << 30))
                die("not as much room as there is", k);
            if (now != before && now != before + 5 * MIB)
                die("the total is wrong", k);
            if (now != gh_word_value(atomic_load(&page->gpu[0].total)) << 9)
                die("a sweep beside an operation changes the total", k);
            if (!ended) {
                ptrace(PTRACE_CONT, child, 0, 0);
                if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
                    die("the child did not go on", k);
            }
            if (take(1ull << 30) || used() != before + 5 * MIB)
                die("the account page is wrong after both went on", k);
        }
        if (keep && atomic_load(&page->gpu[0].total) != total)
            die("the total was written", k);
        if (lend) {
            /* The child has 3 or 5 MiB: exactly the rest must be available to us. */
            if (take(1ull << 30))
                die("the whole limit was granted", k);
            u64 room = (1ull << 30) - used();
            if (room != (1024 - 7 - 3) * MIB && room != (1024 - 7 - 5) * MIB)
                die("the room is wrong", k);
            if (take(room + 512) || !(extra = take(room)) || take(512))
                die("not the room that there is", k);
            if (!ended) {
                ptrace(PTRACE_CONT, child, 0, 0);
                if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
                    die("the child did not go on", k);
            }
            if (take(room) || used() != 7 * MIB + 3 * MIB + room)
                die("the account page is wrong after both went on", k);
            cuMemFree_v2(extra);
            extra = 0;
        }
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        if (!strcmp(what, "pause")) {
            cuMemFree_v2(extra);
            extra = 0;
        }
        swept(7 * MIB + (other ? MIB : 0), k);
        if (extra)
            cuMemFree_v2(extra);
        if (victim)
            waitpid(victim, &status, 0);
        tried++;
        if (ended)
            break;
    }
    printf("%u\n", tried);
    return 0;
}
