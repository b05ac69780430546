"""Mounts: by descriptor (open_tree, mount_setattr, move_mount, fsopen), by path (mount, umount2), and what is mounted
(statx, mountinfo)."""

import ctypes
import errno
import os
from struct import Struct

from oci_hook.linux.libc import AT_EMPTY_PATH, SyscallError, check, function, syscall
from oci_hook.linux.proc import read_file

OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR = {"ro": 0x01, "nosuid": 0x02, "nodev": 0x04, "noexec": 0x08}
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REMOUNT = 32
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
STATX_MNT_ID = 0x1000
STATX_ATTR_MOUNT_ROOT = 0x2000
PROC_SUPER_MAGIC = 0x9FA0  # include/uapi/linux/magic.h
CGROUP_SUPER_MAGIC = 0x27E0EB
CGROUP2_SUPER_MAGIC = 0x63677270
TMPFS_MAGIC = 0x01021994
TENANT_MOUNTS = 1 << 20  # bytes of mountinfo that are read of a tenant's process
CHUNK = 1 << 16

_STATX = Struct("=I4xQ128xQ104x")  # struct statx: stx_mask, stx_attributes, stx_mnt_id
_statx = function("statx", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
_mount = function("mount", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_umount2 = function("umount2", ctypes.c_char_p, ctypes.c_int)
_fstatfs = function("fstatfs", ctypes.c_int, ctypes.c_void_p)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class Mount:
    """One line of mountinfo (proc_pid_mountinfo(5)). device is "major:minor"; shared: it is in a peer group."""

    __slots__ = ("id", "device", "root", "point", "shared", "fstype", "options")

    def __init__(
        self, id: int, device: str, root: str, point: str, shared: bool, fstype: str, options: tuple[str, ...]
    ) -> None:
        self.id = id
        self.device = device
        self.root = root
        self.point = point
        self.shared = shared
        self.fstype = fstype
        self.options = options


def open_tree(fd: int, path: str) -> int:
    """A detached copy of what is mounted at fd (O_PATH is enough), without mounts below it. path: for errors."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH
    return syscall("open_tree", fd, b"", flags, path=path)


def mount_setattr(tree: int, options: tuple[str, ...], path: str) -> None:
    """Set these flags (ro, nosuid, nodev, noexec) on a detached tree, and make it private."""
    attr = _MountAttr(attributes(options), 0, MS_PRIVATE, 0)
    syscall("mount_setattr", tree, b"", AT_EMPTY_PATH, ctypes.byref(attr), ctypes.sizeof(attr), path=path)


def attributes(options: tuple[str, ...]) -> int:
    """The MOUNT_ATTR bits of mount options; "rw" has none. Raises KeyError for an option without such a bit."""
    bits = 0
    for option in options:
        if option != "rw":
            bits |= MOUNT_ATTR[option]
    return bits


def move_mount(tree: int, target: int, path: str) -> None:
    """Attach a detached tree on top of what target (an O_PATH descriptor in our mount namespace) is open on."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    syscall("move_mount", tree, b"", target, b"", flags, path=path)


def new_tmpfs(settings: dict[str, str], options: tuple[str, ...], path: str) -> int:
    """A detached tmpfs with these file system parameters (size, nr_inodes, mode) and mount options."""
    fs = syscall("fsopen", b"tmpfs", FSOPEN_CLOEXEC, path=path)
    try:
        for key, value in settings.items():
            syscall("fsconfig", fs, FSCONFIG_SET_STRING, key.encode(), value.encode(), 0, path=path)
        syscall("fsconfig", fs, FSCONFIG_CMD_CREATE, None, None, 0, path=path)
        return syscall("fsmount", fs, FSMOUNT_CLOEXEC, attributes(options), path=path)
    finally:
        os.close(fs)


def mount_tmpfs(path: str, settings: str) -> None:
    """Mount a tmpfs with these file system parameters, nosuid, nodev and noexec; on kernels of any age."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    check(_mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, settings.encode()), "mount", path)


def resize_tmpfs(path: str, settings: str) -> None:
    """Change file system parameters of the tmpfs that is mounted there. Its flags stay nosuid, nodev and noexec."""
    flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC
    check(_mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, settings.encode()), "mount", path)


def unmount(path: str) -> None:
    """Detach the topmost mount at path at once; the file system stays while it is in use or mounted elsewhere."""
    check(_umount2(os.fsencode(path), MNT_DETACH | UMOUNT_NOFOLLOW), "umount2", path)


def statx_mount(fd: int) -> tuple[int, bool]:
    """(mount id as in mountinfo, whether fd is the root of that mount) of an open descriptor. Raises
    SyscallError; ENOSYS before Linux 5.8, which tells neither."""
    buffer = ctypes.create_string_buffer(_STATX.size)
    check(_statx(fd, b"", AT_EMPTY_PATH, STATX_MNT_ID, buffer), "statx", f"fd {fd}")
    mask, flags, mount_id = _STATX.unpack(buffer.raw)
    if not mask & STATX_MNT_ID:
        raise SyscallError(errno.ENOSYS, "statx", f"fd {fd}")
    return mount_id, bool(flags & STATX_ATTR_MOUNT_ROOT)


def fstatfs_type(fd: int) -> int:
    """The file system's magic number (statfs(2)) of an open descriptor."""
    buffer = (ctypes.c_long * 32)()
    check(_fstatfs(fd, buffer), "fstatfs", f"fd {fd}")
    return int(buffer[0])


class TooManyMounts(OSError):
    """A list of mounts that is longer than the caller accepts."""


def mountinfo(process: str = "self", most: int = 0) -> tuple[Mount, ...]:
    """The mounts that a process sees, in the kernel's order: of two at one place the later one is on top. most: how many
    bytes are accepted (0: any), for processes that may have made any number of mounts. Raises TooManyMounts, OSError."""
    return parse(_mountinfo(process, most))


def mount_of(fd: int, process: str, most: int) -> Mount | None:
    """The mount that an open file is on, by what the process sees; None: it sees that mount no more. Unlike statfs(2) and
    fstat(2) this never waits for the file system. most: as of `mountinfo`. Raises TooManyMounts, OSError."""
    status = read_file(f"/proc/self/fdinfo/{fd}")
    start = b"\n%d " % int(status.partition(b"\nmnt_id:")[2].split()[0])
    line = (b"\n" + _mountinfo(process, most)).partition(start)[2].partition(b"\n")[0]
    return _parse((start[1:] + line).decode("utf-8", "surrogateescape")) if line else None


def _mountinfo(process: str, most: int) -> bytes:
    with open(f"/proc/{process}/mountinfo", "rb", buffering=0) as f:
        parts, size = [], 0
        while part := f.read(CHUNK):
            parts.append(part)
            size += len(part)
            if 0 < most < size:
                raise TooManyMounts(errno.EFBIG, f"more than {most} bytes of mounts", f"/proc/{process}/mountinfo")
    return b"".join(parts)


def parse(data: bytes) -> tuple[Mount, ...]:
    """The mounts in a text of proc_pid_mountinfo(5)."""
    # Not splitlines: names may contain characters that Unicode has for ends of lines.
    return tuple(_parse(line) for line in data.decode("utf-8", "surrogateescape").split("\n") if line)


def _parse(line: str) -> Mount:
    fields = line.split(" ")
    dash = fields.index("-", 6)
    return Mount(
        id=int(fields[0]),
        device=fields[2],
        root=_unescape(fields[3]),
        point=_unescape(fields[4]),
        shared=any(field.startswith("shared:") for field in fields[6:dash]),
        fstype=fields[dash + 1],
        options=tuple(fields[dash + 3].split(",")),
    )


def _unescape(text: str) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    if "\\" not in text:
        return text
    head, *rest = text.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
