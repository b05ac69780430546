"""openat2(2), Linux 5.6: opens a path that cannot leave a root, despite any links and races on the way."""

import ctypes
import os
from errno import EAGAIN

from oci_hook.linux.libc import SyscallError, syscall

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10
RESOLVE_CACHED = 0x20  # Linux 5.12; EAGAIN where a file system would have to be asked

TRIES = 64  # EAGAIN: a rename raced with "..", and the caller may try again (openat2(2))


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def openat2(dirfd: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """An open descriptor, always close-on-exec. Raises SyscallError; ELOOP and EXDEV mean that `resolve` forbids it."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    for left in reversed(range(TRIES)):
        try:
            return syscall("openat2", dirfd, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how), path=path)
        except SyscallError as e:
            if e.errno != EAGAIN or not left or resolve & RESOLVE_CACHED:
                raise
    raise AssertionError("not reached")
