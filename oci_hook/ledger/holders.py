"""Which processes hold a grant: those that have the grant's policy page mounted in their mount namespace.

Only the kernel's lists of mounts are read: no state file of a runtime, no directory that a mount may hide, and nothing
inside the container. Whoever may unmount the page is trusted like root on the node (SECURITY.md).
"""

import os
from errno import EINVAL, ENOENT, ESRCH

from oci_hook.core.layout import PAGES_DIR
from oci_hook.linux.cgroup_tree import belongs
from oci_hook.linux.proc import budget, inner_pid, pids, read_file, start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PAGES = f"/{PAGES_DIR}/".encode()
KEY = 32  # hex digits of a grant's key
PAGE = b"/policy"
# Bytes of one namespace's list. The mounts that the runtime made come first in it, before what a tenant has added.
MOUNTS_MAX = 1 << 20
NEVER = 1 << 62


def holds(pid: int, key: str, pages: str = "") -> bool:
    """Whether the process sees this grant's page. pages: as of `holders`. Raises OSError where that cannot be found out."""
    return key in keys_of(read_file(f"/proc/{pid}/mountinfo", MOUNTS_MAX), device_of(pages))


def device_of(pages: str) -> bytes:
    """MAJOR:MINOR of the pages' file system as lists of mounts have it; b"" where they have another one (btrfs)."""
    if not pages:
        return b""
    number = os.stat(pages).st_dev
    device = b"%d:%d" % (os.major(number), os.minor(number))
    return device if b" %b " % device in read_file("/proc/self/mountinfo", MOUNTS_MAX) else b""


def keys_of(mountinfo: bytes, device: bytes = b"") -> set[str]:
    """The keys of the grants whose page is in this list of mounts (proc_pid_mountinfo(5)). device: of `device_of`."""
    found = set()
    start = mountinfo.find(PAGES)
    while start >= 0:
        key = start + len(PAGES)
        if mountinfo.startswith(PAGE, key + KEY) and _is_root(mountinfo, start, device):
            found.add(mountinfo[key : key + KEY].decode("ascii", "replace"))
        start = mountinfo.find(PAGES, key)
    return found


def _is_root(mountinfo: bytes, at: int, device: bytes) -> bool:
    """Whether this place is in a mount's root (the fourth field) on this device. Anybody makes mount points of any name, and
    file systems of his own with any files, in a user namespace."""
    fields = mountinfo[mountinfo.rfind(b"\n", 0, at) + 1 : at].split(b" ")
    return len(fields) == 4 and device in (b"", fields[2])


def holders(
    seconds: float,
    living: frozenset[str] = frozenset(),
    pages: str = "",
    keys: "Callable[[bytes, bytes], set[str]]" = keys_of,
) -> tuple[dict[str, tuple[int, int]], int]:
    """Look at the mounts of all processes: ((pid, start time) of a process that holds the grant, by the grant's key;
    the latest start time of a process that could not be looked at, 0 for none).

    A process that could not be looked at can hold no grant that was made after it started. seconds: see proc.budget.
    Tenants can make more processes and namespaces than that is enough for: then the second value is NEVER.
    living: cgroups of containers that are known to live. Their processes hold no other container's grant and are
    skipped. pages: the folder of the grants' pages; "": any. keys: which grants a list of mounts shows. The first
    process of a pid namespace is preferred: all others of the namespace end with it.
    """
    spent = budget(seconds)
    seen: dict[str, set[str]] = {}  # by mount namespace
    found: dict[str, tuple[int, int]] = {}
    first: set[str] = set()
    unseen = 0
    device = device_of(pages)
    for pid in pids():
        if spent():
            return found, NEVER
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            shown = seen.get(namespace)
            if shown is None and living and belongs(pid, living):
                continue
            if shown is None:
                shown = seen[namespace] = keys(read_file(f"/proc/{pid}/mountinfo", MOUNTS_MAX), device)
            if shown <= first:
                continue
            start, leads = start_time(pid), is_first(pid)
            for key in shown if start else ():
                if key not in found or leads:
                    found[key] = pid, start
                if leads:
                    first.add(key)
        except OSError as e:
            # EINVAL: the process is ending and has no mounts any more (fs/proc_namespace.c).
            if e.errno not in (ENOENT, ESRCH, EINVAL):
                unseen = max(unseen, start_time(pid))
    return found, unseen


def is_first(pid: int) -> bool:
    """Whether it is the first process of its pid namespace."""
    try:
        return inner_pid(pid) == 1
    except OSError:
        return False
