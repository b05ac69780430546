/* See exec_env.h. */
#define _GNU_SOURCE
#include "exec_env.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flags.h"
#include "grant_folder.h"
#include "process_json.h"

#define MAX_ENTRIES (64 << 10) /* bytes of a grant's environment; far more than it has */
#define FIRST_FD 200           /* of our file: --preserve-fds passes those from 3 on to the container */
#define NOEXEC_SEAL 0x0008u    /* MFD_NOEXEC_SEAL; Linux before 6.3 refuses it */

/* The flags of runc, crun and youki together. They end at the first word that is none: the container's id. */
static const struct known of_exec[] = {
    {"process", VALUE},
    {"p", VALUE},
    {"console-socket", VALUE},
    {"cwd", VALUE},
    {"env", VALUE},
    {"e", VALUE},
    {"user", VALUE},
    {"u", VALUE},
    {"additional-gids", VALUE},
    {"g", VALUE},
    {"pid-file", VALUE},
    {"pidfd-socket", VALUE},
    {"process-label", VALUE},
    {"apparmor", VALUE},
    {"cap", VALUE},
    {"c", VALUE},
    {"preserve-fds", VALUE},
    {"cgroup", VALUE},
    {"tty", SWITCH},
    {"t", SWITCH},
    {"detach", SWITCH},
    {"d", SWITCH},
    {"no-new-privs", SWITCH},
    {"ignore-paused", SWITCH},
    {"help", STOP},
    {"h", STOP},
    {0},
};

struct exec_call {
    int id;      /* its place in argv */
    int process; /* the place in argv of --process's value, which may begin in the flag's own word; 0: there is none */
    const char *file; /* the value */
    const char
        *env; /* --env as this call spells it, since runc refuses both spellings in one call; NULL: there is none */
};

static bool read_exec(char **argv, int i, struct exec_call *call) {
    const char *name, *value;
    for (; argv[i] && argv[i][0] == '-' && argv[i][1]; i++) {
        enum flag kind = read_flag(of_exec, argv, &i, &name, &value);
        if (kind == UNKNOWN || kind == STOP)
            return false;
        if (name[0] == 'p' && (!name[1] || !strcmp(name, "process")))
            call->process = i, call->file = value;
        if (name[0] == 'e')
            call->env = name[1] ? "--env" : "-e";
    }
    call->id = i;
    return argv[i] && argv[i][0] && strlen(argv[i]) <= MAX_ID;
}

/* ---- the grant's file ---------------------------------------------------------------------------------------------- */

/* Whether the runtime's own record of this container says that it was made without the grant: the grant is of an earlier
 * container of this id, which ended where nobody told us. False where there is no record that we know. */
static bool made_without(const struct grant_folder *grant, const char *id) {
    static const char *const records[] = {"state.json", "config.json"}; /* of runc and youki; of crun */
    bool seen = false;
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        char path[PATH_MAX];
        if ((size_t)snprintf(path, sizeof path, "%s/%s/%s", grant->root, id, records[i]) >= sizeof path)
            continue;
        struct text record = read_whole(path, MAX_RECORD, 0);
        if (!record.at)
            continue;
        bool found = has_marker(record, grant->key);
        free((char *)record.at);
        if (found)
            return false;
        seen = true;
    }
    return seen;
}

static struct text grant_entries(const char *state_dir, const char *root, const char *id, const char *runtime) {
    const struct text none = {NULL, 0};
    struct grant_folder grant;
    char path[PATH_MAX];
    if (!grant_folder(&grant, state_dir, root, id, runtime) ||
        (size_t)snprintf(path, sizeof path, "%s/env", grant.path) >= sizeof path)
        return none;
    struct text found = read_whole(path, MAX_ENTRIES, O_NOFOLLOW);
    if (found.at && made_without(&grant, id)) {
        free((char *)found.at);
        return none;
    }
    return found;
}

/* ---- the new command line ------------------------------------------------------------------------------------------ */

