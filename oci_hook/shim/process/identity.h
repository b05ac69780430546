/* Identity of a process, for lists of processes. Nothing else is decided by it. */
#ifndef GPU_HOOK_IDENTITY_H
#define GPU_HOOK_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

/* This process, as in the owner words of the account page: account_page.h. */
uint64_t gh_identify(void);
/* True if the pid of an owner word is that process in this pid namespace. In doubt it is. */
bool gh_runs_here(uint64_t owner);

#endif
