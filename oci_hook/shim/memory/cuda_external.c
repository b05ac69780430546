/* Imported memory. What a CUDA process exports stays charged to that process alone, so imports of it are not charged
 * (cuIpcOpenMemHandle, cuMemImportFromShareableHandle, pool imports). External memory comes from programs that do not
 * use libcuda, so nobody is charged for it yet: the importer is. */
#include <fcntl.h>

#include "driver/real.h"
#include "memory/charge.h"

/* A driver may import less than it is asked for. So it is asked with a descriptor that is none, if the program's is none. */
static CUresult import_refused(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *given) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC d = *given;
    CUexternalMemory made;
    if (d.type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD || fcntl(d.handle.fd, F_GETFD) >= 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    d.handle.fd = -1;
    d.size |= IMPOSSIBLE;
    CUresult asked = REAL(cuImportExternalMemory)(&made, &d);
    if (asked == CUDA_SUCCESS)
        REAL(cuDestroyExternalMemory)(made);
    return refused(asked);
}

GH_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *given) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC d;
    struct charge c;
    CUexternalMemory made = NULL;
    if (!given || !memory)
        return REAL(cuImportExternalMemory)(memory, given);
    copy_once(&d, given, sizeof d);
    CUresult r = charge(&c, d.size);
    if (r)
        return r == CUDA_ERROR_OUT_OF_MEMORY ? import_refused(&d) : r;
    r = REAL(cuImportExternalMemory)(&made, &d);
    r = finish_alloc(&c, r, EXTERNAL, (uintptr_t)made);
    if (r == CUDA_SUCCESS)
        *memory = made;
    return r;
}

GH_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct owed o = begin_free(EXTERNAL, (uintptr_t)memory);
    return end_free(&o, REAL(cuDestroyExternalMemory)(memory));
}
