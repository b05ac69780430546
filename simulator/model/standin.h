/* The shim's part around decide(): publishing, pacer, charging, waiting; as the shipped one shall do it. */
#ifndef GPU_HOOK_MODEL_STANDIN_H
#define GPU_HOOK_MODEL_STANDIN_H

#include "sim.h"

/* Look for finished commands, charge them, publish. */
void standin_poll(struct sim *sim, unsigned i);
/* The gate before a submission. 1: submit now. 0: the tenant's `at` and `waits_on` say what it waits for. */
int standin_gate(struct sim *sim, unsigned i, int first);
void standin_submitted(struct sim *sim, unsigned i);
void standin_pacer(struct sim *sim, unsigned i);
int strict_gate(struct sim *sim, unsigned i);
void strict_finished(struct sim *sim, unsigned i);

#endif
