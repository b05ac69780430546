/* Whose a file is, also where the machine's root has no number: in the user namespace of a rootless engine. */
#ifndef OWNER_H
#define OWNER_H

#include <stdbool.h>
#include <sys/stat.h>

/* Whether the file is root's: of this user namespace, or of the machine. All users without a number in this namespace look like
 * the machine's root. They can do no harm by that: whoever runs us there has no more rights than they give us. */
bool is_roots(const struct stat *st);

/* Whether this process is a user's, and the program of this file the machine's root's: then root's ledger is closed to us. */
bool is_rootless(const struct stat *program);

#endif
