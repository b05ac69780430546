"""Which processes hold a grant by the kernel's own word: the grant's policy page is mounted in their mount namespace.

No runtime's state file, no directory that a mount may hide, and nothing inside the container is asked. Who may unmount
the page is trusted like root on the node (SECURITY.md).
"""

import os
import time
from errno import EINVAL, ENOENT, ESRCH

from oci_hook.core.layout import PAGES_DIR
from oci_hook.ledger.life import belongs
from oci_hook.linux.proc import read_file, start_time

MARK = f"/{PAGES_DIR}/".encode()
KEY = 32  # hex digits of a grant's key
END = b"/policy"
# Bytes of one namespace's list. The mounts that the runtime made come first in it, before what a tenant has added.
MOUNTS_MAX = 1 << 20
NEVER = 1 << 62


def holds(pid: int, key: str) -> bool:
    """Whether the process sees this grant's page. Raises OSError where that cannot be found out."""
    return MARK + key.encode() + END in read_file(f"/proc/{pid}/mountinfo", MOUNTS_MAX)


def keys_of(mountinfo: bytes) -> set[str]:
    """The grants whose page is mounted, by a namespace's list of mounts (proc_pid_mountinfo(5))."""
    found = set()
    start = mountinfo.find(MARK)
    while start >= 0:
        key = start + len(MARK)
        if mountinfo.startswith(END, key + KEY):
            found.add(mountinfo[key : key + KEY].decode("ascii", "replace"))
        start = mountinfo.find(MARK, key)
    return found


def holders(seconds: float, apart: "tuple[str, ...]" = ()) -> tuple[dict[str, tuple[int, int]], int]:
    """((pid, start time) of a process that holds it, by grant's key; the latest start time of a process that we could
    not look at, 0 where there is none: it can hold no grant that was made after it).

    apart: cgroups of containers whose grants need no holder: what is in them holds no other grant, and is passed over.
    The first process of a pid namespace is preferred: while it lives, none of the others is the last. seconds: where
    tenants have made more processes or namespaces than can be looked at in that time, the rest was not looked at.
    """
    until = time.monotonic() + seconds
    seen: dict[str, set[str]] = {}
    found: dict[str, tuple[int, int]] = {}
    first: set[str] = set()
    unseen = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        if time.monotonic() > until:
            return found, NEVER
        try:
            namespace = os.readlink(f"/proc/{name}/ns/mnt")
            keys = seen.get(namespace)
            if keys is None and apart and belongs(int(name), apart):
                continue
            if keys is None:
                keys = seen[namespace] = keys_of(read_file(f"/proc/{name}/mountinfo", MOUNTS_MAX))
            if keys <= first:
                continue
            start, leads = start_time(int(name)), is_first(int(name))
            for key in keys if start else ():
                if key not in found or leads:
                    found[key] = int(name), start
                if leads:
                    first.add(key)
        except OSError as e:
            # A process that ends has no mounts any more: EINVAL (fs/proc_namespace.c). Of another we know nothing.
            if e.errno not in (ENOENT, ESRCH, EINVAL):
                unseen = max(unseen, start_time(int(name)))
    return found, unseen


def is_first(pid: int) -> bool:
    """Whether it is the first process of a pid namespace (proc_pid_status(5), NSpid)."""
    try:
        lines = read_file(f"/proc/{pid}/status").splitlines()
    except OSError:
        return False
    return any(line.startswith(b"NSpid:") and line.split()[-1] == b"1" for line in lines)
