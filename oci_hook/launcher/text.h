/* A piece of text that need not end with a zero byte. */
#ifndef TEXT_H
#define TEXT_H

#include <stddef.h>

struct text {
    const char *at;
    size_t size;
};

#endif
