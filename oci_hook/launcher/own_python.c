/* See own_python.h. With -DPROGRAM it is a program itself: the interpreter's FOLDER/bin/python3, which a Python started by
 * it finds as sys.executable; and under any other name, beside FOLDER, the command, command.py. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "own_python.h"

size_t own_python(char **args, const char *folder) {
    static char loader[PATH_MAX], name[PATH_MAX], python[PATH_MAX];
    if (strlen(folder) + sizeof "/lib/gpu-hook-python" > PATH_MAX)
        return 0;
    sprintf(loader, "%s/lib/gpu-hook-python", folder);
    sprintf(name, "%s/bin/python3", folder); /* it finds its modules by that name */
    sprintf(python, "%s/lib/python", folder);
    /* $ORIGIN is FOLDER/lib, where the loader is: written out, a folder with a colon would be two for it.
     * -X utf8: no locale of the machine's says how names of files are to be read. */
    char *words[] = {loader, "--library-path", "$ORIGIN", "--argv0", name, python, "-X", "utf8"};
    memcpy(args, words, sizeof words);
    return sizeof words / sizeof *words;
}

#ifdef PROGRAM
int main(int argc, char **argv) {
    static char exe[PATH_MAX], folder[2 * PATH_MAX], command[PATH_MAX + sizeof "/command.py"];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char **args = calloc((size_t)argc + OWN_PYTHON_WORDS + 4, sizeof *args);
    char *slash = n > 0 ? strrchr(exe, '/') : NULL;
    if (!slash || !args) {
        fprintf(stderr, "GH-504: /proc/self/exe cannot be read; is /proc mounted?\n");
        return 1;
    }
    bool is_python = !strcmp(slash, "/python3");
    *slash = 0;
    sprintf(command, "%s/command.py", exe);
    if (is_python)
        *strrchr(exe, '/') = 0;
    snprintf(folder, sizeof folder, is_python ? "%s" : "%s/" OWN_PYTHON, exe);
    size_t at = own_python(args, folder);
    if (!is_python) {
        args[at++] = "-I";
        args[at++] = "-S";
        args[at++] = command;
    } else {
        args[at++] = "-S"; /* no site-packages: they are another Python's */
    }
    for (int i = 1; i < argc; i++)
        args[at++] = argv[i];
    execv(args[0], args);
    perror(args[0]);
    return 1;
}
#endif
