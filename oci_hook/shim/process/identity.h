/* Who a process is, so that other processes of its container can tell whether it still runs. */
#ifndef GPU_HOOK_IDENTITY_H
#define GPU_HOOK_IDENTITY_H

#include <stdint.h>

struct gh_identity {
    uint64_t owner; /* as in the owner words of the account page: account_page.h */
    uint64_t stack; /* bottom of the stack, which changes with exec; 0 not known */
};

/* GH_OTHER_NAMESPACE: of another pid namespace, whose process numbers mean nothing here. */
enum gh_life { GH_ENDED, GH_RUNS, GH_OTHER_NAMESPACE };

struct gh_identity gh_identify(void);
/* Whether the process `other` still has the address space that it had when it wrote this identity. In doubt it runs. */
enum gh_life gh_life_of(const struct gh_identity *other, uint64_t own);

#endif
