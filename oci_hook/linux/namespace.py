"""Namespaces of a process: compare, enter; and a child that does not outlive its parent."""

import ctypes
import os

from oci_hook.linux.libc import check, function

CLONE_NEWNS = 0x00020000
PR_SET_PDEATHSIG = 1
SIGKILL = 9

_setns = function("setns", ctypes.c_int, ctypes.c_int)
_prctl = function("prctl", ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


def setns(pidfd: int, flags: int, path: str) -> None:
    """Move this process into the namespaces of a process (a pidfd, Linux 5.8); path: for errors."""
    check(_setns(pidfd, flags), "setns", path)


def same(kind: str, pid: int) -> bool:
    """Whether a process is in our own namespace of this kind ("mnt", "user"). Raises OSError when it is gone."""
    ours, theirs = os.stat(f"/proc/self/ns/{kind}"), os.stat(f"/proc/{pid}/ns/{kind}")
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def die_with_parent(parent: int) -> None:
    """In a forked child: be killed when the parent dies, or at once if it already did."""
    check(_prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl", "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)
