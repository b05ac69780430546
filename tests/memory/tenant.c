/* A program of a container that attacks its memory limit; made for any image with a C library.
 *   module MIB          a module with a variable of that size
 *   export SOCKET MIB   makes memory, sends it there and releases it; then takes all that it gets
 *   import SOCKET       receives memory and keeps it
 * Prints one line when it is done, and keeps what it has until it is killed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef unsigned long long address;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(address *, size_t), cuMemCreate(address *, size_t, const void *, unsigned long long);
extern int cuMemRelease(address), cuMemExportToShareableHandle(void *, address, int, unsigned long long);
extern int cuMemImportFromShareableHandle(address *, void *, int);
extern int cuModuleLoadData(void **, const void *), cuModuleGetGlobal_v2(address *, size_t *, void *, const char *);

#define MIB ((size_t)1 << 20)

struct prop { /* CUmemAllocationProp */
    int type, handles, where, id;
    void *security;
    unsigned char rest[8];
};

static void check(int result, const char *what) {
    if (!result)
        return;
    printf("%s: %d\n", what, result);
    fflush(stdout);
    _exit(1);
}

static struct sockaddr_un path_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return address;
}

/* Sends a descriptor, or receives one. */
static int pass(int connection, int fd) {
    char byte = 'x', room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (fd < 0) {
        check(recvmsg(connection, &message, 0) <= 0, "recvmsg");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        return fd;
    }
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    check(sendmsg(connection, &message, 0) != 1, "sendmsg");
    return fd;
}

static size_t take_all(void) {
    size_t got = 0;
    address p;
    for (size_t size = 64; size; size /= 2)
        while (!cuMemAlloc_v2(&p, size * MIB))
            got += size;
    return got;
}

static void module(size_t mib) {
    char text[128];
    void *loaded;
    address at;
    size_t bytes;
    snprintf(text, sizeof text, ".global .align 4 .b8 big[%zu]; .entry k()", mib * MIB);
    check(cuModuleLoadData(&loaded, text), "load");
    check(cuModuleGetGlobal_v2(&at, &bytes, loaded, "big"), "global");
    printf("loaded %zu\n", bytes / MIB);
}

static void export(const char *path, size_t mib) {
    struct sockaddr_un to = path_of(path);
    struct prop prop = {.type = 1, .handles = 1, .where = 1};
    int connection = socket(AF_UNIX, SOCK_STREAM, 0), fd = -1;
    address handle;
    check(cuMemCreate(&handle, mib * MIB, &prop, 0), "create");
    check(cuMemExportToShareableHandle(&fd, handle, 1, 0), "export");
    while (connect(connection, (struct sockaddr *)&to, sizeof to))
        usleep(10000);
    pass(connection, fd);
    close(fd);
    check(cuMemRelease(handle), "release");
    printf("took %zu\n", take_all());
}

static void import(const char *path) {
    struct sockaddr_un at = path_of(path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    address handle;
    check(bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1), "bind");
    int fd = pass(accept(listener, NULL, NULL), -1);
    check(cuMemImportFromShareableHandle(&handle, (void *)(size_t)fd, 1), "import");
    close(fd);
    puts("imported");
}

int main(int argc, char **argv) {
    void *context;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "context");
    check(cuCtxSetCurrent(context), "current");
    if (argc == 3 && !strcmp(argv[1], "module"))
        module((size_t)atol(argv[2]));
    else if (argc == 4 && !strcmp(argv[1], "export"))
        export(argv[2], (size_t)atol(argv[3]));
    else if (argc == 3)
        import(argv[2]);
    fflush(stdout);
    pause();
}
