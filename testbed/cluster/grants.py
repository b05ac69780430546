"""A machine's grants, for repeated queries: runs on the machine and answers each line on its standard input.

grants.py STATE-DIRECTORY. An answer is one line: [[pod's UID, container, [[GPU, MiB, per cent], ...]], ...].
"""

import json
import sys

from oci_hook.ledger import store


def grants(state: str) -> list[object]:
    try:
        found = store.peek(state)
    except FileNotFoundError:
        return []  # no container had a grant yet
    return [
        [g.who.pod_uid, g.who.container, [[s.uuid, s.memory_mib, 100 if s.whole else s.compute] for s in g.shares]]
        for g in found
        if g.shares
    ]


for _ in sys.stdin:
    print(json.dumps(grants(sys.argv[1])), flush=True)
