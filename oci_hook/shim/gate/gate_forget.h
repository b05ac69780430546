/* What the gate is told besides launches (gate_forget.c): waits that have ended, and what the program destroys. */
#ifndef GPU_HOOK_GATE_FORGET_H
#define GPU_HOOK_GATE_FORGET_H

#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

/* The gate's time, to be passed to gate_synchronised; 0 if nothing is in flight. */
uint64_t gate_before_sync(void);
/* The program has waited for all work of the stream (`all`: of the current context) that was launched before. */
void gate_synchronised(uint64_t before, CUstream stream, bool all);
/* Before the program destroys these. From now on we use them no more. */
void gate_stream_leaves(CUstream stream);
void gate_context_leaves(CUcontext context);
/* After that call. Not gone: the driver has not destroyed it, and nothing in it is forgotten. */
void gate_context_left(CUcontext context, bool gone);
void gate_forget(uint64_t key);

#endif
