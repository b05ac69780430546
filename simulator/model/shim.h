/* The shim's part around decide(), as the shipped shim does it: publishing, pacer, charging and waiting. */
#ifndef GPU_HOOK_MODEL_SHIM_H
#define GPU_HOOK_MODEL_SHIM_H

#include "sim.h"

/* Looks for finished commands, charges them and publishes the slot. */
void shim_poll(struct sim *sim, unsigned i);
/* The gate before a submission. 1: submit now. 0: wait, as the tenant's `at` and `waits_on` say. */
int shim_gate(struct sim *sim, unsigned i, int first);
void shim_submitted(struct sim *sim, unsigned i);
void shim_pacer(struct sim *sim, unsigned i);
int strict_gate(struct sim *sim, unsigned i);
void strict_finished(struct sim *sim, unsigned i);

#endif
