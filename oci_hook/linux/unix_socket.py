"""Sockets with a name in the file system, and who is at their other end (unix(7))."""

import os
import socket
import stat
import struct

PEERGROUPS = 59  # SO_PEERGROUPS of asm-generic/socket.h: all groups of the peer; Linux 4.13
GROUPS_MAX = 256  # Python's getsockopt() has room for no more


def listen(path: str, mode: int) -> socket.socket:
    """Takes the place of a socket that nobody has any more: the caller's lock says so. Changes the umask for a moment, so only
    for a process of one thread. Raises OSError, also if something else has this name."""
    remove(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = _folder(path)
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(_short(folder, path))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
        os.close(folder)
    return listener


def remove(path: str) -> None:
    """Raises OSError. Whatever is no socket stays."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


def connect(path: str, owner: int, seconds: float) -> socket.socket:
    """A connection to this user's listener. Raises OSError, also if another user listens there."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = -1
    try:
        folder = _folder(path)
        s.settimeout(seconds)
        s.connect(_short(folder, path))
        if (uid := peer_uid(s)) != owner:
            raise PermissionError(f"user {uid} listens at {path}")
    except BaseException:
        s.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return s


def peer_uid(s: socket.socket) -> int:
    """The user of the process that connected, or listens (SO_PEERCRED)."""
    return int(struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def peer_groups(s: socket.socket) -> set[int]:
    """The groups of the process that connected. Raises OSError, also before Linux 4.13, and for a process of more than
    GROUPS_MAX groups."""
    _, _, group = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    data = s.getsockopt(socket.SOL_SOCKET, PEERGROUPS, 4 * GROUPS_MAX)
    return {group, *struct.unpack(f"{len(data) // 4}I", data)}


def _folder(path: str) -> int:
    return os.open(os.path.dirname(path) or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _short(folder: int, path: str) -> str:
    """An address has 107 bytes at most (sun_path)."""
    return f"/proc/self/fd/{folder}/{os.path.basename(path)}"
