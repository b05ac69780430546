/* See end_limits.h. */
#define _GNU_SOURCE
#include "end_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "grant_folder.h"

#define RECORDS "boundary"             /* core/layout.py BOUNDARY_DIR */
#define RESERVES "\"reserves\":true"   /* boundary/limit_records.py write */
#define MAX_RECORD_OF_LIMITS (1 << 20) /* boundary/limit_records.py MAX */
#define CLIENT "bin/gpu-hook-boundary"

static bool reserves(const char *state_dir, const char *key) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/" RECORDS "/%s", state_dir, key) >= sizeof path)
        return false;
    struct text record = read_whole(path, MAX_RECORD_OF_LIMITS, O_NOFOLLOW);
    bool found = record.at && memmem(record.at, record.size, RESERVES, strlen(RESERVES));
    free((char *)record.at);
    return found;
}

void end_limits(const char *prefix, const char *state_dir, const char *key) {
    char program[PATH_MAX];
    if (!reserves(state_dir, key) || (size_t)snprintf(program, sizeof program, "%s/" CLIENT, prefix) >= sizeof program)
        return;
    pid_t child = fork();
    if (child == 0) {
        char *const args[] = {program, "end", (char *)state_dir, (char *)key, NULL};
        char *const none[] = {NULL};
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int fd = 0; fd <= STDERR_FILENO; fd++) /* what it says is not the runtime's */
            dup2(null, fd);
        execve(program, args, none);
        _exit(127);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}
