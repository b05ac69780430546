/* A check that fails is told on stderr; main returns `wrong`. */
#pragma once
#include <stdio.h>

static int wrong;
#define CHECK(x)                                                               \
    do {                                                                       \
        if (!(x))                                                              \
            wrong = 1, fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
    } while (0)
