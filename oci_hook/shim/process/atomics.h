/* The atomic steps that the account page's protocol is made of: docs/internals/account-page.md. */
#ifndef GPU_HOOK_WORDS_H
#define GPU_HOOK_WORDS_H

#include <stdatomic.h>

#define LOAD(p) atomic_load_explicit(p, memory_order_acquire)
#define STORE(p, v) atomic_store_explicit(p, v, memory_order_release)
#define CAS(p, old, new) \
    atomic_compare_exchange_strong_explicit(p, old, new, memory_order_acq_rel, memory_order_acquire)

#endif
