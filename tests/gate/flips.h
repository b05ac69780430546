/* What flips.c and its driver share: structures of the CUDA interface, and what the driver saw of a call. */
#include <stddef.h>
#include <stdint.h>

struct attribute {
    int id, pad;
    unsigned char value[64];
};
struct config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    struct attribute *attributes;
    unsigned count;
};
struct launch {
    void *f;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    void **parameters;
};
struct flat {
    struct {
        size_t x, y;
        unsigned type;
        void *host;
        uint64_t device;
        void *array;
        size_t pitch;
    } from, to;
    size_t width, height;
};
struct solid {
    struct {
        size_t x, y, z, level;
        unsigned type;
        void *host;
        uint64_t device;
        void *array, *reserved;
        size_t pitch, height;
    } from, to;
    size_t width, height, depth;
};
struct op {
    struct {
        unsigned type;
        uint64_t at;
        size_t more[3];
    } from, to;
    size_t width, height, depth;
    unsigned order, flags;
};

struct fabric {
    struct {
        unsigned type;
        uint64_t at, hint;
    } from, to;
    size_t size;
    unsigned flags;
};
struct packed {
    size_t packed, unpacked;
    void *written, *from, *to;
    int algorithm;
    unsigned char padding[20];
};

struct seen {
    unsigned calls;
    size_t n;      /* length of the list */
    uint64_t size; /* the first dimension, or all bytes */
    uint64_t sum;  /* of what is in the list */
};
