/* A condition that must hold: else the program says so and ends. */
#include <stdio.h>
#include <stdlib.h>

#define HOLD(what)                                                     \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                   \
        }                                                              \
    } while (0)
