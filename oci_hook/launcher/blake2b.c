/* See blake2b.h. The names are those of RFC 7693, section 3. */
#include "blake2b.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK = 128, ROUNDS = 12 };

static const uint64_t iv[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
static const unsigned char sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotated(uint64_t x, int by) { return x >> by | x << (64 - by); }

static void mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = rotated(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotated(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotated(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotated(v[b] ^ v[c], 63);
}

static uint64_t word(const unsigned char *at) {
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | at[i];
    return x;
}

/* seen: bytes up to the end of this block. */
static void compress(uint64_t h[8], const unsigned char block[BLOCK], uint64_t seen, int is_last) {
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++)
        m[i] = word(block + 8 * i);
    memcpy(v, h, 8 * sizeof *v);
    memcpy(v + 8, iv, sizeof iv);
    v[12] ^= seen;
    v[14] ^= is_last ? UINT64_MAX : 0;
    for (int round = 0; round < ROUNDS; round++) {
        const unsigned char *s = sigma[round % 10];
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[8 + i];
}

void blake2b(const void *data, size_t size, unsigned char digest[BLAKE2B_SIZE]) {
    const unsigned char *at = data;
    unsigned char last[BLOCK] = {0};
    uint64_t h[8], seen = 0;
    memcpy(h, iv, sizeof h);
    h[0] ^= 0x01010000 ^ BLAKE2B_SIZE;
    for (; size - seen > BLOCK; at += BLOCK)
        compress(h, at, seen += BLOCK, 0);
    memcpy(last, at, size - seen);
    compress(h, last, size, 1);
    for (int i = 0; i < BLAKE2B_SIZE; i++)
        digest[i] = (unsigned char)(h[i / 8] >> 8 * (i % 8));
}
