/* A library that is linked against libcuda, as frameworks' are. */
#define DIRECT
#include "fill.h"

__attribute__((visibility("default"))) int run(const char *how) { return fill(direct, how); }
