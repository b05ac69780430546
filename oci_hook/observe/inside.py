"""The processes of a container, as the host sees them: found by the container's cgroup, and that through its init."""

import os
import time

from oci_hook.linux import cgroup, cgroup_tree, proc

MOST = 4096  # processes of one container; those of a larger one count as not known
MOST_CGROUPS = 1024  # below one container's
TICK = 10**9 // os.sysconf("SC_CLK_TCK")  # nanoseconds

Owner = tuple[int, int]  # a process in the account page: pid, start time


def owners(inner: int, start: int, ahead: int = 0) -> frozenset[Owner]:
    """The ways in which the shim may have written a process into the account page (gh_identify in
    shim/process/identity.c): without a /proc of its own pid namespace it does not know its start time. inner: its pid in
    its own pid namespace. ahead: proc.boottime_ahead of it; the kernel rounds the sum, not its parts."""
    starts = range(start + ahead // TICK, start - -ahead // TICK + 1)
    return frozenset(((inner, 0), *((inner, seen & 0xFFFFFFFF) for seen in starts)))


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
        path = own(init, reported)
        if path is None or not cgroup_tree.is_container(path, 0):
            return None
        found, more = below(path)
    except (OSError, ValueError):
        return None
    return None if more else found


def own(init: int, reported: str = "") -> str | None:
    """The directory of the container's own cgroup, in whichever hierarchy is mounted. reported: as for `ancestor`. Raises OSError."""
    names = ("devices", "pids", "freezer", "")
    return next(filter(None, (directory(init, name, reported) for name in names)), None)


def below(path: str) -> tuple[list[int], bool]:
    """(processes of a container by its cgroup's directory, True if there may be more than these). Raises OSError, ValueError."""
    found: list[int] = []
    try:
        for some in cgroup_tree.processes(path, MOST_CGROUPS):
            found += [pid for pid in some if pid]
            if len(found) > MOST:
                return found[:MOST], True
    except cgroup_tree.TooManyCgroups:
        return found, True
    return found, False


class Table:
    """A container's processes, looked at once, by the ways in which the shim may have written them into the account
    page. whole: all of them are in it; otherwise time ran out, or a process could not be looked at."""

    __slots__ = ("whole", "_by_owner")

    def __init__(self, pids: list[int] | None, seconds: float) -> None:
        """List the processes. pids: None where they are not known. seconds: of our processor time."""
        self.whole = pids is not None
        self._by_owner: dict[Owner, tuple[int, int]] = {}
        end = time.thread_time() + seconds
        for pid in pids or ():
            try:
                fields = proc.stat(pid)
                if not proc.has_ended(fields):
                    start = int(fields[19])
                    ways = owners(proc.inner_pid(pid), start, proc.boottime_ahead(pid))
                    self._by_owner.update(dict.fromkeys(ways, (pid, start)))
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has ended
            except (OSError, ValueError):
                self.whole = False
            if time.thread_time() >= end:
                self.whole = False
                break

    def find(self, owner: Owner) -> tuple[int, int] | None:
        """(pid, start time) on the host; None: there is none."""
        return self._by_owner.get(owner)
