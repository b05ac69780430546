/* Finds the real driver library. It is loaded already, as our own absolute DT_NEEDED. RTLD_NEXT or a search by name
 * could find this shim or a library of the image. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "driver/real.h"
#include "pages/layout.h"
#include "process/state.h"

__attribute__((used)) void *gh_real_pointer[GH_REALS]; /* the jump stubs use it, too */
static const char names[] = GH_REAL_NAMES;             /* each ends with a NUL */
static const uint16_t name_at[] = GH_REAL_OFFSETS;

static int missing(void) { return GH_MISSING; }

static void *handle(void) {
    static void *_Atomic real;
    void *h = atomic_load_explicit(&real, memory_order_acquire);
    if (h)
        return h;
    h = dlopen(GH_REAL_FILE, RTLD_NOLOAD | RTLD_LAZY);
    if (!h)
        gh_say(GH_SAID_DRIVER, "gpu-hook: GH-302: the driver library " GH_REAL_FILE " is not there; "
                               "start the container anew with gpu-hook\n");
    else
        atomic_store_explicit(&real, h, memory_order_release);
    return h;
}

void *gh_real_find(const char *name) {
    void *h = handle();
    void *p = h ? dlsym(h, name) : NULL;
    Dl_info ours, theirs;
    /* If the private path held this shim itself, every call would come back here for ever. */
    if (p && dladdr((void *)&missing, &ours) && dladdr(p, &theirs) && ours.dli_fbase == theirs.dli_fbase)
        return NULL;
    return p;
}

__attribute__((used)) void *gh_real_resolve(unsigned index) {
    void *p = gh_real_find(names + name_at[index]);
    if (!p)
        p = (void *)&missing;
    __atomic_store_n(&gh_real_pointer[index], p, __ATOMIC_RELEASE);
    return p;
}
