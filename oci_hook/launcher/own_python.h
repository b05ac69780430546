/* The Python that an install or a package carries, in a folder of its own: packaging/interpreter.py says what is in it. */
#pragma once
#include <stddef.h>

#define OWN_PYTHON_WORDS 8 /* how many words own_python writes at most */

/* Writes the first words of the command line that starts it: its loader, which needs nothing of the machine's libraries.
 * Returns how many; 0 if the folder's path is too long. */
size_t own_python(char **args, const char *folder);
