"""Calls system calls by number and functions of the C library, and raises errno as OSError."""

import ctypes
import os
from errno import ENOSYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

# include/uapi/asm-generic/unistd.h: calls since Linux 5.1 have the same number on every architecture; bpf is older.
NUMBERS = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "pidfd_open": 434,  # Python has it only where it was built on such a kernel
    "openat2": 437,
    "mount_setattr": 442,
    "bpf": 321 if os.uname().machine == "x86_64" else 280,
}
SINCE = {  # the first kernel with what we use of the call, for the error message
    "open_tree": "5.2",
    "move_mount": "5.2",
    "fsopen": "5.2",
    "fsconfig": "5.2",
    "fsmount": "5.2",
    "pidfd_open": "5.3",
    "openat2": "5.6",
    "statx": "5.8",
    "mount_setattr": "5.12",
}
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000


class SyscallError(OSError):
    """An OSError that knows its system call: str() is "move_mount: Permission denied: PATH"."""

    def __init__(self, number: int, call: str, path: str) -> None:
        super().__init__(number, os.strerror(number), path)
        self.call = call

    def __str__(self) -> str:
        since = f" (Linux {SINCE[self.call]} or newer has it)" if self.errno == ENOSYS and self.call in SINCE else ""
        return f"{self.call}: {self.strerror}{since}: {self.filename}"


def check(result: int, call: str, path: str) -> int:
    """The result of a C call, which is -1 for an error. Raises SyscallError with errno then."""
    if result == -1:
        raise SyscallError(ctypes.get_errno(), call, path)
    return result


def syscall(call: str, *arguments: object, path: str) -> int:
    """A system call of NUMBERS; ints are passed as C longs. path is only for the error's text."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(int(_libc.syscall(ctypes.c_long(NUMBERS[call]), *words)), call, path)


def function(name: str, *prototype: object) -> "Callable[..., int]":
    """A function of the C library with these argument types, returning int and setting errno."""
    found: Callable[..., int] = getattr(_libc, name)
    found.argtypes, found.restype = prototype, ctypes.c_int  # type: ignore[attr-defined]
    return found
