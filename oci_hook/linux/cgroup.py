"""Where a process's cgroup is on this host (cgroups(7)): version 1 by controller; version 2 is only recognised."""

import os

from oci_hook.linux.mount import CGROUP_SUPER_MAGIC, fstatfs_type, mountinfo


def v1_path(pid: int, controller: str) -> str | None:
    """The directory of a process in this version 1 hierarchy; None where it is not mounted (version 2 alone)."""
    member = _member(pid, controller)
    if member is None:
        return None
    for mount in mountinfo():
        if mount.fstype == "cgroup" and controller in mount.options:
            # A mount's root is a cgroup of its own where /sys/fs/cgroup is a container's.
            root = mount.root.rstrip("/")
            if member == root or member.startswith(root + "/"):
                return mount.point + member[len(root) :]
    return None


def open_v1(pid: int, controller: str) -> int | None:
    """An O_PATH descriptor of that directory, known to be on a cgroup file system; None as v1_path."""
    path = v1_path(pid, controller)
    if path is None:
        return None
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if fstatfs_type(fd) != CGROUP_SUPER_MAGIC:
        os.close(fd)
        raise OSError(22, "not a cgroup file system", path)
    return fd


def read(directory: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as f:
        return f.read().decode("ascii", "replace")


def write(directory: int, name: str, line: str) -> None:
    """One write(2), which is one command to the kernel."""
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, line.encode())
    except OSError as e:
        raise OSError(e.errno, f"{name}: {e.strerror}", line) from None
    finally:
        os.close(fd)


def _member(pid: int, controller: str) -> str | None:
    with open(f"/proc/{pid}/cgroup", "rb") as f:
        for line in f.read().decode("utf-8", "surrogateescape").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return path
    return None
