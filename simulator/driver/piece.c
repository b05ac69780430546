/* Memory that several processes may hold: what is exported to others. It lies in the GPU's file, behind the GPU's state.
 * An open file that holds it has a shared lock on it, and it is in use as long as one of them is open: in whatever
 * process, mapped only, or in a message between processes. */
#define _GNU_SOURCE
#include "gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_PIECE (5ll << 32)
#define POSITION (1ll << 40) /* an open file of piece i is positioned at POSITION + i, which duplicates share */
#define FIRST_BYTE (1ull << 30)
#define OFD_SETLK 37 /* F_OFD_SETLK, Linux 3.15 */

static int lock(int fd, int command, short type, int piece) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_PIECE + piece, .l_len = 1};
    int r;
    while ((r = fcntl(fd, command, &l)) < 0 && errno == EINTR)
        ;
    return r;
}

static bool in_use(int fd, int piece) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_PIECE + piece, .l_len = 1};
    return fcntl(fd, F_GETLK, &l) < 0 || l.l_type != F_UNLCK;
}

bool gpu_piece_held(struct gpu *gpu, int piece) {
    int fd = gpu_descriptor(gpu);
    return fd >= 0 && in_use(fd, piece);
}

uint64_t gpu_piece_room(const struct gpu *gpu) { return 2 * gpu->file->head.memory_total; }

static uint64_t data_of(const struct gpu *gpu, int piece) { return FIRST_BYTE + (uint64_t)piece * gpu_piece_room(gpu); }

/* Drops the piece's contents. */
static void empty(const struct gpu *gpu, int fd, int piece) {
    atomic_store(&gpu->file->piece[piece].used, 0);
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)data_of(gpu, piece), (off_t)gpu_piece_room(gpu));
}

/* Makes the file long enough for the piece. It never shrinks, so that several processes may do this at once. */
static bool extend(const struct gpu *gpu, int fd, int piece) {
    off_t end = (off_t)(data_of(gpu, piece) + gpu_piece_room(gpu));
    struct stat st;
    return !fstat(fd, &st) && (st.st_size >= end || pwrite(fd, "", 1, end - 1) == 1);
}

static bool take(struct gpu *gpu, int fd, int piece) {
    if (lock(fd, OFD_SETLK, F_WRLCK, piece) < 0)
        return false;
    empty(gpu, fd, piece);
    if (!extend(gpu, fd, piece)) {
        lock(fd, OFD_SETLK, F_UNLCK, piece);
        return false;
    }
    _Atomic uint32_t *count = &gpu->file->head.pieces;
    for (uint32_t n = atomic_load(count); n <= (uint32_t)piece && !atomic_compare_exchange_weak(count, &n, piece + 1u);)
        ;
    atomic_fetch_add(&gpu->file->piece[piece].generation, 1);
    atomic_store(&gpu->file->piece[piece].slot, (uint32_t)gpu->slot + 1);
    gpu->file->piece_home[piece] = gpu->file->slot_home[gpu->slot];
    return !lock(fd, OFD_SETLK, F_RDLCK, piece);
}

int gpu_piece_make(struct gpu *gpu) {
    int fd = gpu_reopen(gpu);
    for (int i = 0; fd >= 0 && i < GPU_PIECES; i++)
        if (!atomic_load(&gpu->file->piece[i].used) && take(gpu, fd, i)) {
            lseek(fd, (off_t)(POSITION + i), SEEK_SET);
            return fd;
        }
    gpu_piece_close(gpu, fd);
    return -1;
}

bool gpu_piece_reserve(struct gpu *gpu, int fd, uint64_t bytes) {
    int piece = gpu_piece_of(gpu, fd);
    struct gpu_file *f = gpu->file;
    return piece >= 0 && gpu_reserve_in(gpu, &f->piece[piece].used, bytes, &f->piece_home[piece]);
}

