"""Finds and opens the directory of a process's cgroup (cgroups(7)): of version 1 by controller, and of version 2."""

import os

from oci_hook.linux.mount import CGROUP2_SUPER_MAGIC, CGROUP_SUPER_MAGIC, fstatfs_type, mountinfo
from oci_hook.linux.proc import cgroups, read_file


def v1_path(pid: int, controller: str) -> str | None:
    """The directory of the process's cgroup in a controller's version 1 hierarchy; None where that is not mounted."""
    return _path(member(pid, controller), "cgroup", controller)


def v2_path(pid: int) -> str | None:
    """The directory of the process's cgroup in the version 2 hierarchy; None where that is not mounted."""
    return _path(member(pid, ""), "cgroup2", "")


def open_v1(pid: int, controller: str) -> int | None:
    """An O_PATH descriptor of that directory, which is checked to be on a cgroup file system; None as v1_path."""
    return open_path(v1_path(pid, controller), CGROUP_SUPER_MAGIC)


def open_v2(pid: int) -> int | None:
    """A descriptor of the process's directory in the version 2 hierarchy; None where that is not mounted."""
    return open_path(v2_path(pid), CGROUP2_SUPER_MAGIC)


def _path(member: str | None, fstype: str, controller: str) -> str | None:
    if member is None:
        return None
    for mount in mountinfo():
        if mount.fstype == fstype and (not controller or controller in mount.options):
            # In a container, the root of the mount at /sys/fs/cgroup is the container's own cgroup.
            root = mount.root.rstrip("/")
            if member == root or member.startswith(root + "/"):
                return mount.point + member[len(root) :]
    return None


def open_path(path: str | None, magic: int) -> int | None:
    """An O_PATH descriptor of a cgroup's directory, which is checked to be on this type of file system. Raises
    OSError."""
    if path is None:
        return None
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if fstatfs_type(fd) != magic:
        os.close(fd)
        raise OSError(22, "not a cgroup file system", path)
    return fd


def only_holds(above: str, own: str) -> bool:
    """True if the cgroup `own` is all that is in the one above it: no process, and no other cgroup."""
    try:
        with os.scandir(above) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return below == [own] and not read_file(f"{above}/cgroup.procs")
    except OSError:
        return False


def read(directory: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as f:
        return f.read().decode("ascii", "replace")


def write(directory: int, name: str, line: str) -> None:
    """Write the line with one write(2), which the kernel takes as one command. Raises OSError."""
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, line.encode())
    except OSError as e:
        raise OSError(e.errno, f"{name}: {e.strerror}", line) from None
    finally:
        os.close(fd)


def member(pid: int, controller: str) -> str | None:
    """The path of the process's cgroup within this hierarchy ("": version 2); None where there is no such hierarchy."""
    return next((path for names, path in cgroups(pid) if controller in names.split(",")), None)
