/* Imported memory. What a CUDA process exports stays charged to that process alone, so imports of it are not charged
 * (cuIpcOpenMemHandle, cuMemImportFromShareableHandle, pool imports). External memory comes from programs that do not
 * use libcuda, so nobody is charged for it yet: the importer is. */
#include "driver/real.h"
#include "memory/charge.h"

GH_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d) {
    struct charge c;
    CUresult r = charge(&c, d ? d->size : 0);
    if (r)
        return r;
    r = REAL(cuImportExternalMemory)(memory, d);
    return finish_alloc(&c, r, EXTERNAL, r ? 0 : (uintptr_t)*memory);
}

GH_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct owed o = begin_free(EXTERNAL, (uintptr_t)memory);
    return end_free(&o, REAL(cuDestroyExternalMemory)(memory));
}
