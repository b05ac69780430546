/* What a container is said to want, and what it is charged. Prints nothing if all is right. */
#include <string.h>

#include "gate/usage.h"

#include "check.h"

/* In a tenth of a second in which it had work or a launch at the gate for so many ms, for some of them held by others. */
static uint32_t want(uint64_t wanted, uint64_t held, uint64_t burst) {
    static struct usage u;
    static struct gh_slot_head head;
    memset(&head, 0, sizeof head);
    head.asked_at = GH_S;
    head.held_for[3] = head.asked_held = 7 * GH_MS; /* before */
    u.head = &head;
    head.wanted = wanted * GH_MS;
    head.held_for[5] = held * GH_MS;
    head.burst = burst;
    usage_asked(&u, GH_S + 100 * GH_MS);
    return head.want;
}

/* Bursts of so much GPU time each, in turns by the processes of a container that has had an hour. */
static uint64_t burst_of(uint64_t charged, int processes) {
    struct usage u[8] = {0};
    struct gh_slot_head head = {.charged = 3600 * GH_S};
    for (int i = 0; i < 40; i++, head.charged += charged) {
        u[i % processes].head = &head;
        usage_burst(&u[i % processes]);
    }
    return head.burst;
}

static struct gh_slot_head one_head;
static struct usage one;
static uint64_t now;

/* Others have so many processes with work. */
static void begin(uint32_t others) {
    one_head = (struct gh_slot_head){0};
    one = (struct usage){0};
    uint32_t part = GH_PPM / (others + 1) * others;
    struct believed believed = {part, part};
    now = GH_S;
    usage_begin(&one, &one_head, now);
    usage_looked(&one, now, others, believed, false);
}

/* One command in so many streams, which takes so many us of time and costs so many; nothing else is in flight. */
static void command(unsigned streams, uint64_t took, uint64_t cost) {
    static struct gh_gpu gpu = {.present = 1};
    now += GH_MS;
    for (unsigned i = 0; i < streams; i++)
        usage_launched(&one, i + 1, i == 0, now);
    now += took * GH_US;
    for (unsigned i = 0; i < streams; i++)
        usage_charge(&one, &gpu, 0, now, cost * GH_US);
}

/* ms charged for 2000 commands of one shape, of which one in `rare` takes 2 ms, the others 20 us; each costs their mean. */
static uint64_t charged_of_uneven(uint64_t rare) {
    begin(0);
    for (uint64_t i = 0; i < 2000; i++)
        command(1, i % rare ? 20 : 2000, (20 * (rare - 1) + 2000) / rare);
    return one_head.charged / GH_MS;
}

static void what_is_charged(void) {
    CHECK(charged_of_uneven(1) == 4000);
    CHECK(charged_of_uneven(2) >= 2010 && charged_of_uneven(2) <= 2020); /* 1010 each, 10 may be owed at the end */
    CHECK(charged_of_uneven(20) >= 228 && charged_of_uneven(20) <= 238);
    begin(0);
    for (int i = 0; i < 100; i++)
        command(1, 20, 2000); /* costs that time does not confirm */
    CHECK(one_head.charged == 100 * 20 * GH_US);
    command(1, 60000, 20); /* that much is owed, and no more */
    CHECK(one_head.charged == 100 * 20 * GH_US + 10 * GH_MS + 20 * GH_US);
    for (int i = 0; i < 100; i++)
        command(1, 1, 500);
    CHECK(one_head.charged <=
          100 * 21 * GH_US + 20 * GH_MS + 20 * GH_US); /* time without a charge makes up for 10 ms */
    begin(0);
    command(1, 60000, 20);
    uint64_t before = one_head.charged;
    for (int i = 0; i < 100; i++)
        command(2, 1000, 1000); /* in parallel: they had the GPU for 1 ms, neither more before nor the rest later */
    command(1, 5000, 1000);
    CHECK(one_head.charged - before == 101 * GH_MS);
    begin(1);
    for (uint64_t i = 0; i < 2000; i++)
        command(1, i % 20 ? 25 : 2000, 400); /* a mean of long ago; the 2 ms are a time slice of another */
    CHECK(one_head.charged == 100 * (19 * 25 + 400) * GH_US);
}

int main(void) {
    what_is_charged();
    CHECK(burst_of(4 * GH_MS, 1) > 3900 * GH_US && burst_of(4 * GH_MS, 1) <= 4 * GH_MS);
    CHECK(burst_of(GH_MS, 1) <= GH_MS); /* however long they take: beside others, or launched slowly */
    CHECK(burst_of(GH_MS, 8) == burst_of(GH_MS, 1));
    CHECK(want(20, 0, GH_MS) == GH_PPM / 5);
    CHECK(want(100, 0, GH_MS) == GH_PPM);
    CHECK(want(28, 20, GH_MS) == GH_PPM / 10); /* of the 80 ms in which nobody held it */
    CHECK(want(100, 70, GH_MS) == GH_PPM);
    CHECK(want(100, 100, GH_MS) == GH_PPM && want(5, 500, GH_MS) == 1);
    CHECK(want(20, 0, 3 * GH_MS) == GH_PPM); /* time slices would double such bursts */
    return wrong;
}
