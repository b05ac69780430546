"""inotify(7): reports when names are added to a directory or removed."""

import ctypes
import os

from oci_hook.linux.libc import check, function

IN_MOVED_TO = 0x80
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_ONLYDIR = 0x01000000

_init = function("inotify_init1", ctypes.c_int)
_add = function("inotify_add_watch", ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


def watch(directory: str, mask: int) -> int:
    """A non-blocking descriptor that becomes readable when an event of `mask` happens there. Raises OSError."""
    fd = check(_init(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1", directory)
    try:
        check(_add(fd, os.fsencode(directory), mask | IN_ONLYDIR), "inotify_add_watch", directory)
    except BaseException:
        os.close(fd)
        raise
    return fd


def drain(fd: int) -> None:
    """Discard the pending events; the caller looks at the directory itself."""
    try:
        while os.read(fd, 1 << 16):
            pass
    except BlockingIOError:
        pass
