#include "rng.h"

#include <stdlib.h>

uint64_t rng_next(struct rng *rng) { /* splitmix64 */
    uint64_t z = rng->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

double rng_unit(struct rng *rng) { return (double)(rng_next(rng) >> 11) * 0x1p-53; }

static double exp_(double x) {
    /* Halves x into the range where twelve terms of the series are exact to a double, then squares the result. */
    int halvings = 0;
    while (x > 0.25 || x < -0.25) {
        x /= 2;
        halvings++;
    }
    double sum = 1, term = 1;
    for (int i = 1; i <= 12; i++)
        sum += term *= x / i;
    while (halvings--)
        sum *= sum;
    return sum;
}

static double log_(double x) { /* by Newton's method on exp_, from a rough start */
    double y = 0;
    while (x > 1.5) {
        x /= 2;
        y += 0.69314718055994531;
    }
    while (x < 0.75) {
        x *= 2;
        y -= 0.69314718055994531;
    }
    double z = x - 1;
    for (int i = 0; i < 6; i++)
        z += 2 * (x - exp_(z)) / (x + exp_(z));
    return y + z;
}

double rng_exponential(struct rng *rng) { return -log_(1 - rng_unit(rng)); }

/* The normal distribution function, by a series whose terms are all positive; |x| <= 5. */
static double normal_below(double x) {
    double sum = x, term = x;
    for (int i = 1; i < 120 && term * term > 1e-28; i++)
        sum += term *= x * x / (2 * i + 1);
    return 0.5 + sum * exp_(-x * x / 2) * 0.39894228040143268;
}

/* Normal quantiles at the middles of equal steps, by Newton's method; each starts from its neighbour towards 0.5. */
static void normal_quantiles(double *q) {
    double x = 0;
    for (int i = LOGNORMAL_STEPS / 2; i < LOGNORMAL_STEPS; i++) {
        double target = (i + 0.5) / LOGNORMAL_STEPS;
        for (int k = 0; k < 5; k++)
            x += (target - normal_below(x)) / (exp_(-x * x / 2) * 0.39894228040143268);
        q[i] = x;
        q[LOGNORMAL_STEPS - 1 - i] = -x;
    }
}

const double *lognormal_table(double sigma) {
    enum { KEPT = 16 };
    static struct {
        double sigma;
        double *table;
    } kept[KEPT];
    static double normal[LOGNORMAL_STEPS];
    static int filled;
    if (normal[0] == 0)
        normal_quantiles(normal);
    for (int i = 0; i < filled; i++)
        if (kept[i].sigma == sigma)
            return kept[i].table;
    int slot = filled < KEPT ? filled++ : KEPT - 1;
    if (!kept[slot].table)
        kept[slot].table = malloc(sizeof(double) * LOGNORMAL_STEPS);
    if (!kept[slot].table)
        abort();
    double sum = 0;
    for (int i = 0; i < LOGNORMAL_STEPS; i++)
        sum += kept[slot].table[i] = exp_(sigma * normal[i]);
    for (int i = 0; i < LOGNORMAL_STEPS; i++)
        kept[slot].table[i] *= LOGNORMAL_STEPS / sum;
    kept[slot].sigma = sigma;
    return kept[slot].table;
}
