/* Atomic steps, with their memory order in the name. */
#ifndef GPU_HOOK_ATOMICS_H
#define GPU_HOOK_ATOMICS_H

#include <stdatomic.h>

/* On _Atomic words: what the protocol of the account page is made of (docs/internals/account-page.md). */
#define LOAD_ACQUIRE(p) atomic_load_explicit(p, memory_order_acquire)
#define STORE_RELEASE(p, v) atomic_store_explicit(p, v, memory_order_release)
#define CAS_ACQ_REL(p, old, new) \
    atomic_compare_exchange_strong_explicit(p, old, new, memory_order_acq_rel, memory_order_acquire)

/* On plain words of mapped files and of the gate, which other processes or threads read while they change. */
#define WORD_LOAD_RELAXED(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define WORD_STORE_RELEASE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)

#endif
