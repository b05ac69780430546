"""The processes of a container, as the host sees them: found by the container's cgroup, and that through its init."""

import time

from oci_hook.linux import cgroup, cgroup_tree, proc

MOST = 4096  # processes of one container; those of a larger one count as not known
MOST_CGROUPS = 1024  # below one container's

Owner = tuple[int, int, int]  # how the shim writes a process into the account page: pid, start time, pid namespace


class Process:
    """One process. start: its start time. inner, ns: its pid in its own pid namespace, and that namespace's inode
    number. stack: the bottom of its stack, which changes at exec; 0 or 1: the kernel does not say."""

    __slots__ = ("pid", "start", "inner", "ns", "stack")

    def __init__(self, pid: int, start: int, inner: int, ns: int, stack: int) -> None:
        self.pid = pid
        self.start = start
        self.inner = inner
        self.ns = ns
        self.stack = stack

    @property
    def owners(self) -> frozenset[Owner]:
        return owners(self.inner, self.start, self.ns)


def owners(inner: int, start: int, ns: int) -> frozenset[Owner]:
    """The ways in which the shim may have written a process into the account page (gh_identify in
    shim/process/identity.c): without a /proc of its own namespace it does not know the start time, and without any /proc
    not even its namespace."""
    pid, space = inner & 0x3FFFFF, (ns ^ ns >> 10 ^ ns >> 20) & 0x3FF
    return frozenset(((pid, start & 0x7FFFFFFF, space), (pid, 0, space), (pid, 0, 0)))


def ancestor(path: str, reported: str) -> str:
    """The path of a container's own cgroup in some hierarchy, given its init's: the container's root may have moved the
    init to a cgroup below (in user and cgroup namespaces of its own). reported: the directory of the container's cgroup, as
    the runtime reports it, or "". "" where no part of `path` matches that."""
    while reported and path.strip("/"):
        if reported.endswith(path):
            return path
        path = path.rpartition("/")[0]
    return ""


def directory(init: int, controller: str, reported: str) -> str | None:
    """The directory of the container's own cgroup in a hierarchy ("": version 2); None where that is not mounted.
    reported: as for `ancestor`. Raises OSError."""
    there = cgroup.v1_path(init, controller) if controller else cgroup.v2_path(init)
    line = cgroup.member(init, controller)
    if there is None or line is None:
        return None
    own = ancestor(line, reported)
    return there.removesuffix(line[len(own) :]) if own else there


def pids(init: int, reported: str = "") -> list[int] | None:
    """Host pids of the container's processes; None where they are not known: the cgroup is not the container's alone,
    cannot be read, or has too many. reported: as for `ancestor`."""
    try:
        names = ("devices", "pids", "freezer", "")
        path = next(filter(None, (directory(init, name, reported) for name in names)), None)
        return None if path is None else below(path)
    except (OSError, ValueError):
        return None


def below(path: str, inode: int = 0) -> list[int] | None:
    """The same by the cgroup's directory. inode: the directory must have this inode number (0: any)."""
    found: list[int] = []
    try:
        if not cgroup_tree.is_container(path, inode):
            return None
        for some in cgroup_tree.processes(path, MOST_CGROUPS):
            found += [pid for pid in some if pid]
            if len(found) > MOST:
                return None
    except (OSError, ValueError, cgroup_tree.TooManyCgroups):
        return None
    return found


class Table:
    """A container's processes, looked at once, by the ways in which the shim may have written them into the account
    page. whole: all of them are in it; otherwise time ran out, or a process could not be looked at."""

    __slots__ = ("whole", "_by_owner")

    def __init__(self, pids: list[int] | None, seconds: float) -> None:
        """List the processes. pids: None where they are not known. seconds: of our processor time."""
        self.whole = pids is not None
        self._by_owner: dict[Owner, list[Process]] = {}
        end = time.thread_time() + seconds
        for pid in pids or ():
            try:
                process = look(pid)
            except (OSError, ValueError):
                process, self.whole = None, False
            if process is not None:
                for owner in process.owners:
                    self._by_owner.setdefault(owner, []).append(process)
            if time.thread_time() >= end:
                self.whole = False
                break

    def find(self, owner: Owner) -> list[Process]:
        return self._by_owner.get(owner, [])


def look(pid: int) -> Process | None:
    """The process; None where it has ended, or only its zombie is left. Raises OSError, ValueError."""
    try:
        fields = proc.stat(pid)
        if proc.has_ended(fields):
            return None
        return Process(pid, int(fields[19]), proc.inner_pid(pid), proc.pid_namespace(pid), int(fields[25]))
    except (FileNotFoundError, ProcessLookupError):
        return None
