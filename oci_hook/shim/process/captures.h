/* Allocations within a stream capture become nodes of a graph, whose launch is charged; they themselves are not. If the
 * capture ended between our look and the driver's, the driver would allocate, uncharged. So while such a call runs no
 * capture of this process ends, and no stream is destroyed; those calls wait for it, seconds at most. */
#ifndef GPU_HOOK_CAPTURES_H
#define GPU_HOOK_CAPTURES_H

#include "process/state.h"

void captured_call_begins(struct gh_state *st);
void captured_call_ends(struct gh_state *st);
/* Around a call that may end a capture. ends: its stream is in one. st may be NULL. */
void captures_may_end(struct gh_state *st, bool ends);
void captures_have_ended(struct gh_state *st);

#endif
