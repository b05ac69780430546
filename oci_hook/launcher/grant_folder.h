/* The folder of a container's grant, STATE/pages/KEY, and the runtime's own record of the container. */
#ifndef GRANT_FOLDER_H
#define GRANT_FOLDER_H

#include <limits.h>
#include <stdbool.h>

#include "blake2b.h"
#include "text.h"

#define MAX_ID 1024           /* ledger/life.py valid_id */
#define MAX_RECORD (16 << 20) /* bytes of a file of the runtime, as of config.json */

struct grant_folder {
    char path[PATH_MAX];
    char root[PATH_MAX]; /* the runtime's state directory */
    char key[2 * BLAKE2B_SIZE + 1];
};

/* Where the grant's folder is, if the container has a grant: its name is made from the runtime's root ("": its default) and the
 * container's id (ledger/store.py grant_key). false: it can have none. */
bool grant_folder(struct grant_folder *found, const char *state_dir, const char *root, const char *id,
                  const char *runtime);

/* A file's bytes, to be freed; `at` is NULL unless it is a regular file of at most `most` bytes. */
struct text read_whole(const char *path, size_t most, int flags);

/* Whether a record of the runtime has the container's annotation MARKER with this key: KEY=VALUE in runc's list of labels,
 * "KEY": "VALUE" in the JSON of crun and youki. */
bool has_marker(struct text record, const char *key);

#endif
