/* A driver for contexts.c that knows of each stream and event in which context it was made. Work is done when that was asked
 * some times. A handle's upper bits are its context's; the primary context always has the same handle. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRIMARY ((void *)0x1000)
#define MADE_IN(handle) ((void *)((uintptr_t)(handle) & ~0xffful))

_Atomic unsigned events; /* made and not destroyed */
_Atomic unsigned wrong;  /* calls with events of another context than the stream's, or of one that is no more */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned holders;         /* of the primary context */
static _Atomic unsigned primary; /* number of the present one; as long as nobody retains one, 0 */
static _Thread_local void *current[8];
static _Thread_local unsigned depth;

int cuInit(unsigned flags) { return (void)flags, 0; }
int cuDeviceGetUuid_v2(void *uuid, int device) { return (void)device, memset(uuid, 0xa0, 16), 0; }
int cuCtxGetDevice(int *out) { return *out = 0, 0; }
int cuCtxGetCurrent(void **out) { return *out = current[depth], 0; }
int cuCtxSetCurrent(void *context) { return current[depth] = context, 0; }
int cuCtxPushCurrent_v2(void *context) { return depth > 6 ? 2 : (current[++depth] = context, 0); }
int cuCtxPopCurrent_v2(void **out) { return depth ? (*out = current[depth--], 0) : 201; }
int cuCtxDestroy_v2(void *context) { return (void)context, 201; }
int cuDevicePrimaryCtxRetain(void **out, int device) {
    pthread_mutex_lock(&mutex);
    primary += !holders++;
    pthread_mutex_unlock(&mutex);
    return (void)device, *out = PRIMARY, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    pthread_mutex_lock(&mutex);
    primary += !--holders;
    pthread_mutex_unlock(&mutex);
    usleep(100); /* another thread may retain it anew */
    return (void)device, 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return (void)device, *flags = 0, *active = holders > 0, 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { return (void)mode, 0; }

int cuStreamIsCapturing(void *stream, int *out) { return (void)stream, *out = 0, 0; }
int cuStreamQuery(void *stream) { return (void)stream, 0; }
int cuStreamGetCtx(void *stream, void **out) { return *out = MADE_IN(stream), 0; }
int cuStreamDestroy_v2(void *stream) { return (void)stream, 0; }

struct event {
    void *context;
    unsigned primary, asked;
};

static int check(const struct event *e, const void *context) {
    if (e->context == context && (context != PRIMARY || e->primary == primary))
        return 0;
    return wrong++, 400;
}

int cuEventCreate(struct event **out, unsigned flags) {
    (void)flags;
    *out = malloc(sizeof **out);
    **out = (struct event){current[depth], primary, 0};
    return events++, 0;
}
int cuEventDestroy_v2(struct event *e) { return free(e), events--, 0; }
int cuEventRecord(struct event *e, void *stream) { return e->asked = 0, check(e, MADE_IN(stream)); }
int cuEventQuery(struct event *e) { return check(e, current[depth]) ? 400 : e->asked++ < 3 ? 600 : 0; }
int cuEventElapsedTime(float *ms, struct event *from, struct event *to) {
    return *ms = 0.01f, check(from, current[depth]) | check(to, current[depth]);
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    return 0;
}
int cuLaunchCooperativeKernelMultiDevice(void *list, unsigned n, unsigned flags) {
    return (void)list, (void)n, (void)flags, 0;
}
