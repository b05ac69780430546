"""Flags of an inode (ioctl_iflags(2)) that forbid its removal and changes: a tenant with CAP_LINUX_IMMUTABLE sets them on a file
that it may write, on tmpfs since Linux 6.6. A hot module: no ctypes."""

import fcntl
import os
import struct

GETFLAGS, SETFLAGS = 0x80086601, 0x40086602  # linux/fs.h, where long has 64 bits
IMMUTABLE, APPEND = 0x10, 0x20
FLAGS = struct.Struct("<i4x")


def free(path: str) -> None:
    """Take away what forbids the file's removal and changes. Raises OSError; a lease on it makes nobody wait."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        (flags,) = FLAGS.unpack(fcntl.ioctl(fd, GETFLAGS, bytes(FLAGS.size)))
        fcntl.ioctl(fd, SETFLAGS, FLAGS.pack(flags & ~(IMMUTABLE | APPEND)))
    finally:
        os.close(fd)
