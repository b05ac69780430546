/* Memory of other makers. What a CUDA process of any container exported is charged to that process, and imports of it
 * (cuIpcOpenMemHandle, cuMemImportFromShareableHandle, pool imports) are charged to nobody else. External memory comes
 * from programs that do not go through libcuda, so nobody has counted it yet: it is charged to the importer. */
#include "driver/real.h"
#include "memory/charge.h"

GH_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d) {
    struct charge c;
    CUresult r = charge(&c, d ? d->size : 0);
    if (r)
        return r;
    r = REAL(cuImportExternalMemory)(memory, d);
    return settle_alloc(&c, r, EXTERNAL, r ? 0 : (uintptr_t)*memory);
}

GH_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct owed o = begin_free(EXTERNAL, (uintptr_t)memory);
    return end_free(&o, REAL(cuDestroyExternalMemory)(memory));
}
