"""Properties that a process sets for itself: its end with its parent (prctl(2)), the owner of files it makes (setfsuid(2))."""

import ctypes
import os

from oci_hook.linux.libc import check, function

PR_SET_PDEATHSIG = 1
SIGKILL = 9

_setfsuid = function("setfsuid", ctypes.c_uint)
_setfsgid = function("setfsgid", ctypes.c_uint)
_prctl = function("prctl", ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


def die_with_parent(parent: int) -> None:
    """Lets the kernel kill this forked child when its parent dies, or at once if it already did."""
    check(_prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl", "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def make_files_as(uid: int, gid: int) -> None:
    """Set the owner of the files that this thread makes from now on, and the rights that it makes them with; (0, 0):
    root's again."""
    if uid:
        _setfsgid(gid)
        _setfsuid(uid)  # setfsuid also drops the capabilities over files
    else:
        _setfsuid(uid)  # setfsuid(0) restores the capabilities over files
        _setfsgid(gid)
