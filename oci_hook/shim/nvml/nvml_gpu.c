#include "nvml/nvml_gpu.h"

#include "account/account.h"
#include "driver/real.h"
#include "process/policy.h"

int gpu_of_handle(struct gh_state *st, nvmlDevice_t device) {
    char uuid[96];
    if (REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid))
        return -1;
    uuid[sizeof uuid - 1] = 0;
    return gh_policy_find(st, uuid);
}

bool memory_view(nvmlDevice_t device, struct gh_memory_view *out) {
    struct gh_state *st = gh_here();
    struct gh_limit limit;
    *out = (struct gh_memory_view){0};
    int gpu = st ? gpu_of_handle(st, device) : -1;
    if (gpu < 0 || !gh_policy_limit(st, (unsigned)gpu, &limit))
        return true;
    if (limit.whole)
        return false;
    gh_sweep_before_shown(st);
    uint64_t used = gh_bytes(gh_total(st, (unsigned)gpu));
    out->known = true;
    out->total = limit.bytes;
    out->used = used < limit.bytes ? used : limit.bytes;
    out->free = out->total - out->used;
    return true;
}
