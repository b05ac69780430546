/* Fuzz target: a slot file with any bytes, read alone and used in a decision. libFuzzer uses it as it is. With
 * -DGH_FUZZ_MAIN, `fuzz_slot SEED COUNT` makes its own inputs and `fuzz_slot FILE` runs one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gate/decide.h"
#include "pages/slot_page.h"

#define HOLD(what)                                                     \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            abort();                                                   \
        }                                                              \
    } while (0)

/* Fills the stack, which must not change any answer. */
__attribute__((noinline)) static void leave_on_stack(int byte) {
    uint8_t junk[8192];
    memset(junk, byte, sizeof junk);
    __asm__ volatile("" : : "r"(junk) : "memory");
}

__attribute__((noinline)) static struct gh_slot *view(struct gh_slot *out, const uint8_t *data, size_t size,
                                                      uint64_t now, unsigned *contexts) {
    *out = gh_slot_view(data, size, now, 50 * GH_MS, contexts);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct gh_gpu gpu;
    struct gh_own own = {0};
    uint64_t now = 1000 * GH_S;
    unsigned contexts, again;
    uint8_t *exact = malloc(size ? size : 1); /* so that the sanitizer sees a read beyond its end */
    memcpy(exact, data, size);
    leave_on_stack(0x55);
    struct gh_slot s, same;
    memset(&s, 0x55, sizeof s);
    view(&s, exact, size, now, &contexts);
    leave_on_stack(0xaa);
    memset(&same, 0xaa, sizeof same);
    view(&same, exact, size, now, &again);
    free(exact);
    HOLD(!memcmp(&s, &same, sizeof s) && contexts == again); /* I15; the struct has no padding (gpu_view.h) */
    HOLD(size == GH_SLOT_FILE_SIZE || (!s.heartbeat && !s.v && !contexts));
    HOLD(contexts <= GH_SLOT_PROCESSES && (contexts > 0) == (s.launched != s.done));
    HOLD(s.duty <= GH_PPM && s.residue <= GH_SLOT_PROCESSES * GH_S && s.uncharged <= GH_SLOT_PROCESSES * GH_S &&
         !s.ended);
    gh_rules_default(&gpu.rules);
    gpu.present = 3;
    gpu.seen = now;
    gpu.share[0] = gpu.share[1] = (struct gh_share){.class_ = 1, .weight = 100};
    gpu.slot[0] = (struct gh_slot){.heartbeat = now, .active_at = now, .saturated = 1, .duty = GH_PPM};
    gpu.slot[1] = s;
    leave_on_stack(0x55);
    struct gh_decision d = gh_decide(&gpu, 0, &own, now, 80 * GH_US);
    leave_on_stack(0xaa);
    struct gh_decision e = gh_decide(&gpu, 0, &own, now, 80 * GH_US);
    HOLD(d.go == e.go && d.mode == e.mode && d.on == e.on && d.slot == e.slot && d.takes == e.takes &&
         d.held == e.held && d.until == e.until && d.epoch == e.epoch && d.start == e.start && d.end == e.end &&
         d.probe_until == e.probe_until && d.ahead == e.ahead);
    HOLD(d.go || (d.until >= now && d.until <= now + 100 * GH_MS + 2 * GH_MS)); /* I2 */
    HOLD(gh_weight(&gpu, 0, now) > 0);
    return 0;
}

#ifdef GH_FUZZ_MAIN
static uint64_t state;
static uint64_t draw(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 17 ^ state << 41;
}

int main(int argc, char **argv) {
    static union {
        struct gh_slot_page page;
        uint64_t word[GH_SLOT_FILE_SIZE / 8 + 64];
        uint8_t bytes[GH_SLOT_FILE_SIZE + 512];
    } in;
    if (argc == 2) {
        FILE *f = fopen(argv[1], "rb");
        size_t n = f ? fread(in.bytes, 1, sizeof in.bytes, f) : 0;
        return LLVMFuzzerTestOneInput(in.bytes, n);
    }
    unsigned long count = strtoul(argv[2], NULL, 10);
    state = strtoull(argv[1], NULL, 10) * 77777 + 1;
    for (unsigned long i = 0; i < count; i++) {
        const uint64_t now = 1000 * GH_S;
        memset(&in, 0, sizeof in);
        in.page.head.magic = GH_SLOT_MAGIC;
        in.page.head.version = draw() % 16 ? GH_SLOT_VERSION : (uint32_t)draw();
        in.page.head.top = draw() % 8 ? (uint32_t)(draw() % 200) : (uint32_t)draw();
        for (unsigned k = 0; k < 200; k++) {
            uint64_t value[] = {draw(), draw() % 4, now - draw() % (100 * GH_MS), now + draw() % (100 * GH_MS),
                                UINT64_MAX};
            unsigned at = 3 + (unsigned)(draw() % (k < 30 ? 20 : GH_SLOT_FILE_SIZE / 8 - 3));
            in.word[at] = value[draw() % 5];
        }
        if (draw() % 20 == 0)
            in.page.head.magic = draw();
        size_t size = draw() % 4 ? GH_SLOT_FILE_SIZE : draw() % sizeof in.bytes;
        LLVMFuzzerTestOneInput(in.bytes, size);
    }
    printf("%lu\n", count);
    return 0;
}
#endif
