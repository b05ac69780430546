/* Checkpoints of processes (CUDA 12.8), of the caller or of another one, by pid. The host suspends and resumes a container by the
 * same calls, of the driver itself. While it does, and while the container is away, those of its own processes wait: a restore
 * would take memory that others were granted, and the other calls would keep the host's move from ending. */
#include <string.h>

#include "driver/real.h"
#include "memory/charge.h"

#define MOST_PAIRS 64 /* more GPUs than a process can have */

/* A process keeps its charges while its memory is on the host, so that the restore finds its room. But a restore can put
 * the memory on another GPU (13.0), where nobody has charged it: that is refused. */
GH_EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *given) {
    CUcheckpointRestoreArgs args = {0};
    CUcheckpointGpuPair pair[MOST_PAIRS];
    gh_policy_wait_here();
    if (!given)
        return REAL(cuCheckpointProcessRestore)(pid, NULL);
    copy_once(&args, given, offsetof(CUcheckpointRestoreArgs, reserved1));
    if (args.count > MOST_PAIRS || (args.count && !args.pairs))
        return CUDA_ERROR_INVALID_VALUE;
    if (args.count)
        copy_once(pair, args.pairs, args.count * sizeof *pair);
    for (unsigned i = 0; i < args.count; i++)
        if (memcmp(&pair[i].from, &pair[i].to, sizeof pair[i].to))
            return CUDA_ERROR_NOT_SUPPORTED;
    if (args.count)
        args.pairs = pair;
    return REAL(cuCheckpointProcessRestore)(pid, &args);
}

GH_EXPORT CUresult cuCheckpointProcessLock(int pid, void *args) {
    gh_policy_wait_here();
    return REAL(cuCheckpointProcessLock)(pid, args);
}

GH_EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, void *args) {
    gh_policy_wait_here();
    return REAL(cuCheckpointProcessCheckpoint)(pid, args);
}

GH_EXPORT CUresult cuCheckpointProcessUnlock(int pid, void *args) {
    gh_policy_wait_here();
    return REAL(cuCheckpointProcessUnlock)(pid, args);
}
