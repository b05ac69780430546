/* Fuzz target: the readers of the policy page and the account page, with any bytes that others may have written there.
 * The input is a program that damages the two pages and makes the calls that the shim makes, in any order. It checks
 * what must hold whatever the pages say; the sanitizers check the rest.
 *
 * libFuzzer and AFL++ use it as it is. With -DGH_FUZZ_MAIN it has a main: `fuzz_pages SEED COUNT` makes its own inputs,
 * `fuzz_pages FILE...` runs inputs that were found. docs/internals/account-page.md tells how. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "account/account.h"
#include "account/free_cache.h"
#include "account/slot_lock.h"
#include "pages/layout.h"
#include "process/policy.h"

#define HOLD(what)                                                     \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            abort();                                                   \
        }                                                              \
    } while (0)

#define NOBODY 0x3fffffu /* a pid that no process has, so that only the input decides what happens */

static const uint8_t *at, *end;
static uint64_t take(unsigned bytes) {
    uint64_t n = 0;
    while (bytes-- && at < end)
        n = n << 8 | *at++;
    return n;
}

/* Mostly meaningful words: small numbers, powers of two, our own identity, all ones. */
static uint64_t word(const struct gh_state *st) {
    uint64_t n = take(1);
    switch (n & 7) {
    case 0: return n >> 3;
    case 1: return 1ull << (take(1) & 63);
    case 2: return st->me + (n >> 3 & 1);
    case 3: return ~(n >> 3);
    case 4: return gh_word(take(2) << (n >> 3), take(2) & GH_SLOT_MASK, take(1)); /* a total */
    case 5: return take(2) << (GH_TAG_BITS + (n >> 3)) | take(1);                 /* announced or committed */
    case 6: return gh_owner(n & 8 ? 1 : NOBODY - 1, n & 16 ? (uint32_t)take(2) : 0);
    default: return take(8);
    }
}

static struct gh_policy_page *policy; /* allocated with exactly their sizes, for the sanitizer */
static struct gh_account_page *account;
static int file, other_file;          /* only for locks: the page itself is in our memory */
static bool locked[GH_ACCOUNT_SLOTS]; /* through other_file, as if by another process */

static void open_file(struct gh_state *st) {
    struct stat found;
    if (!file) {
        mkdir(GH_PRIVATE, 0755);
        mkdir(GH_PRIVATE "/account", 0755);
        HOLD((file = open(GH_ACCOUNT_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0666)) > 0 &&
             !ftruncate(file, sizeof *account));
        HOLD((other_file = open(GH_ACCOUNT_FILE, O_RDWR | O_CLOEXEC)) > 0);
    }
    HOLD(!fstat(file, &found));
    st->account_device = found.st_dev;
    st->account_inode = found.st_ino;
    for (unsigned slot = 0; slot < GH_ACCOUNT_SLOTS; slot++)
        if (locked[slot])
            gh_slot_unlock(other_file, slot);
    memset(locked, 0, sizeof locked);
}

static void lock_elsewhere(unsigned slot) {
    if (locked[slot])
        gh_slot_unlock(other_file, slot);
    locked[slot] = !locked[slot] && gh_slot_lock(other_file, slot);
}

static void damage_policy(void) {
    uint8_t *bytes = (uint8_t *)policy;
    uint64_t offset = take(2), n = take(1);
    if (n & 1) /* damage what matters: the head, or the numbers in a record */
        offset = n & 2 ? offset % 32 : 128 + offset % 16 * 128 + 48 + (offset >> 4) % 40;
    for (n = n >> 2 & 7; n != UINT64_MAX; n--)
        bytes[(offset + n) % GH_POLICY_SIZE] = (uint8_t)take(1);
}

static void damage_account(const struct gh_state *st) {
    uint64_t n = take(1), slot = n & 8 ? atomic_load(&st->slot) : take(2) & GH_SLOT_MASK, gpu = n >> 4, m;
    struct gh_account_entry *e = &account->entry[slot][gpu];
    uint64_t to = word(st);
    switch (n & 7) {
    case 0: atomic_store(&account->gpu[gpu].total, to); break;
    case 1: atomic_store(&account->gpu[gpu].surcharge, to); break;
    case 2: atomic_store(&account->owner[slot], to); break;
    case 3: lock_elsewhere((unsigned)slot); break;
    case 4: atomic_store(&e->announce, to); break;
    case 5: atomic_store(&e->committed, to); break;
    case 6: atomic_store(&e->ack, to); break;
    default:
        m = take(1) & 3;
        atomic_store(m == 0 ? &e->contexts : m == 1 ? &account->gpu[gpu].cached : &account->free_cache[slot][gpu], to);
    }
}

