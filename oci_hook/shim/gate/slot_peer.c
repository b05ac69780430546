#define _GNU_SOURCE
#include "gate/slot_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gate/clock.h"
#include "pages/layout.h"

/* The other container decides how long a test of its locks takes. So we test at most this often, and for at most a
 * hundredth of the time. */
#define ASK_EVERY (50 * GH_MS)
#define READ_QUICK (20 * GH_US) /* a read(2) of so little processor time is not bounded */

void slot_close(struct slot_peer *peer) {
    slot_file_close(&peer->file);
    if (peer->mapped)
        munmap(peer->mapped, GH_SLOT_FILE_SIZE);
    *peer = (struct slot_peer){.ask_at = peer->ask_at}; /* else a file that is opened anew could be asked sooner */
}

/* False: it is missing or another container has a lease on it. Then the slot counts as empty for a while. */
static bool open_peer(struct slot_peer *peer, unsigned gpu, unsigned slot, uint64_t born) {
    char path[sizeof GH_SHARE_DIR + 16] = GH_SHARE_DIR "/";
    struct stat st;
    char *at = slot_file_number(path + sizeof GH_SHARE_DIR, gpu, gpu > 9 ? 2 : 1);
    memcpy(at, "/slot/", 6);
    *slot_file_number(at + 6, slot, 2) = 0;
    uint64_t now = clock_ns();
    if (peer->born == born && now < peer->open_at)
        return false;
    *peer = (struct slot_peer){.born = born,
                               .ask_at = peer->ask_at,
                               .pid = (int)syscall(SYS_getpid),
                               .file = slot_file_open(path, O_RDONLY, &st)};
    void *map = MAP_FAILED;
    if (peer->file.fd)
        map = mmap(NULL, GH_SLOT_FILE_SIZE, PROT_READ, MAP_SHARED, peer->file.fd - 1, 0);
    peer->mapped = map == MAP_FAILED ? NULL : map;
    peer->open_at = slot_file_again(now, clock_ns(), SLOT_RETRY_EVERY);
    if (!peer->mapped)
        slot_file_close(&peer->file);
    return peer->mapped;
}

/* A snapshot of the file, through our mapping of it: whoever can open the file or its directory may ask to be told of
 * each read(2), and the reader would pay for it (inotify, F_NOTIFY). The kernel reads, since it survives that the file is
 * cut. Where a system call filter forbids that, we read(2), for a hundredth of the time at most. False: nothing new. */
static bool snapshot(struct slot_peer *peer, char bytes[GH_SLOT_FILE_SIZE], size_t *length) {
    struct iovec to = {bytes, GH_SLOT_FILE_SIZE}, from = {peer->mapped, GH_SLOT_FILE_SIZE};
    *length = 0;
    ssize_t n = syscall(SYS_process_vm_readv, peer->pid, &to, 1ul, &from, 1ul, 0ul);
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
        if (clock_ns() < peer->read_at)
            return false;
        uint64_t since = clock_cpu();
        n = (ssize_t)syscall(SYS_pread64, peer->file.fd - 1, bytes, (size_t)GH_SLOT_FILE_SIZE, (off_t)0);
        uint64_t took = clock_cpu() - since;
        peer->read_at = took > READ_QUICK ? clock_ns() + slot_file_again(0, took, 0) : 0;
    }
    *length = n > 0 ? (size_t)n : 0;
    return true;
}

bool slot_may_ask(const struct slot_peer *peer) { return peer->ask && peer->file.fd && clock_ns() >= peer->ask_at; }

void slot_ask(struct slot_peer *copy) {
    uint64_t since = clock_ns();
    copy->lost = !slot_file_is_ours(&copy->file);
    copy->gone = !copy->lost && !slot_file_write_locked(&copy->file, 0, GH_SLOT_PROCESSES) ? copy->beat : 0;
    copy->ask_at = slot_file_again(since, clock_ns(), ASK_EVERY);
}

void slot_answered(struct slot_peer *peer, const struct slot_peer *copy) {
    peer->ask_at = copy->ask_at;
    if (peer->born != copy->born || peer->file.fd != copy->file.fd || peer->file.inode != copy->file.inode)
        return; /* the slot has another owner by now */
    peer->gone = copy->gone;
    if (copy->lost)
        slot_close(peer); /* the program has closed our descriptor: open it anew */
}

/* True if a process there says that others keep it from its lock. */
static bool withheld(const struct gh_slot_page *page) {
    unsigned top = page->head.top < GH_SLOT_PROCESSES ? page->head.top : GH_SLOT_PROCESSES;
    for (unsigned i = 0; i < top; i++)
        if (page->process[i].owner && page->process[i].withheld)
            return true;
    return false;
}

struct gh_slot slot_read(struct slot_peer *peer, unsigned gpu, unsigned slot, uint64_t born, uint64_t now,
                         const struct gh_rules *rules, const struct gh_slot *before, uint64_t elapsed, uint64_t top,
                         unsigned *contexts) {
    static const struct gh_slot empty;
    struct gh_slot_page got;
    size_t length;
    bool fresh = peer->born != born || !peer->file.fd;
    *contexts = 0;
    if (fresh) {
        if (peer->born != born || peer->mapped)
            slot_close(peer);
        if (!open_peer(peer, gpu, slot, born))
            return empty;
    }
    if (!snapshot(peer, (char *)&got, &length)) {
        *contexts = peer->contexts;
        return *before;
    }
    struct gh_slot s = gh_slot_view(&got, length, now, rules->heartbeat_stale, contexts);
    if (length == GH_SLOT_FILE_SIZE)
        peer->word = got.head.word;
    /* v may not fall, nor rise by more than work done meanwhile or a return from idling explains. Otherwise an honest
     * tenant that wakes beside a liar would take over its v. */
    uint64_t most = top;
    if (!fresh && before->v + elapsed * 1000 > most)
        most = before->v + elapsed * 1000;
    if (fresh && now * GH_WEIGHT_ONE > most)
        most = now * GH_WEIGHT_ONE;
    if (s.v > most)
        s.v = most;
    if (!fresh && s.v < before->v)
        s.v = before->v;
    /* A silent container has ended, or got no processor. What we find out is valid until its next sign of life. */
    bool silent = s.heartbeat && now > s.heartbeat && now - s.heartbeat > rules->silent;
    peer->beat = s.heartbeat;
    s.ended = silent && peer->gone == s.heartbeat;
    peer->ask = silent && !s.ended && !withheld(&got);
    if (s.ended)
        *contexts = 0;
    peer->contexts = *contexts;
    return s;
}
