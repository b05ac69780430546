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

#include "blake2b.h"
#include "flags.h"
#include "process_json.h"

#define MAX_ID 1024            /* ledger/life.py valid_id */
#define MAX_ENTRIES (64 << 10) /* bytes of a grant's environment; far more than it has */
#define MAX_PROCESS (16 << 20) /* bytes of a process file, as of config.json */
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
    int id;           /* its place in argv */
    int process;      /* the place of --process in argv; 0: there is none */
    int process_end;  /* the place after its value */
    const char *file; /* the value */
    const char
        *env; /* --env as this call spells it, since runc refuses both spellings in one call; NULL: there is none */
};

static bool read_exec(char **argv, int i, struct exec_call *call) {
    const char *name, *value;
    for (; argv[i] && argv[i][0] == '-' && argv[i][1]; i++) {
        int first = i;
        enum flag kind = read_flag(of_exec, argv, &i, &name, &value);
        if (kind == UNKNOWN || kind == STOP)
            return false;
        if (name[0] == 'p' && (!name[1] || !strcmp(name, "process")))
            call->process = first, call->process_end = i + 1, call->file = value;
        if (name[0] == 'e')
            call->env = name[1] ? "--env" : "-e";
    }
    call->id = i;
    return argv[i] && argv[i][0] && strlen(argv[i]) <= MAX_ID;
}

/* ---- the grant's file ---------------------------------------------------------------------------------------------- */

/* The path as os.path.abspath has it, of which the grant's key is made. */
static bool absolute(char to[PATH_MAX], const char *path) {
    char whole[2 * PATH_MAX];
    if (strlen(path) >= PATH_MAX)
        return false;
    if (path[0] == '/')
        strcpy(whole, path);
    else if (getcwd(whole, PATH_MAX))
        strcat(strcat(whole, "/"), path);
    else
        return false;
    char *end = to, *rest = whole;
    /* POSIX lets a system give two slashes at the beginning a meaning of their own, and Python keeps them. */
    if (whole[0] == '/' && whole[1] == '/' && whole[2] != '/')
        *end++ = '/';
    char *top = end;
    for (char *part; (part = strsep(&rest, "/"));) {
        if (!*part || !strcmp(part, "."))
            continue;
        if (!strcmp(part, "..")) {
            while (end > top && *--end != '/')
                ;
            continue;
        }
        size_t size = strlen(part);
        if (end - to + size + 2 > PATH_MAX)
            return false;
        *end++ = '/';
        memcpy(end, part, size);
        end += size;
    }
    if (end == top)
        *end++ = '/';
    *end = 0;
    return true;
}

/* oci/bundle.py default_root */
static const char *default_root(const char *runtime) {
    const char *name = strrchr(runtime, '/');
    name = name ? name + 1 : runtime;
    return strstr(name, "crun") ? "/run/crun" : strstr(name, "youki") ? "/run/youki" : "/run/runc";
}

/* A file's bytes, to be freed; `at` is NULL unless it is a regular file of at most `most` bytes. */
static struct text read_whole(const char *path, size_t most, int flags) {
    struct text found = {NULL, 0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (fd < 0)
        return found;
    char *buffer = NULL;
    size_t room = 0, have = 0;
    ssize_t n = -1;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && (size_t)st.st_size <= most) {
        room = (size_t)st.st_size + 1; /* one more, to see a file that grows */
        buffer = malloc(room);
        while (buffer && have < room && (n = read(fd, buffer + have, room - have)) > 0)
            have += (size_t)n;
    }
    close(fd);
    if (n != 0) {
        free(buffer);
        return found;
    }
    return (struct text){buffer, have};
}

/* Whether the text has the container's annotation MARKER with this key: KEY=VALUE in runc's list of labels, "KEY": "VALUE" in
 * the JSON of crun and youki. A container that writes the same words elsewhere in its bundle gets variables, and nothing else. */
