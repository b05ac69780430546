/* See keep_state.h. */
#define _GNU_SOURCE
#include "keep_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flags.h"
#include "grant_folder.h"

#define MAX_STATE (4 << 20) /* ledger/life.py STATE_MAX */

/* The flags of runc, crun and youki together. */
static const struct known of_others[] = {
    {"force", SWITCH}, {"f", SWITCH}, {"all", SWITCH}, {"a", SWITCH}, {"help", STOP}, {"h", STOP}, {0},
};

static const char *id_of(char **argv, int i) {
    const char *name, *value;
    for (; argv[i] && argv[i][0] == '-'; i++)
        if (read_flag(of_others, argv, &i, &name, &value) != SWITCH)
            return NULL;
    return argv[i] && argv[i][0] && !strchr(argv[i], '/') ? argv[i] : NULL;
}

static struct text record_of(const struct grant_folder *grant, const char *id, const char *name) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s/%s", grant->root, id, name) >= sizeof path)
        return (struct text){NULL, 0};
    return read_whole(path, MAX_STATE, 0);
}

/* Whether this record names the grant. An earlier container of the id may have had it. */
static bool is_of(const struct grant_folder *grant, const char *id, const char *name) {
    struct text record = record_of(grant, id, name);
    bool found = record.at && has_marker(record, grant->key);
    free((char *)record.at);
    return found;
}

static void write_file(int folder, const char *name, struct text text) {
    static const char new[] = "state.new";
    int fd = openat(folder, new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return;
    ssize_t n = 1;
    for (size_t done = 0; done < text.size && n > 0; done += (size_t)n)
        n = write(fd, text.at + done, text.size - done);
    close(fd);
    if (n <= 0 || renameat(folder, new, folder, name))
        unlinkat(folder, new, 0);
}

const char *keep_state(char **argv, int command, const char *root, const char *runtime, const char *state_dir) {
    /* The runtime's file with the init, and its file with the annotations: of runc, of crun. youki's has no start time. */
    static const char *const files[][2] = {{"state.json", "state.json"}, {"status", "config.json"}};
    static struct grant_folder grant;
    const char *id = id_of(argv, command + 1);
    if (!id || !grant_folder(&grant, state_dir, root, id, runtime))
        return NULL;
    int folder = open(grant.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0)
        return grant.key; /* it has no grant, or the grant was released and limits are left */
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *name = files[i][0];
        if (!faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW))
            break; /* kept already: a container has one init */
        struct text state = record_of(&grant, id, name);
        if (state.at && is_of(&grant, id, files[i][1]))
            write_file(folder, name, state);
        free((char *)state.at);
    }
    close(folder);
    return grant.key;
}
