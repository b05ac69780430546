/* A tenant that goes past the shim: opens the real driver's library from its private path and takes memory there.
 * usage: bypass MIB [own [US]] | MIB wait | MIB hide
 * own: also some through the shim, so that there is an account page to forge; US: then kernels of so many microseconds, past
 * the gate, for ever. wait: not before SIGUSR1. hide: then the descriptors lie in a socket that another process has and
 * nobody reads, and this one ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char kernel[] = ".version 6.3\n.target sm_75\n.address_size 64\n// sim_us=%s\n"
                             ".visible .entry work() {\nret;\n}\n";

static void *take(const char *library, size_t bytes) {
    void *cuda = dlopen(library, RTLD_NOW), *ctx;
    unsigned long long at;
    if (!cuda)
        return NULL;
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    int (*alloc)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    return init(0) || retain(&ctx, 0) || current(ctx) || alloc(&at, bytes) ? NULL : cuda;
}

static int compute(void *cuda, const char *us) {
    char image[256];
    void *module, *work;
    int (*load)(void **, const void *) = dlsym(cuda, "cuModuleLoadData");
    int (*find)(void **, void *, const char *) = dlsym(cuda, "cuModuleGetFunction");
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **) = dlsym(cuda, "cuLaunchKernel");
    int (*wait)(void) = dlsym(cuda, "cuCtxSynchronize");
    snprintf(image, sizeof image, kernel, us);
    if (load(&module, image) || find(&work, module, "work"))
        return 4;
    for (unsigned n = 1; !launch(work, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); n++)
        if (n % 8 == 0 && wait())
            break;
    return 5;
}

static void put(int socket, int fd) {
    char byte = 0, space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    sendmsg(socket, &m, 0);
}

static int hide(size_t bytes) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    if (!fork()) {
        close(pair[1]);
        puts("hidden");
        fflush(stdout);
        for (;;)
            pause();
    }
    if (!take("/run/gpu-hook/driver/cuda", bytes))
        return 2;
    for (int fd = 3; fd < 64; fd++)
        if (fd != pair[0] && fd != pair[1])
            put(pair[1], fd);
    return 0;
}

int main(int argc, char **argv) {
    void *cuda;
    const char *how = argc > 2 ? argv[2] : "";
    if (!strcmp(how, "hide"))
        return hide(strtoull(argv[1], NULL, 10) << 20);
    if (!strcmp(how, "wait")) {
        sigset_t set;
        int signal;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_BLOCK, &set, NULL);
        puts("waiting");
        fflush(stdout);
        sigwait(&set, &signal);
    }
    if (!strcmp(how, "own") && !take("libcuda.so.1", 16 << 20))
        return 2;
    if (argc < 2 || !(cuda = take("/run/gpu-hook/driver/cuda", strtoull(argv[1], NULL, 10) << 20)))
        return 3;
    puts("cheating");
    fflush(stdout);
    if (argc > 3)
        return compute(cuda, argv[3]);
    for (;;)
        pause();
}
