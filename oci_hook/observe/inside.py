"""The processes of a container, as the host sees them: by its cgroup, found through its init."""

import os
import time

from oci_hook.linux import cgroup
from oci_hook.linux.proc import read_file

MOST = 4096  # processes; of a container with more, nothing is said
DEEP = 16  # cgroups within cgroups
MOST_CGROUPS = 1024  # of one container


class Process:
    """One process. start: its start time. inner, ns: its pid in its own pid namespace, and that one's inode number.
    stack: the bottom of its stack, which differs after exec; 0 or 1: the kernel does not say."""

    __slots__ = ("pid", "start", "inner", "ns", "stack")

    def __init__(self, pid: int, start: int, inner: int, ns: int, stack: int) -> None:
        self.pid = pid
        self.start = start
        self.inner = inner
        self.ns = ns
        self.stack = stack

    @property
    def owners(self) -> frozenset[tuple[int, int, int]]:
        return owners(self.inner, self.start, self.ns)


def owners(inner: int, start: int, ns: int) -> frozenset[tuple[int, int, int]]:
    """How the shim may have written a process into the account page (gh_identify in shim/alive.c): without a /proc of
    its own namespace it does not know its start, nor, without any, its namespace."""
    pid, space = inner & 0x3FFFFF, (ns ^ ns >> 10 ^ ns >> 20) & 0x3FF
    return frozenset(((pid, start & 0x7FFFFFFF, space), (pid, 0, space), (pid, 0, 0)))


def ancestor(path: str, told: str) -> str:
    """A container's own cgroup, given its init's in some hierarchy, where the init may have been moved to one below
    (by the container's root, in user and cgroup namespaces of its own). told: the container's cgroup's directory, as
    the runtime tells it, or "". "" where this one is not of that name or below."""
    while told and path.strip("/"):
        if told.endswith(path):
            return path
        path = path.rpartition("/")[0]
    return ""


def directory(init: int, controller: str, told: str) -> str | None:
    """Where the container's own cgroup is in a hierarchy ("": version 2); None: that is not mounted. Raises OSError."""
    there = cgroup.v1_path(init, controller) if controller else cgroup.v2_path(init)
    line = cgroup.member(init, controller)
    if there is None or line is None:
        return None
    own = ancestor(line, told)
    return there.removesuffix(line[len(own) :]) if own else there


def pids(init: int, told: str = "") -> list[int] | None:
    """Host pids of the container's living processes; None: not to be told, its cgroup is not its alone or it has too
    many of them. told: as for `ancestor`."""
    try:
        names = ("devices", "pids", "freezer", "")
        path = next(filter(None, (directory(init, name, told) for name in names)), None)
        return None if path is None else below(path)
    except (OSError, ValueError):
        return None


def below(path: str, inode: int = 0) -> list[int] | None:
    """The same by the cgroup's directory. inode: it must be this one (0: any)."""
    try:
        # At the top of a hierarchy are the host's processes.
        if not os.path.exists(f"{path}/../cgroup.procs") or inode not in (0, os.stat(path).st_ino):
            return None
        found: list[int] = []
        return found if _gather(path, found, DEEP) else None
    except (OSError, ValueError):
        return None


def _gather(path: str, found: list[int], deep: int) -> bool:
    """Whether that is all of them: a tenant may have made any number of cgroups below its own."""
    left = [(path, deep)]
    for seen, (folder, levels) in enumerate(left):
        found += [int(word) for word in read_file(f"{folder}/cgroup.procs", 1 << 20).split() if word != b"0"]
        if len(found) > MOST or seen >= MOST_CGROUPS or not levels:
            return False
        with os.scandir(folder) as entries:
            left += [(entry.path, levels - 1) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return True


class Table:
    """A container's processes by how the shim may have written them into the account page, looked at once. whole: there
    are no others; else it took longer than it may, or one of them could not be looked at."""

    __slots__ = ("whole", "_by_owner")

    def __init__(self, pids: list[int] | None, seconds: float) -> None:
        """pids: None, they are not to be told. seconds: of our processor time."""
        self.whole = pids is not None
        self._by_owner: dict[tuple[int, int, int], list[Process]] = {}
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

    def find(self, owner: tuple[int, int, int]) -> list[Process]:
        return self._by_owner.get(owner, [])


def look(pid: int) -> Process | None:
    """None: it has ended, or only its zombie is there. Raises OSError, ValueError."""
    try:
        data = read_file(f"/proc/{pid}/stat", 1024)
        fields = data[data.rindex(b")") + 2 :].split()
        # A main thread that ended is a zombie beside its living siblings: field 20 counts the threads.
        if fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1):
            return None
        status = read_file(f"/proc/{pid}/status")
        inner = next((line.split()[-1] for line in status.splitlines() if line.startswith(b"NSpid:")), b"%d" % pid)
        return Process(pid, int(fields[19]), int(inner), os.stat(f"/proc/{pid}/ns/pid").st_ino, int(fields[25]))
    except (FileNotFoundError, ProcessLookupError):
        return None
