#include "owner.h"

#include <unistd.h>

/* How the machine's root looks here: the owner of what the kernel shows in /proc. */
static uid_t machine_root(void) {
    struct stat st;
    return stat("/proc/version", &st) ? 0 : st.st_uid;
}

bool is_roots(const struct stat *st) { return st->st_uid == 0 || st->st_uid == machine_root(); }

bool is_rootless(const struct stat *program) {
    if (geteuid() != 0)
        return program->st_uid == 0 || program->st_uid == machine_root();
    return program->st_uid != 0 && program->st_uid == machine_root();
}
