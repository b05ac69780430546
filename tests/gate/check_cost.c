/* When cost.c measures, and what it learns of kernels whose time depends on others. Prints nothing if all is right. */
#include <stdlib.h>

#include "gate/cost.h"

#include "check.h"

static uint64_t waited;
static uint64_t alone(struct cost *c, uint64_t us) {
    return cost_seen(c, GH_COST_UNKNOWN, us * GH_US, us * GH_US, true, true, true, &waited);
}
static uint64_t beside(struct cost *c, uint64_t us, uint64_t contexts) {
    return cost_seen(c, GH_COST_UNKNOWN, us * GH_US, us * GH_US / contexts, true, true, false, &waited);
}

/* A launch of a key that is there or not; its guess. It takes so long. */
static uint64_t launched(struct cost_table *table, uint64_t key, struct cost_what what) {
    struct cost *c = cost_of(table, key);
    c->what = what;
    uint64_t guess = cost_guess(table, c);
    cost_launched(table, c);
    return guess;
}
static void took(struct cost_table *table, uint64_t key, uint64_t us) {
    struct cost *c = cost_of(table, key);
    alone(c, us);
    cost_kin_seen(table, c, us * GH_US, true);
}
static bool about(uint64_t guess, uint64_t us) { return guess >= us * GH_US * 9 / 10 && guess <= us * GH_US * 3 / 2; }

/* Handles that never repeat: many, of one name or of many, of two lengths; and then some that are as nobody was. */
static void fresh(bool named) {
    struct cost_table *table = calloc(1, sizeof *table);
    uint64_t odd = 0, kept = 7;
    for (uint64_t i = 1; i <= 100000; i++) {
        struct cost_what one = {COST_KERNEL, 1000 + i, named ? 77 : 0, 10};
        uint64_t us = i % 2 ? 100 : 80, guess = launched(table, i * 0x9e3779b97f4a7c15ull, one);
        /* The first function below counts as well. */
        CHECK(i <= 3 ? guess == GH_COST_UNKNOWN : about(guess, 90));
        took(table, i * 0x9e3779b97f4a7c15ull, us);
        /* A function that is used all the time keeps its place, though each of its shapes is new. */
        kept = kept * 6364136223846793005ull + 1;
        one = (struct cost_what){COST_KERNEL, 1, 5, 1 + i % 100};
        guess = launched(table, kept, one);
        odd += i > 1000 && !about(guess, 1 + i % 100);
        took(table, kept, 1 + i % 100);
    }
    CHECK(odd == 0);
    for (uint64_t i = 0; i < 20; i++) /* none of these is done: a few are guessed by others, then none */
        CHECK((launched(table, 3 + 2 * i, (struct cost_what){COST_KERNEL, 2, 0, 10}) == GH_COST_UNKNOWN) == (i >= 4));
    for (uint64_t i = 0; i < 4; i++)
        took(table, 3 + 2 * i, 50000);
    CHECK(about(launched(table, 999, (struct cost_what){COST_KERNEL, 2, 0, 10}), 50000));
    /* Ten times as long, and then again ten times: what differs so much is no guide for a function that is quite new. */
    for (uint64_t i = 1, us = 1; i <= 64; i++, us = us < 100000 ? us * 10 : 1) {
        launched(table, ~i, (struct cost_what){COST_GRAPH, ~i, 0, 1});
        took(table, ~i, us);
    }
    CHECK(launched(table, ~99ull, (struct cost_what){COST_GRAPH, ~99ull, 0, 1}) == GH_COST_UNKNOWN);
    free(table);
}

/* The first time of a key whose kind takes 8 us, beside others: what a time slice explains is none of its own. */
static void first_beside(void) {
    struct cost one = {0}, two = {0}, three = {0}, four = {0};
    uint64_t guess = 8 * GH_US;
    CHECK(cost_seen(&one, guess, 2000 * GH_US, 1000 * GH_US, false, true, false, &waited) == guess && !waited);
    CHECK(!one.cost.samples[0] && cost_estimate(&one) == GH_COST_UNKNOWN); /* nothing was learned of it */
    CHECK(cost_seen(&two, guess, 2000 * GH_US, 1000 * GH_US, true, true, false, &waited) == 1000 * GH_US); /* queued */
    CHECK(cost_seen(&three, guess, 12000 * GH_US, 6000 * GH_US, false, true, false, &waited) == 6000 * GH_US);
    CHECK(cost_seen(&four, guess, 2000 * GH_US, 2000 * GH_US, false, true, true, &waited) == 2000 * GH_US); /* alone */
    CHECK(cost_seen(&(struct cost){0}, GH_COST_UNKNOWN, 2000 * GH_US, 1000 * GH_US, false, true, false, &waited) ==
          1000 * GH_US);
}

