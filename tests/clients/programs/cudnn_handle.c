/* Stands for cuDNN where JAX runs above the simulator's runtime: JAX asks for a handle and the version before it compiles
 * anything, even where no convolution follows. This library has these functions and nothing else. */
#include <stddef.h>

#define API __attribute__((visibility("default")))

API const char gpu_hook_empty_library[] = "cuDNN of gpu-hook's tests: handles and nothing else";

API size_t cudnnGetVersion(void) { return 91900; }

API int cudnnCreate(void **handle) {
    static char any;
    *handle = &any;
    return 0;
}

API int cudnnDestroy(void *handle) { return handle ? 0 : 1; }
API int cudnnSetStream(void *handle, void *stream) { return (void)stream, handle ? 0 : 1; }

API int cudnnGetProperty(int what, int *value) {
    *value = what == 0 ? 9 : what == 1 ? 19 : 0;
    return 0;
}

API const char *cudnnGetErrorString(int error) { return (void)error, "not in this library"; }