static bool has_marker(struct text text, const char *key) {
    const char *end = text.at + text.size, *p = text.at;
    while ((p = memmem(p, (size_t)(end - p), MARKER, strlen(MARKER)))) {
        p += strlen(MARKER);
        const char *value = p;
        while (value < end && memchr("=\": \t\r\n", *value, 7))
            value++;
        if ((size_t)(end - value) >= 2 * BLAKE2B_SIZE && !memcmp(value, key, 2 * BLAKE2B_SIZE))
            return true;
    }
    return false;
}

/* Whether the runtime's own record of this container says that it was made without the grant: the grant is of an earlier
 * container of this id, which ended where nobody told us. False where there is no record that we know. */
static bool made_without(const char *key, const char *root, const char *id) {
    static const char *const records[] = {"state.json", "config.json"}; /* of runc and youki; of crun */
    bool seen = false;
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        char path[PATH_MAX];
        if ((size_t)snprintf(path, sizeof path, "%s/%s/%s", root, id, records[i]) >= sizeof path)
            continue;
        struct text record = read_whole(path, MAX_PROCESS, 0);
        if (!record.at)
            continue;
        bool found = has_marker(record, key);
        free((char *)record.at);
        if (found)
            return false;
        seen = true;
    }
    return seen;
}

static struct text grant_entries(const char *state_dir, const char *root, const char *id) {
    char name[PATH_MAX + MAX_ID + 1], path[PATH_MAX], hex[2 * BLAKE2B_SIZE + 1];
    unsigned char key[BLAKE2B_SIZE];
    if (!absolute(name, root))
        return (struct text){NULL, 0};
    size_t size = strlen(name) + 1;
    memcpy(name + size, id, strlen(id));
    blake2b(name, size + strlen(id), key);
    for (int i = 0; i < BLAKE2B_SIZE; i++)
        sprintf(hex + 2 * i, "%02x", key[i]);
    if ((size_t)snprintf(path, sizeof path, "%s/" PAGES_DIR "/%s/env", state_dir, hex) >= sizeof path)
        return (struct text){NULL, 0};
    struct text found = read_whole(path, MAX_ENTRIES, O_NOFOLLOW);
    if (found.at && made_without(hex, name, id)) {
        free((char *)found.at);
        found = (struct text){NULL, 0};
    }
    return found;
}

/* ---- the new command line ------------------------------------------------------------------------------------------ */

/* A sealed file in memory; the number of its descriptor, which the runtime inherits, or -1. */
static int file_of(struct text text) {
    int made = memfd_create("gpu-hook-exec", MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (made < 0)
        made = memfd_create("gpu-hook-exec", MFD_ALLOW_SEALING);
    if (made < 0)
        return -1;
    int fd = fcntl(made, F_DUPFD, FIRST_FD);
    close(made);
    if (fd < 0)
        return -1;
    for (size_t done = 0; done < text.size;) {
        ssize_t n = write(fd, text.at + done, text.size - done);
        if (n <= 0) {
            close(fd);
            return -1;
        }
        done += (size_t)n;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    return fd;
}

static char **with_file(int argc, char **argv, const struct exec_call *call, struct text entries) {
    static char word[64];
    struct text old = read_whole(call->file, MAX_PROCESS, 0);
    struct text new = old.at ? process_with(old, entries) : old;
    int fd = new.at ? file_of(new) : -1;
    if (fd < 0)
        return argv;
    snprintf(word, sizeof word, "--process=/proc/self/fd/%d", fd);
    if (access(word + strlen("--process="), R_OK)) { /* no /proc, or a security module: the runtime could not, either */
        close(fd);
        return argv;
    }
    argv[call->process] = word;
    memmove(argv + call->process + 1, argv + call->process_end, (size_t)(argc - call->process_end + 1) * sizeof *argv);
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
    if (!state_dir[0] || !read_exec(argv, command + 1, &call))
        return argv;
    struct text entries = grant_entries(state_dir, root[0] ? root : default_root(runtime), argv[call.id]);
    if (!entries.at)
        return argv;
    if (call.process)
        return with_file(argc, argv, &call, entries);
    return call.env ? with_flags(argc, argv, &call, entries) : argv;
}
