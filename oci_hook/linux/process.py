"""Processes: whose child one is, and a child that does not outlive its parent."""

import ctypes
import os

from oci_hook.linux.libc import check, function

PR_SET_PDEATHSIG = 1
SIGKILL = 9

_setfsuid = function("setfsuid", ctypes.c_uint)
_setfsgid = function("setfsgid", ctypes.c_uint)
_prctl = function("prctl", ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)


def parent(pid: int) -> int:
    """The parent's pid (proc_pid_stat(5), field 4). Raises OSError when there is no such process."""
    with open(f"/proc/{pid}/stat", "rb") as f:
        data = f.read()
    return int(data[data.rindex(b")") + 2 :].split(None, 2)[1])


def die_with_parent(parent: int) -> None:
    """In a forked child: be killed when the parent dies, or at once if it already did."""
    check(_prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl", "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def make_files_as(uid: int, gid: int) -> None:
    """Whose files this thread makes from now on, and with whose rights (setfsuid(2)); (0, 0): root's again."""
    if uid:
        _setfsgid(gid)
        _setfsuid(uid)  # takes the capabilities over files
    else:
        _setfsuid(uid)  # gives them back
        _setfsgid(gid)
