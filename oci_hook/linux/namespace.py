"""Namespaces of a process: compare, enter."""

import ctypes
import os

from oci_hook.linux.libc import check, function

CLONE_NEWNS = 0x00020000

_setns = function("setns", ctypes.c_int, ctypes.c_int)


def setns(pidfd: int, flags: int, path: str) -> None:
    """Move this process into the namespaces of a process (a pidfd, Linux 5.8); path: for errors."""
    check(_setns(pidfd, flags), "setns", path)


def owner(pid: int) -> tuple[int, int]:
    """(uid, gid) here of root in the process's user namespace (user_namespaces(7)); (0, 0) if it has no such."""
    return _root(f"/proc/{pid}/uid_map"), _root(f"/proc/{pid}/gid_map")


def _root(path: str) -> int:
    with open(path) as f:
        for line in f:
            inside, outside, _ = map(int, line.split())
            if inside == 0:
                return outside
    return 0


def same(kind: str, pid: int) -> bool:
    """True if a process is in our own namespace of this kind ("mnt", "user"). Raises OSError if it has ended."""
    ours, theirs = os.stat(f"/proc/self/ns/{kind}"), os.stat(f"/proc/{pid}/ns/{kind}")
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
