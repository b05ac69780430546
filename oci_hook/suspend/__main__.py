"""`python -m oci_hook.suspend WHAT PREFIX KEY [LENT_TO]`: the agent's moves, each in a process of its own, since the driver may
hang. WHAT is `suspend`, `resume` for one that is away for another, or `end` for one that a crash has left half moved.

The ledger may have changed since the agent read it: what a person has suspended meanwhile stays so.
Exit status: 0 it was moved, or there was nothing to move; 1 not now; CANNOT it can never be moved as it is, by what the container
itself has or does; NO_ROOM its GPUs have less room than it needs. Standard output says why.
"""

import sys
from contextlib import suppress

from oci_hook.config import settings as node_settings
from oci_hook.errors import GhError
from oci_hook.suspend import mover
from oci_hook.suspend.hold import CANNOT, NO_ROOM

BACK = {
    "resume": lambda grant: grant.moving or grant.lent_to,
    "end": lambda grant: grant.moving,
}  # mover.resume's `if_so`


def main(what: str, prefix: str, key: str, lent_to: str = "") -> int:
    try:
        settings = node_settings.load(prefix)
        if what == "suspend":
            mover.suspend(settings, key, lent_to)
        else:
            mover.resume(settings, key, BACK[what])
        return 0
    except GhError as e:
        with suppress(OSError):  # a name of a process may have what the locale's encoding has not
            sys.stdout.buffer.write(f"{e}\n".encode("utf-8", "replace"))
            sys.stdout.buffer.flush()
        codes = {problem.code for problem in e.problems}
        if what == "suspend" and codes == {"GH-415"}:
            return CANNOT
        return NO_ROOM if codes == {"GH-201"} else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
