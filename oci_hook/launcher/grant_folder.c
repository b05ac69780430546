/* See grant_folder.h. */
#define _GNU_SOURCE
#include "grant_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blake2b.h"

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
struct text read_whole(const char *path, size_t most, int flags) {
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
bool has_marker(struct text text, const char *key) {
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

bool grant_folder(struct grant_folder *found, const char *state_dir, const char *root, const char *id,
                  const char *runtime) {
    char name[PATH_MAX + MAX_ID + 1];
    unsigned char key[BLAKE2B_SIZE];
    if (!state_dir[0] || strlen(id) > MAX_ID || !absolute(found->root, root[0] ? root : default_root(runtime)))
        return false;
    size_t size = strlen(found->root) + 1;
    memcpy(name, found->root, size);
    memcpy(name + size, id, strlen(id));
    blake2b(name, size + strlen(id), key);
    for (int i = 0; i < BLAKE2B_SIZE; i++)
        sprintf(found->key + 2 * i, "%02x", key[i]);
    return (size_t)snprintf(found->path, sizeof found->path, "%s/" PAGES_DIR "/%s", state_dir, found->key) <
           sizeof found->path;
}
