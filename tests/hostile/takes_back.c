/* A tenant that calls for the memory of its suspended processes: it has the driver restore, unlock, lock or checkpoint each
 * process that it sees, again and again. usage: takes_back FILE PROCESSES CALL...
 * CALL: lock, checkpoint, restore or unlock; after "driver", past the shim. The file gets a line for each call that did
 * something, and "ready" first. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 16

typedef int call(int, void *);

static struct {
    const char *name;
    call *call;
} asked[MOST];
static int count;

static void *library(const char *path) {
    void *cuda = dlopen(path, RTLD_NOW);
    int (*init)(unsigned) = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : NULL;
    if (!init || init(0))
        exit(2);
    return cuda;
}

static void add(void *cuda, const char *name) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "cuCheckpointProcess%c%s", toupper(name[0]), name + 1);
    if (count == MOST || !(asked[count].call = (call *)dlsym(cuda, symbol)))
        exit(3);
    asked[count++].name = name;
}

/* All processes that are to be seen, the caller and its like among them, which have nothing. */
static void round_of(void) {
    DIR *proc = opendir("/proc");
    struct dirent *e;
    while (proc && (e = readdir(proc))) {
        int pid = atoi(e->d_name);
        for (int i = 0; pid > 0 && i < count; i++)
            if (!asked[i].call(pid, NULL)) {
                printf("%s %d\n", asked[i].name, pid);
                fflush(stdout);
            }
    }
    if (proc)
        closedir(proc);
}

int main(int argc, char **argv) {
    if (argc < 4 || !freopen(argv[1], "a", stdout))
        return 1;
    int processes = atoi(argv[2]);
    for (int n = 1; n < processes; n++)
        if (!fork())
            break;
    void *cuda = NULL;
    for (int i = 3; i < argc; i++)
        if (!strcmp(argv[i], "driver"))
            cuda = library("/run/gpu-hook/driver/cuda");
        else
            add(cuda = cuda ? cuda : library("libcuda.so.1"), argv[i]);
    puts("ready");
    fflush(stdout);
    for (;;) {
        round_of();
        usleep(1000);
    }
}
