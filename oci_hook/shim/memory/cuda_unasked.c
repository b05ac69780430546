/* Calls that are charged nothing themselves, and after which the driver may take memory of the GPU, or hold on to some: loads of
 * modules, prefetches of managed memory, imports of a piece of another process's pool. They ask the policy, as an allocation does:
 * none of it comes while the container is suspended, or while another one's memory comes back. */
#include "driver/real.h"
#include "memory/charge.h"

#define ASKS(name, parameters, arguments) \
    GH_EXPORT CUresult name parameters {  \
        gh_policy_wait_here();            \
        return REAL(name) arguments;      \
    }

ASKS(cuModuleLoad, (CUmodule * module, const char *path), (module, path))
ASKS(cuModuleLoadData, (CUmodule * module, const void *image), (module, image))
ASKS(cuModuleLoadDataEx, (CUmodule * module, const void *image, unsigned n, int *options, void **values),
     (module, image, n, options, values))
ASKS(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image))
ASKS(cuLibraryLoadData,
     (CUlibrary * library, const void *image, int *jit, void **jit_values, unsigned jit_n, int *options, void **values,
      unsigned n),
     (library, image, jit, jit_values, jit_n, options, values, n))
ASKS(cuLibraryLoadFromFile,
     (CUlibrary * library, const char *path, int *jit, void **jit_values, unsigned jit_n, int *options, void **values,
      unsigned n),
     (library, path, jit, jit_values, jit_n, options, values, n))

#define PREFETCHES(end)                                                                                             \
    ASKS(cuMemPrefetchAsync##end, (CUdeviceptr at, size_t bytes, CUdevice to, CUstream stream),                     \
         (at, bytes, to, stream))                                                                                   \
    ASKS(cuMemPrefetchAsync_v2##end,                                                                                \
         (CUdeviceptr at, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream),                         \
         (at, bytes, to, flags, stream))                                                                            \
    ASKS(cuMemPrefetchBatchAsync##end,                                                                              \
         (CUdeviceptr *at, size_t *bytes, size_t n, CUmemLocation *to, size_t *from, size_t places, uint64_t flags, \
          CUstream stream),                                                                                         \
         (at, bytes, n, to, from, places, flags, stream))                                                           \
    ASKS(cuMemDiscardAndPrefetchBatchAsync##end,                                                                    \
         (CUdeviceptr *at, size_t *bytes, size_t n, CUmemLocation *to, size_t *from, size_t places, uint64_t flags, \
          CUstream stream),                                                                                         \
         (at, bytes, n, to, from, places, flags, stream))
PREFETCHES()
PREFETCHES(_ptsz)

ASKS(cuMemPoolImportPointer, (CUdeviceptr *pointer, CUmemoryPool pool, void *data), (pointer, pool, data))
