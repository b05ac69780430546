/* What a container is said to want. Prints nothing if all is right. */
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

int main(void) {
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
