/* Which release of the driver the library is of, before it has seen a GPU. `sim up` writes it into its copy of the library
 * (gpu_hook_simulator/exports.py), behind the mark. */
#include "gpu.h"

__attribute__((used)) static volatile struct {
    char mark[32];
    uint32_t cuda_version;
    uint32_t newest; /* CUDA version of the newest functions that it has */
} release = {"gpu-hook simulated release", 12040, UINT32_MAX};

int gpu_cuda_version(const struct gpu *gpus, int n) {
    return (int)(n ? gpus[0].file->head.cuda_version : release.cuda_version);
}

bool gpu_has_functions_of(int cuda_version) { return (uint32_t)cuda_version <= release.newest; }