int main(void) {
    first_beside();
    fresh(false);
    fresh(true);

    /* Graphs of one length that are made anew, also where an old one was; a copy, by its size. */
    struct cost_table *anew = calloc(1, sizeof *anew);
    for (uint64_t i = 1; i <= 1000; i++) {
        struct cost_what graph = {COST_GRAPH, i % 10 * 64 + 64, 0, 1};
        uint64_t guess = launched(anew, graph.function, graph);
        CHECK(i <= 4 ? guess == GH_COST_UNKNOWN : about(guess, 4000));
        took(anew, graph.function, 4000);
        cost_forget(anew, graph.function);
        struct cost_what copy = {COST_COPY, COST_COPIES, 0, 1024 * i};
        guess = launched(anew, 1 << 20 | i, copy);
        CHECK(i <= 8 || about(guess, i));
        took(anew, 1 << 20 | i, i);
    }
    free(anew);
    struct cost c = {0};

    /* Not elastic: steady times, with time slices of others in between. */
    for (int i = 0; i < 200; i++) {
        CHECK(alone(&c, 20 + (uint64_t)i % 3) < 30 * GH_US);
        CHECK(beside(&c, i % 10 ? 21 : 1060, 2) < 30 * GH_US);
        CHECK(!cost_elastic(&c) && waited == 0);
    }
    CHECK(cost_estimate(&c) > 15 * GH_US && cost_estimate(&c) < 30 * GH_US);
    /* Not elastic: times that are only uneven, log-normal with sigma of about 0.5. */
    static const uint64_t uneven[] = {30, 41, 50, 58, 66, 75, 85, 97, 112, 136, 190};
    struct cost u = {0};
    for (uint64_t i = 0; i < 3000; i++) {
        alone(&u, uneven[i * i * 7 % 11]);
        CHECK(!cost_elastic(&u));
    }
    /* Not elastic: one key for kernels of all sizes, none of which is long. */
    u = (struct cost){0};
    for (uint64_t i = 0; i < 3000; i++) {
        alone(&u, i % 10 ? 20 : 1000);
        CHECK(!cost_elastic(&u));
    }
    /* No time slice is so long: charged as measured, even before the key is known to be elastic. */
    CHECK(beside(&c, 40000, 2) == 20 * GH_MS);

    /* Elastic, charged as measured: one launch in four waits. */
    c = (struct cost){0};
    for (uint64_t i = 0; i < 40; i++)
        alone(&c, i % 4 ? 20 : 10000);
    CHECK(cost_elastic(&c));
    CHECK(cost_estimate(&c) > GH_MS);
    CHECK(alone(&c, 10000) == 10 * GH_MS && waited == 0);
    CHECK(alone(&c, 20) == 20 * GH_US);
    CHECK(beside(&c, 1000, 2) == 500 * GH_US);
    /* A key can stop being elastic. */
    for (int i = 0; i < 2000; i++)
        alone(&c, 20);
    CHECK(!cost_elastic(&c));

    /* Measured at first, then after so much work or so many, whatever else is launched between; an event that is
     * there anyway is used. */
    c = (struct cost){0};
    for (int i = 0; i < 4; i++) {
        CHECK(cost_due(&c, false));
        alone(&c, 80);
    }
    CHECK(!cost_due(&c, false) && !cost_due(&c, false) && cost_due(&c, false) && !cost_due(&c, false));
    CHECK(cost_due(&c, true) && !cost_due(&c, false) && !cost_due(&c, false) && cost_due(&c, false));
    c = (struct cost){0};
    for (int i = 0; i < 4; i++)
        alone(&c, 1);
    for (int i = 1; i < 320; i++)
        CHECK(cost_due(&c, false) == (i % 32 == 0));

    /* A collective by its name, from the first launch on; its wait is reported apart. */
    c = (struct cost){.collective = true};
    CHECK(cost_elastic(&c) && cost_estimate(&c) < GH_MS);
    CHECK(alone(&c, 500000) == 500 * GH_MS && waited > 499 * GH_MS);
    CHECK(alone(&c, 20) == 20 * GH_US && waited == 0);
    CHECK(alone(&c, 5020) == 5020 * GH_US && waited >= 4999 * GH_US && waited <= 5000 * GH_US);
    CHECK(cost_is_collective("_Z40ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"));
    CHECK(cost_is_collective("void vllm::cross_device_reduce_1stage<float, 2>"));
    CHECK(!cost_is_collective("ampere_sgemm_128x64_tn") && !cost_is_collective(""));

    /* Whoever asks again for a key gets the same cost, from a place of the table. */
    struct cost_table *table = calloc(1, sizeof *table);
    for (uint64_t key = 1; key <= GH_COSTS; key++) {
        unsigned place = 0;
        struct cost *first = cost_again(table, key, &place);
        CHECK(place && place <= GH_COSTS && table->place[place - 1].key == key);
        CHECK(place && place <= GH_COSTS && cost_again(table, key, &place) == first);
    }
    free(table);

    /* No wait at a cap is longer than ten seconds. */
    uint64_t now = 100 * GH_S, credit = cost_take(now, 100000, 10 * GH_MS, now, 500 * (int64_t)GH_S);
    CHECK(credit == now + 10 * GH_S);
    return wrong;
}
