/* `start`, `kill` and `delete` of a container with a grant: what the runtime knows of it is kept beside the grant's page.
 *
 * The runtime removes its state file with the container. With the copy the next reader of the ledger knows the container's init
 * and cgroup, and so that both have ended, without a look at all processes of the node (ledger/proof.py).
 */
#ifndef KEEP_STATE_H
#define KEEP_STATE_H

/* Never fails: without the copy, that look is made. command: the place of the command in argv. root: of --root, "" for none.
 * Returns the key of the grant that the container has, if it has one; NULL where the command line is not understood. */
const char *keep_state(char **argv, int command, const char *root, const char *runtime, const char *state_dir);

#endif
