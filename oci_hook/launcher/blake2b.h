/* BLAKE2b (RFC 7693) without a key, of 16 bytes: the key of a grant, as ledger/store.py makes it. */
#ifndef BLAKE2B_H
#define BLAKE2B_H

#include <stddef.h>

enum { BLAKE2B_SIZE = 16 };

void blake2b(const void *data, size_t size, unsigned char digest[BLAKE2B_SIZE]);

#endif
