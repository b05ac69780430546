"""Which processes are in a cgroup or below it, and in which cgroups a process is (cgroups(7)). A hot module: no ctypes.

A tenant that is root in a user namespace can make the tree below its own cgroup as deep and as wide as it likes, so
every walk has bounds, and works by directory descriptors.
"""

import os
from errno import ENODEV, ENOENT

from oci_hook.linux.proc import budget, cgroups, pids, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MOUNTED = "/sys/fs/cgroup"  # distributions' mounts of the hierarchies
PROCS_MAX = 4 << 20  # bytes of one cgroup.procs
DEEPEST = 64  # cgroups within cgroups


class TooManyCgroups(Exception):
    """More cgroups, or deeper ones, than the walk may visit."""


def processes(cgroup: str, most: int) -> "Iterator[list[int]]":
    """For the cgroup and each one below it, the pids in it; 0 is a process that our pid namespace does not show.

    most: cgroups below the first one. Raises TooManyCgroups, OSError for the cgroup itself; one below it that is
    removed meanwhile is left out.
    """
    fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _below(fd, [most], DEEPEST)
    finally:
        os.close(fd)


def _below(fd: int, left: list[int], deep: int) -> "Iterator[list[int]]":
    yield [int(word) for word in read_file("cgroup.procs", PROCS_MAX, fd).split()]
    with os.scandir(fd) as entries:
        names = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
                left[0] -= 1
                if left[0] < 0 or not deep:
                    raise TooManyCgroups
    for name in names:
        try:
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            try:
                yield from _below(child, left, deep - 1)
            finally:
                os.close(child)
        except OSError as e:
            if e.errno not in (ENOENT, ENODEV):
                raise


def is_container(cgroup: str, inode: int) -> bool:
    """True if this directory can be a container's cgroup: it is not the top of its hierarchy, in which every process of
    the node is, and has this inode number (0: any). A cgroup that was removed and made again has another inode number.
    Raises OSError."""
    return os.path.exists(cgroup + "/../cgroup.procs") and inode in (0, os.stat(cgroup).st_ino)


def devices() -> str:
    """The top of the devices controller's hierarchy; "" where version 2 alone is mounted, whose cgroups may have that name, too."""
    top = f"{MOUNTED}/devices"
    return top if os.path.isdir(top) and not os.path.exists(f"{MOUNTED}/cgroup.procs") else ""


def directory_of(pid: int) -> str:
    """The process's cgroup of the devices controller, or of version 2; "" where neither is mounted in the usual place.
    Raises OSError."""
    v2 = ""
    for controllers, path in cgroups(pid):
        if "devices" in controllers.split(",") and (top := devices()):
            return os.path.normpath(f"{top}{path}")
        if not controllers:
            v2 = os.path.normpath(f"{MOUNTED}{path}")
    return v2 if os.path.exists(v2 + "/cgroup.procs") else ""


def belongs(pid: int, directories: "frozenset[str]") -> bool:
    """True if a process is in one of these cgroup directories or below. Raises OSError.

    It takes no longer if they are many: each directory that the process is in is looked up, from the top, as a tenant's
    own tree of cgroups, which may be deep, is below its container's.
    """
    for controllers, path in cgroups(pid):
        for name in controllers.split(","):
            place = f"{MOUNTED}/{name}{path}/" if name else f"{MOUNTED}{path}/"
            end = place.find("/", 1)
            while end > 0:
                if place[:end] in directories:
                    return True
                end = place.find("/", end + 1)
    return False


def any_belongs(directory: str, seconds: float) -> bool:
    """True if any process of the node is in this cgroup directory or below; after so many seconds (proc.budget), in doubt, yes."""
    spent = budget(seconds)
    for pid in pids():
        if spent():
            return True
        try:
            if belongs(pid, frozenset((directory,))):
                return True
        except (FileNotFoundError, ProcessLookupError):
            pass  # the process has just ended
    return False