/* An empty file in memory; the number of its descriptor, which the runtime inherits, or -1. */
static int new_file(void) {
    int made = memfd_create("gpu-hook-exec", MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (made < 0)
        made = memfd_create("gpu-hook-exec", MFD_ALLOW_SEALING);
    if (made < 0)
        return -1;
    int fd = fcntl(made, F_DUPFD, FIRST_FD);
    if (fd < 0)
        return made; /* a lower RLIMIT_NOFILE; what came from a pipe cannot be read again */
    close(made);
    return fd;
}

/* Writes the text into the empty file and seals it. */
static bool fill(int fd, struct text text) {
    for (size_t done = 0; done < text.size;) {
        ssize_t n = write(fd, text.at + done, text.size - done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    return true;
}

/* What comes from a pipe until its end, as the runtime would read it; too much is cut, and then it is no JSON. */
static struct text read_pipe(const char *path) {
    struct stat st;
    char *buffer = stat(path, &st) || !S_ISFIFO(st.st_mode) ? NULL : malloc(MAX_RECORD);
    int fd = buffer ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        free(buffer);
        return (struct text){NULL, 0};
    }
    size_t have = 0;
    for (ssize_t n = 1; n > 0 && have < MAX_RECORD; have += n > 0 ? (size_t)n : 0)
        n = read(fd, buffer + have, MAX_RECORD - have);
    close(fd);
    return (struct text){buffer, have};
}

static char **with_file(char **argv, const struct exec_call *call, struct text entries) {
    static char word[64];
    int fd = new_file();
    if (fd < 0)
        return argv;
    int before = (int)(call->file - argv[call->process]); /* "--process=", "-tdp"; 0: the value has a word of its own */
    size_t size = (size_t)snprintf(word, sizeof word, "%.*s/proc/self/fd/%d", before, argv[call->process], fd);
    /* Without /proc, or with a security module, the runtime could not read it, either. */
    if (size >= sizeof word || access(word + before, R_OK)) {
        close(fd);
        return argv;
    }
    struct text piped = read_pipe(call->file); /* a writer would take any other open for its reader */
    struct text old = piped.at ? piped : read_whole(call->file, MAX_RECORD, 0);
    struct text new = old.at ? process_with(old, entries) : old;
    if (!new.at)
        new = piped; /* the pipe is empty now, so the runtime gets a copy */
    if (!new.at || !fill(fd, new)) {
        close(fd);
        return argv;
    }
    argv[call->process] = word;
    return argv;
}

struct words {
    char **next;
    const char *flag;
};

static void count(struct text entry, void *with) {
    (void)entry;
    ++*(size_t *)with;
}

static void add_flag(struct text entry, void *with) {
    struct words *words = with;
    if (!memchr(entry.at, '=', entry.size)) /* what is to be removed is not in config.json's environment, either */
        return;
    *words->next++ = (char *)words->flag;
    *words->next++ = (char *)entry.at; /* it ends with a zero byte */
}

/* For a command on the command line. The runtime gives it the environment of config.json, which has the grant's variables, so
 * this is only for calls with --env: runc would let those win, and crun then leaves out all of config.json's. Of two values of
 * a name the later one counts. */
static char **with_flags(int argc, char **argv, const struct exec_call *call, struct text entries) {
    size_t number = 0;
    each_entry(entries, count, &number);
    char **new = calloc((size_t)argc + 1 + 2 * number, sizeof *new);
    if (!new)
        return argv;
    memcpy(new, argv, (size_t)call->id * sizeof *new);
    struct words words = {new + call->id, call->env};
    each_entry(entries, add_flag, &words);
    memcpy(words.next, argv + call->id, (size_t)(argc - call->id + 1) * sizeof *new);
    return new;
}

char **with_grant_environment(int argc, char **argv, int command, const char *root, const char *runtime,
                              const char *state_dir) {
    struct exec_call call = {0};
    if (!read_exec(argv, command + 1, &call))
        return argv;
    struct text entries = grant_entries(state_dir, root, argv[call.id], runtime);
    if (!entries.at)
        return argv;
    if (call.process)
        return with_file(argv, &call, entries);
    return call.env ? with_flags(argc, argv, &call, entries) : argv;
}
