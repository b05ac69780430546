"""`python -m oci_hook.suspend suspend|resume PREFIX KEY [LENT_TO]`: the agent's moves, each in a process of its own, since the
driver may hang.

Exit status: 0 it was moved, or was there already; 1 not now; CANNOT it can never be moved as it is, by what the container itself
has or does.
"""

import sys

from oci_hook.config import settings as node_settings
from oci_hook.errors import GhError
from oci_hook.suspend import mover
from oci_hook.suspend.hold import CANNOT


def main(what: str, prefix: str, key: str, lent_to: str = "") -> int:
    try:
        settings = node_settings.load(prefix)
        if what == "resume":
            mover.resume(settings, key)
        else:
            mover.suspend(settings, key, lent_to)
        return 0
    except GhError as e:
        own = what == "suspend" and all(problem.code == "GH-415" for problem in e.problems)
        return CANNOT if own else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
