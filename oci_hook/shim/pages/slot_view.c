#include <string.h>

#include "pages/slot_page.h"

static uint64_t age(uint64_t now, uint64_t then) { return then < now ? now - then : 0; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

struct gh_slot gh_slot_view(const void *bytes, size_t length, uint64_t now, uint64_t stale, unsigned *contexts) {
    struct gh_slot s = {0};
    struct gh_slot_head h;
    *contexts = 0;
    if (length != GH_SLOT_FILE_SIZE)
        return s;
    memcpy(&h, bytes, sizeof h);
    if (h.magic != GH_SLOT_MAGIC || h.version != GH_SLOT_VERSION)
        return s;
    s = (struct gh_slot){.v = h.v,
                         .duty = h.duty < GH_PPM ? h.duty : GH_PPM,
                         .saturated = h.saturated != 0,
                         .epoch = h.epoch,
                         .start = h.start,
                         .end = h.end,
                         .probe_until = h.probe_until,
                         .active_at = h.active_at,
                         .idle_since = h.idle_since,
                         .woke_at = h.woke_at,
                         .linger = h.linger};
    unsigned top = h.top < GH_SUB_SLOTS ? h.top : GH_SUB_SLOTS;
    for (unsigned i = 0; i < top; i++) {
        struct gh_sub_slot sub;
        memcpy(&sub, (const char *)bytes + sizeof h + i * sizeof sub, sizeof sub);
        if (!sub.owner)
            continue;
        s.done_at = most(s.done_at, sub.done_at);
        s.heartbeat = most(s.heartbeat, sub.heartbeat);
        if (least(age(now, sub.heartbeat), age(now, sub.done_at)) > stale)
            continue;
        s.held |= sub.held != 0;
        if (sub.launched > sub.done) {
            ++*contexts;
            s.launched += least(sub.launched - sub.done, 1u << 30);
            s.residue += least(sub.residue, GH_S);
        }
    }
    return s;
}