static void check_policy(struct gh_state *st, unsigned gpu) {
    struct gh_limit limit = {0};
    char uuid[48];
    memcpy(uuid, policy->gpu[gpu % GH_POLICY_GPUS].uuid, sizeof uuid);
    uuid[sizeof uuid - 1] = 0;
    bool valid = gh_policy_valid(policy) && !(policy->seq & 1);
    bool known = gh_policy_limit(st, gpu, &limit);
    HOLD(known == (valid && gpu < policy->ngpus));
    HOLD(!known || limit.bytes == policy->gpu[gpu].memory_limit);
    HOLD(gh_policy_usable(st) == valid);
    int found = gh_policy_find(st, uuid);
    HOLD(found >= -1 && found < GH_POLICY_GPUS && (valid || found < 0));
    HOLD(found < 0 || (uint32_t)found < policy->ngpus);
    HOLD(!valid || gpu >= policy->ngpus || !uuid[0] || (found >= 0 && (unsigned)found <= gpu));
}

static uint64_t sum_of(unsigned gpu) {
    uint64_t sum = 0;
    for (unsigned slot = 1; slot < GH_ACCOUNT_SLOTS; slot++)
        if (atomic_load(&account->owner[slot]))
            sum += gh_account_slot_charged(account, slot, gpu);
    return sum;
}

static void reserve(struct gh_state *st, unsigned gpu, uint64_t held[]) {
    uint64_t units = word(st) >> (take(1) & 63), limit = word(st) & GH_VALUE_MAX;
    enum gh_reservation done = gh_reserve(st, gpu, units, limit);
    if (done != GH_RESERVED)
        return;
    held[gpu] += units;
    uint64_t more = limit < GH_UNLIMITED ? atomic_load(&account->gpu[gpu].surcharge) : 0;
    uint64_t total = gh_word_value(atomic_load(&account->gpu[gpu].total));
    HOLD(!units || (total <= limit && more <= limit - total));
}

