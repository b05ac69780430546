/* `exec` in a container with a grant: the new process gets the variables that the container's first process has.
 *
 * Engines take the environment of an `exec` from the image, so it has none of the grant's variables, or the image's own values
 * of them. The grant's values are in STATE/pages/KEY/env (ledger/exec_env.py); the key is made from the runtime's root and the
 * container's id, so that a container without a grant costs one open(2) that fails. The grant counts only if the runtime's
 * record of the container has the grant's annotation: an earlier container of the id may have ended unseen, and its file remains
 * until the next sweep.
 */
#ifndef EXEC_ENV_H
#define EXEC_ENV_H

/* argv with the grant's environment, or argv itself where there is no grant, or where the call is not understood: an `exec`
 * never fails for want of these variables. The file of --process stays as it is: the runtime gets an edited copy, which is in
 * memory only and ends with the runtime. command: the place of `exec` in argv. root: of --root, "" where there is none. */
char **with_grant_environment(int argc, char **argv, int command, const char *root, const char *runtime,
                              const char *state_dir);

#endif