int gpu_piece_open(struct gpu *gpu, int piece, uint32_t generation) {
    int fd = piece >= 0 && piece < GPU_PIECES ? gpu_reopen(gpu) : -1;
    if (fd >= 0 && in_use(fd, piece) && !lock(fd, OFD_SETLK, F_RDLCK, piece) &&
        gpu_piece_generation(gpu, piece) == generation) {
        lseek(fd, (off_t)(POSITION + piece), SEEK_SET);
        return fd;
    }
    gpu_piece_close(gpu, fd);
    return -1;
}

int gpu_piece_of(struct gpu *gpu, int fd) {
    int64_t at = gpu_is_file(gpu, fd) ? lseek(fd, 0, SEEK_CUR) - POSITION : -1;
    return at >= 0 && at < GPU_PIECES ? (int)at : -1;
}

void gpu_piece_add(struct gpu *gpu, int fd, int64_t bytes) {
    int piece = gpu_piece_of(gpu, fd);
    if (piece < 0)
        return;
    if (bytes > 0)
        atomic_fetch_add(&gpu->file->piece[piece].used, (uint64_t)bytes);
    else
        atomic_fetch_sub(&gpu->file->piece[piece].used, (uint64_t)-bytes);
}

uint64_t gpu_piece_bytes(const struct gpu *gpu, int piece) { return atomic_load(&gpu->file->piece[piece].used); }
uint32_t gpu_piece_generation(const struct gpu *gpu, int piece) {
    return atomic_load(&gpu->file->piece[piece].generation);
}

void *gpu_piece_map(struct gpu *gpu, int fd, void *at, uint64_t size, uint64_t offset, int protection) {
    int piece = gpu_piece_of(gpu, fd);
    if (piece < 0 || offset > gpu_piece_room(gpu) || size > gpu_piece_room(gpu) - offset)
        return MAP_FAILED;
    return mmap(at, size, protection, MAP_SHARED | MAP_NORESERVE | (at ? MAP_FIXED : 0), fd,
                (off_t)(data_of(gpu, piece) + offset));
}

void gpu_piece_punch(struct gpu *gpu, int fd, uint64_t size, uint64_t offset) {
    int piece = gpu_piece_of(gpu, fd);
    if (piece >= 0)
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(data_of(gpu, piece) + offset), (off_t)size);
}

void gpu_piece_close(struct gpu *gpu, int fd) {
    if (!gpu_is_file(gpu, fd))
        return;
    close(fd);
    gpu_lock_pid(gpu);
}

void gpu_piece_freed(struct gpu *gpu, int piece) {
    uint32_t mine = (uint32_t)gpu->slot + 1;
    if (piece >= 0)
        atomic_compare_exchange_strong(&gpu->file->piece[piece].slot, &mine, 0);
}

void gpu_pieces_leave(struct gpu_file *file, int slot) {
    for (unsigned i = 0; i < gpu_count(&file->head.pieces, GPU_PIECES); i++) {
        uint32_t its = (uint32_t)slot + 1;
        atomic_compare_exchange_strong(&file->piece[i].slot, &its, 0);
    }
}

static int pieces(const struct gpu *gpu) { return (int)gpu_count(&gpu->file->head.pieces, GPU_PIECES); }

void gpu_pieces_reap(struct gpu *gpu, int fd) {
    for (int i = 0; i < pieces(gpu); i++)
        if (gpu_piece_bytes(gpu, i) && !lock(fd, F_SETLK, F_WRLCK, i)) {
            empty(gpu, fd, i);
            lock(fd, F_SETLK, F_UNLCK, i);
        }
}

uint64_t gpu_pieces_used(struct gpu *gpu, int fd, int slot) {
    uint64_t sum = 0;
    for (int i = 0; i < pieces(gpu); i++)
        if (gpu_piece_bytes(gpu, i) && (slot < 0 || atomic_load(&gpu->file->piece[i].slot) == (uint32_t)slot + 1) &&
            (fd < 0 || in_use(fd, i)))
            sum += gpu_piece_bytes(gpu, i);
    return sum;
}
