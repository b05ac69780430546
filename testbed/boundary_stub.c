/* A libnvidia-ml that fails where a test says so. $STUB is a folder: limits/UUID_CGROUP has "soft hard" of each limit that is
 * set; the file "fault" has WORD FUNCTION [N]: the N-th call (1: the first; 0: each) of this function in a process goes wrong:
 * fail (it answers 999), wrong (it does nothing and says that it did), hang, crash, slow (a second); "calls" has a line for each call. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, INVALID_ARGUMENT = 2, UNKNOWN = 999 };

struct limits {
    const char *name_space;
    unsigned long long soft, hard, used;
};

static const char *file(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", getenv("STUB"), name);
    return path;
}

/* 0: go on; 999: fail; -1: pretend. */
static int fault(const char *function) {
    char word[16] = "", wanted[64] = "";
    int nth = 0;
    static int calls;
    FILE *f = fopen(file("calls"), "a");
    if (f) {
        fprintf(f, "%s\n", function);
        fclose(f);
    }
    if (!(f = fopen(file("fault"), "r")))
        return 0;
    int n = fscanf(f, "%15s %63s %d", word, wanted, &nth);
    fclose(f);
    if (n < 2 || strcmp(wanted, function) || (++calls != nth && nth))
        return 0;
    if (!strcmp(word, "hang"))
        for (;;)
            pause();
    if (!strcmp(word, "crash"))
        abort();
    if (!strcmp(word, "slow"))
        return sleep(1), 0;
    return !strcmp(word, "wrong") ? -1 : UNKNOWN;
}

static const char *limit_file(const char *uuid, const char *cgroup) {
    static char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/limits/%s", getenv("STUB"), uuid);
    snprintf(path + n, sizeof path - (size_t)n, "%s", cgroup);
    for (char *c = path + n; *c; c++)
        if (*c == '/')
            *c = '_';
    return path;
}

int nvmlInit_v2(void) { return fault("init") ? UNKNOWN : SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == INVALID_ARGUMENT ? "Invalid Argument" : "Unknown Error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = strdup(uuid);
    return fault("handle") ? UNKNOWN : SUCCESS;
}

int nvmlDeviceSetMemoryLimits_v1(void *handle, const struct limits *l) {
    int wrong = fault("set");
    if (wrong)
        return wrong < 0 ? SUCCESS : UNKNOWN;
    const char *path = limit_file(handle, l->name_space);
    if (!l->soft && l->hard == ULLONG_MAX)
        return unlink(path), SUCCESS;
    FILE *f = fopen(path, "w");
    if (!f)
        return UNKNOWN;
    fprintf(f, "%llu %llu\n", l->soft, l->hard);
    return fclose(f) ? UNKNOWN : SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(void *handle, struct limits *l) {
    l->soft = l->used = 0;
    l->hard = ULLONG_MAX;
    int wrong = fault("get");
    if (wrong)
        return wrong < 0 ? SUCCESS : UNKNOWN;
    FILE *f = fopen(limit_file(handle, l->name_space), "r");
    if (f) {
        if (fscanf(f, "%llu %llu", &l->soft, &l->hard) != 2)
            l->hard = ULLONG_MAX;
        fclose(f);
    }
    return SUCCESS;
}
