/* Simulated libcuda: backing.h. */
#define _GNU_SOURCE
#include "backing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int fd;
    unsigned number; /* 0: there is none yet */
    dev_t device;
    ino_t inode;
    uint64_t end; /* the parts are never used twice: only what a program touches takes memory of the host */
} file = {.fd = -1};

/* Mutex held. Whether the program has left our file open. */
static bool file_open(void) {
    struct stat st;
    return file.number && !fstat(file.fd, &st) && st.st_dev == file.device && st.st_ino == file.inode;
}

/* Mutex held. */
static bool open_file(void) {
    struct stat st;
    if (file_open())
        return true;
    int fd = (int)syscall(SYS_memfd_create, "simulated-device-memory", 1u /* MFD_CLOEXEC */);
    if (fd < 0)
        return false;
    fstat(fd, &st);
    file.fd = fd;
    file.number++;
    file.device = st.st_dev;
    file.inode = st.st_ino;
    file.end = 0;
    return true;
}

static bool take_part(uint64_t size, struct backing *out) {
    pthread_mutex_lock(&mutex);
    bool ok = open_file() && !ftruncate(file.fd, (off_t)(file.end + size));
    if (ok) {
        *out = (struct backing){.size = size, .offset = file.end, .file = file.number, .piece = -1};
        file.end += size;
    }
    pthread_mutex_unlock(&mutex);
    return ok;
}

static void drop_part(const struct backing *b) {
    pthread_mutex_lock(&mutex);
    if (b->file == file.number && file_open())
        fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->offset, (off_t)b->size);
    pthread_mutex_unlock(&mutex);
}

bool backing_make(struct gpu *gpu, uint64_t size, struct backing *out) {
    if (size > gpu->file->head.memory_total || !heap_book(gpu, size))
        return false;
    if (take_part(size, out))
        return true;
    gpu_release(gpu, size);
    return false;
}

bool backing_adopt(struct gpu *gpu, int fd, struct backing *out) {
    int piece = gpu_piece_of(gpu, fd);
    void *kept = piece < 0 ? MAP_FAILED : gpu_piece_map(gpu, fd, NULL, 4096, 0, PROT_NONE);
    if (kept == MAP_FAILED)
        return false;
    *out = (struct backing){.size = gpu_piece_bytes(gpu, piece),
                            .piece = piece,
                            .generation = gpu_piece_generation(gpu, piece),
                            .kept = kept};
    return true;
}

/* Mutex held. Copies what a program has ever written. */
static void copy_part(const struct backing *b, uint8_t *to) {
    off_t end = (off_t)(b->offset + b->size), from = (off_t)b->offset, hole;
    while (from < end && (from = lseek(file.fd, from, SEEK_DATA)) >= 0 && from < end) {
        hole = lseek(file.fd, from, SEEK_HOLE);
        if (hole < 0 || hole > end)
            hole = end;
        for (ssize_t n; from < hole; from += n)
            if ((n = pread(file.fd, to + (from - (off_t)b->offset), (size_t)(hole - from), from)) <= 0)
                return;
    }
}

bool backing_share(struct gpu *gpu, struct backing *b) {
    struct backing shared;
    int fd = gpu_piece_make(gpu);
    void *all = gpu_piece_map(gpu, fd, NULL, b->size, 0, PROT_READ | PROT_WRITE);
    bool ok = all != MAP_FAILED && backing_adopt(gpu, fd, &shared);
    pthread_mutex_lock(&mutex);
    ok = ok && b->file == file.number && file_open();
    if (ok)
        copy_part(b, all);
    pthread_mutex_unlock(&mutex);
    if (ok) {
        gpu_release(gpu, b->size); /* it counts as a piece now: at no moment twice */
        gpu_piece_add(gpu, fd, (int64_t)b->size);
        shared.size = b->size;
        drop_part(b);
        *b = shared;
    }
    if (all != MAP_FAILED)
        munmap(all, b->size);
    gpu_piece_close(gpu, fd);
    return ok;
}

void *backing_map(struct gpu *gpu, const struct backing *b, void *at, uint64_t size, uint64_t offset, int protection) {
    void *r = MAP_FAILED;
    if (b->piece >= 0) {
        int fd = backing_open(gpu, b);
        r = gpu_piece_map(gpu, fd, at, size, offset, protection);
        gpu_piece_close(gpu, fd);
        return r;
    }
    pthread_mutex_lock(&mutex);
    if (b->file == file.number && file_open())
        r = mmap(at, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.fd, (off_t)(b->offset + offset));
    pthread_mutex_unlock(&mutex);
    return r;
}

int backing_open(struct gpu *gpu, const struct backing *b) { return gpu_piece_open(gpu, b->piece, b->generation); }

void backing_drop(struct gpu *gpu, struct backing *b) {
    if (b->piece >= 0) {
        munmap(b->kept, 4096);
        return;
    }
    drop_part(b);
    gpu_release(gpu, b->size);
}
