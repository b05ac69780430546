#include <string.h>

#include "pages/arithmetic.h"
#include "pages/slot_page.h"

/* A time of one clock that all share lies ahead of a reader by no more than what it slept while it read: `stale` at most. One
 * that lies further ahead would never age. */
static uint64_t past(uint64_t now, uint64_t stale, uint64_t then) {
    return then > now && then - now > stale ? 0 : then;
}

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
                         .want = h.want < GH_PPM ? h.want : GH_PPM,
                         .epoch = h.epoch,
                         .start = h.start,
                         .end = h.end,
                         .probe_until = h.probe_until,
                         .active_at = past(now, stale, h.active_at),
                         .idle_since = past(now, stale, h.idle_since),
                         .woke_at = past(now, stale, h.woke_at),
                         .linger = h.linger};
    unsigned top = h.top < GH_SLOT_PROCESSES ? h.top : GH_SLOT_PROCESSES;
    for (unsigned i = 0; i < top; i++) {
        struct gh_slot_process record;
        memcpy(&record, (const char *)bytes + sizeof h + i * sizeof record, sizeof record);
        if (!record.owner)
            continue;
        s.launched += record.done;
        s.done += record.done; /* whether it has moved tells that something was finished */
        record.done_at = past(now, stale, record.done_at);
        record.heartbeat = past(now, stale, record.heartbeat);
        s.done_at = max64(s.done_at, record.done_at);
        s.heartbeat = max64(s.heartbeat, record.heartbeat);
        if (min64(age64(now, record.heartbeat), age64(now, record.done_at)) > stale)
            continue;
        s.held |= record.held != 0;
        s.processes += s.processes < UINT8_MAX;
        if (record.launched > record.done) {
            ++*contexts;
            s.launched += min64(record.launched - record.done, 1u << 30);
            s.residue += min64(record.residue, GH_S);
            s.uncharged += min64(record.uncharged, GH_S);
        }
    }
    return s;
}
