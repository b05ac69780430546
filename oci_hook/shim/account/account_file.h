/* The file of the account page: finds it, makes it, maps it. */
#ifndef GPU_HOOK_ACCOUNT_FILE_H
#define GPU_HOOK_ACCOUNT_FILE_H

#include "process/state.h"

/* Maps the page without taking a slot, for callers that only read. NULL: no page (a line was written). */
struct gh_account_page *gh_account_page(struct gh_state *st);
/* Writes the line that says that device memory is refused, with what helps where the file failed with this errno; 0: none. */
void gh_account_unusable(int error);

#endif
