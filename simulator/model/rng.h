/* Random numbers that are the same on every machine; hence no libm, whose last bits differ between C libraries. */
#ifndef GPU_HOOK_MODEL_RNG_H
#define GPU_HOOK_MODEL_RNG_H

#include <stdint.h>

struct rng {
    uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* Uniform in [0, 1). */
double rng_unit(struct rng *rng);

/* Quantiles of a log-normal distribution with mean 1. */
#define LOGNORMAL_STEPS 4096
const double *lognormal_table(double sigma);
/* Exponentially distributed with mean 1. */
double rng_exponential(struct rng *rng);

#endif
