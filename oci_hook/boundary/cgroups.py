"""The cgroups of a container that the driver's limit is set on: directories of cgroup v2 at /sys/fs/cgroup."""

import os

from oci_hook.linux.cgroup import only_holds
from oci_hook.linux.cgroup_tree import MOUNTED as MOUNTED
from oci_hook.linux.proc import cgroups, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    Place = tuple[str, int]  # a cgroup's directory, and its inode number, which no later cgroup of that path has

PROCS_MAX = 1 << 16


class NoCgroup(Exception):
    """No cgroup that is the container's alone; str() says why."""


def is_version2() -> bool:
    """True if cgroup v2 is mounted where the driver looks for it."""
    return os.path.exists(f"{MOUNTED}/cgroup.controllers")


def is_pid_1s_namespace() -> bool:
    """True if we see the same cgroups as the first process that we see, which is the host's unless all is nested."""
    try:
        return os.readlink("/proc/self/ns/cgroup") == os.readlink("/proc/1/ns/cgroup")
    except OSError:
        return True


def places(pid: int, planned: str = "") -> "tuple[Place, ...]":
    """The cgroup that the container's init is in and, before it, the one above where that is the container's, too: crun
    makes NAME.scope for a container and starts it in NAME.scope/container. A program can be moved out of the lower one
    within the upper one, and the documents do not say whether the driver's limit of a cgroup holds for those below it:
    so the limit is set on both. A tenant can leave neither: it would have to write to a cgroup above.

    pid: a process that was just made and is alone in its cgroup. planned: the cgroup that config.json names, "" unknown.
    Raises NoCgroup.
    """
    own = path_of(pid)
    if _processes(own) != {pid}:
        raise NoCgroup(f"cgroup {own} holds other processes than the container's; give the container its own")
    above = os.path.dirname(own)
    found = [(own, inode(own))]
    if above != MOUNTED and (above == planned or above.endswith(".scope")) and only_holds(above, own):
        found.insert(0, (above, inode(above)))
    return tuple(found)


def path_of(pid: int) -> str:
    """The directory of the process's version 2 cgroup. Raises NoCgroup."""
    if not is_version2():
        raise NoCgroup(f"cgroup v2 is not mounted at {MOUNTED}")
    try:
        path = next((path for controllers, path in cgroups(pid) if not controllers), "")
    except OSError as e:
        raise NoCgroup(f"process {pid} has gone ({e.strerror})") from None
    if not path.strip("/") or "/../" in f"{path}/":
        raise NoCgroup(f"process {pid} is in cgroup {path[:80] or '/'}, which is no container's")
    return MOUNTED + path


def inode(directory: str) -> int:
    """0 where there is no such directory."""
    try:
        return os.stat(directory).st_ino
    except OSError:
        return 0


def populated(directory: str) -> bool:
    """True if a process is in the cgroup or below it."""
    try:
        return b"populated 0" not in read_file(f"{directory}/cgroup.events")
    except OSError:
        return False


def keeps_limits_of_gone() -> bool:
    """True if the driver may keep the limit of a cgroup that was removed. With the kernel's dmem controller the limit is
    the cgroup's own file, which is gone with it."""
    try:
        return b"nvidia/" not in read_file(f"{MOUNTED}/dmem.capacity")
    except OSError:
        return True


def _processes(directory: str) -> set[int]:
    try:
        return {int(word) for word in read_file(f"{directory}/cgroup.procs", PROCS_MAX).split()}
    except OSError as e:
        raise NoCgroup(f"{directory}: {e.strerror}") from None