static void sweep(struct gh_state *st, const uint64_t held[]) {
    unsigned slot = atomic_load(&st->slot);
    static uint64_t owner[GH_ACCOUNT_SLOTS];
    for (unsigned i = 0; i < GH_ACCOUNT_SLOTS; i++)
        owner[i] = atomic_load(&account->owner[i]);
    gh_sweep(st);
    for (unsigned i = 1; i < GH_ACCOUNT_SLOTS; i++) /* only the lock decides */
        HOLD(atomic_load(&account->owner[i]) == (locked[i] || i == slot ? owner[i] : 0));
    for (unsigned gpu = 0; gpu < GH_ACCOUNT_GPUS; gpu++) {
        uint64_t sum = sum_of(gpu);
        HOLD(sum > GH_VALUE_MAX || sum == gh_word_value(atomic_load(&account->gpu[gpu].total)));
        HOLD(gh_own_units(st, gpu) >= held[gpu]); /* never less than what we hold */
        if (slot && atomic_load(&account->owner[slot]) == st->me)
            HOLD(gh_account_slot_charged(account, slot, gpu) == gh_own_units(st, gpu));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct gh_state *st;
    uint64_t held[GH_ACCOUNT_GPUS] = {0};
    if (!st)
        HOLD((st = gh_here()) && (policy = malloc(GH_POLICY_SIZE)) && (account = aligned_alloc(64, sizeof *account)));
    if (st->slot_lock)
        munmap(st->slot_lock, 4096);
    close_range(100, ~0u, 0); /* the lock's descriptor: the slot of the run before is free */
    memset(st, 0, sizeof *st);
    st->me = gh_owner(NOBODY, 1);
    open_file(st);
    atomic_store(&st->said, ~0u);
    atomic_store(&st->phase, 2);
    atomic_store(&st->policy, policy);
    atomic_store(&st->account, account);
    memset(account, 0, sizeof *account);
    memset(policy, 0, GH_POLICY_SIZE);
    at = data;
    end = data + size;
    policy->magic = GH_POLICY_MAGIC;
    policy->version = GH_POLICY_VERSION;
    policy->size = GH_POLICY_SIZE;
    policy->ngpus = (uint32_t)take(1) % (GH_POLICY_GPUS + 1);
    for (unsigned i = 0; i < GH_POLICY_GPUS; i++) {
        snprintf(policy->gpu[i].uuid, sizeof policy->gpu[i].uuid, "GPU-%02x", i);
        policy->gpu[i].memory_limit = (i + 1ull) << 30;
    }
    for (int n = 0; at < end && n < 200; n++) {
        uint64_t op = take(1);
        unsigned gpu = op >> 4;
        switch (op & 15) {
        case 0:
        case 1: damage_policy(); break;
        case 2: check_policy(st, gpu + (take(1) & 1) * 16); break;
        case 3:
        case 4:
        case 5: damage_account(st); break;
        case 6:
        case 7: reserve(st, gpu, held); break;
        case 8: {
            uint64_t units = held[gpu] >> (take(1) & 7);
            held[gpu] -= units;
            gh_release(st, gpu, units);
            break;
        }
        case 9: sweep(st, held); break;
        case 10: HOLD(gh_total(st, gpu) <= GH_VALUE_MAX); break;
        case 11:
            gh_press(st, gpu);
            HOLD(!gh_pressed(st, gpu));
            break;
        case 12: gh_count_contexts(st, gpu, op & 64 ? 1 : -1); break;
        case 13: {
            unsigned slot = (unsigned)take(2) & GH_SLOT_MASK;
            HOLD(gh_account_slot_used(account, slot, gpu) <= gh_account_slot_charged(account, slot, gpu));
            break;
        }
        case 14:
            if (op & 64 && take(1) % 4 == 0)
                gh_account_before_driver(st);
            else if (op & 64)
                HOLD(gh_account_attach(st) || atomic_load(&st->driver_opened));
            else if (op & 128)
                gh_free_cache_take_all(account, gpu);
            else
                gh_free_cache_begin(account, gpu, &st->mine[gpu], word(st), word(st) & GH_VALUE_MAX);
            break;
        default:
            sweep(st, held);
            check_policy(st, gpu);
            break;
        }
    }
    sweep(st, held);
    return 0;
}

#ifdef GH_FUZZ_MAIN
static uint64_t random64(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ull;
}

static int run_file(const char *path) {
    static uint8_t bytes[1 << 16];
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 2;
    }
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    return LLVMFuzzerTestOneInput(bytes, n);
}

/* Runs fresh inputs and mutations of the last one. The file `crash` has the input that runs. */
static int generate(uint64_t seed, unsigned long count) {
    uint8_t input[512];
    size_t size = 0;
    uint64_t r = seed * 0x9e3779b97f4a7c15ull | 1;
    const char *crash = getenv("GH_FUZZ_CRASH");
    for (unsigned long i = 0; i < count; i++) {
        if (!size || random64(&r) % 4 == 0) {
            size = 1 + random64(&r) % sizeof input;
            for (size_t k = 0; k < size; k++)
                input[k] = (uint8_t)(random64(&r) >> 32);
        } else {
            for (uint64_t k = 1 + random64(&r) % 8; k; k--)
                input[random64(&r) % size] = (uint8_t)(random64(&r) >> 32);
        }
        FILE *f = crash ? fopen(crash, "wb") : NULL;
        if (f) {
            fwrite(input, 1, size, f);
            fclose(f);
        }
        LLVMFuzzerTestOneInput(input, size);
    }
    printf("%lu\n", count);
    return 0;
}

int main(int argc, char **argv) {
    char *rest;
    uint64_t seed = argc == 3 ? strtoull(argv[1], &rest, 10) : 0;
    if (argc == 3 && !*rest)
        return generate(seed, strtoul(argv[2], NULL, 10));
    for (int i = 1; i < argc; i++)
        if (run_file(argv[i]))
            return 1;
    return argc < 2;
}
#endif
