"""Does a grant still count? It ends only on proof: nothing that it lives by is there, and no process holds its page.

Asked in this order, since the first answers cost least: the container's init, its creator; the runtime's state file;
for a container whose init nobody has seen yet, the mounts of all processes (ledger/holders.py); at last the cgroup.
The runtime is not believed alone: the id may be another container's by now, or its directory be out of sight.
"""

import time

from oci_hook.core.grant import Grant
from oci_hook.ledger import life as lives
from oci_hook.linux import proc

INITIAL_SPACE = 0xEFFFFFFC  # the inode number of the first pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO)
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

QUICK, PATIENT = 0.1, 2.0  # seconds to look at processes: for a container that starts, and for who can wait
CREATION = 60  # seconds that a container of another pid namespace may take to be made


class Judge:
    """One look at the node: `current` for each grant. Raises OSError when /proc is not mounted.

    seconds: how long to look for processes that hold a grant; tenants can make more of them than can be looked at.
    later: take a grant for which that look would be needed for living, and note it in `wanted`; after `look`, which
    needs no lock, it is judged by what was seen then. unsure: keys of grants that count only since not all was seen.
    """

    __slots__ = ("wanted", "unsure", "_seconds", "_later", "_boot", "_space", "_held", "_apart")

    def __init__(self, seconds: float = PATIENT, later: bool = False) -> None:
        self.wanted: set[str] = set()
        self.unsure: set[str] = set()
        self._seconds = seconds
        self._later = later
        self._boot = ""
        self._space = 0
        self._held: tuple[dict[str, tuple[int, int]], int] | None = None
        self._apart: set[str] = set()  # cgroups of containers that are known to live

    def all_of(self, grants: "Iterable[Grant]") -> list[Grant | None]:
        """`current` of each. All are judged by what costs little, before processes are looked at for the rest."""
        self._later = True
        grants = tuple(grants)
        found = [self.current(grant) for grant in grants]
        if self.wanted:
            self.look()
            found = [self.current(grant) for grant in grants]
        return found

    def look(self) -> None:
        """Look at all processes of the node."""
        from oci_hook.ledger.holders import holders  # most sweeps need not ask

        self.unsure.clear()
        self._held = holders(self._seconds, tuple(self._apart))

    def current(self, grant: Grant) -> Grant | None:
        """The grant, with what it lives by brought up to date, or None if it counts no more. One that cannot be judged
        counts, and stops nobody else."""
        if not self._boot:
            self._boot, self._space = proc.boot_id(), proc.pid_space()
        try:
            return self._current(grant)
        except (ValueError, ArithmeticError, LookupError, RecursionError):  # a file of /proc that reads like no other
            self.unsure.add(grant.key)
            return grant

    def _current(self, grant: Grant) -> Grant | None:
        life = grant.life
        if life.boot_id != self._boot:
            return None
        if life.space not in (0, self._space):
            return self._of_another_space(grant)
        if proc.is_running(life.init) or proc.is_running(life.creator):
            if life.init is not None and life.cgroup_inode:
                self._apart.add(life.cgroup)
            return grant
        told = lives.found(grant)
        if told is not None and told[0].init != life.init:
            new, named = told
            if (proc.is_running(new.init) or lives.occupied(new)) and (named or _holds(new.init, grant.key)):
                if new.cgroup_inode:
                    self._apart.add(new.cgroup)
                return grant.replace(life=new)
        if lives.expected(life):
            return grant
        if life.cgroup_inode and lives.occupied(life):
            return grant
        if life.init is not None and life.cgroup_inode:
            return None  # its init was seen and has ended, and so has all that was in its cgroup
        pid, seen = self._holder(grant)
        if pid is not None:
            return grant if pid == life.init else grant.replace(life=life.replace(creator=None, init=pid, deadline=0))
        if not seen:
            self.unsure.add(grant.key)
            return grant
        # A process may have left the mounts behind, as user namespaces allow it to; the cgroup it cannot leave. Where
        # the runtime says that the id is another container's now, the cgroup is as well.
        if told is None and life.init is None and lives.occupied(life):
            return grant
        return None

    def _holder(self, grant: Grant) -> tuple[tuple[int, int] | None, bool]:
        """(a process that holds the grant, whether every process was looked at that may)"""
        if self._later and (self._held is None or grant.key not in self.wanted):
            self.wanted.add(grant.key)  # what was seen before says nothing of one that has lost its creator since
            return None, False
        if self._held is None:
            self.look()
        assert self._held is not None
        known = grant.life.init or grant.life.creator
        return self._held[0].get(grant.key), self._held[1] < (known[1] if known else proc.ticks(grant.born))

    def _of_another_space(self, grant: Grant) -> Grant | None:
        """Its pids mean other processes here, or none. The first pid namespace shows all processes and their mounts."""
        young = time.monotonic() - grant.born / 1e9 < CREATION
        if young or self._space != INITIAL_SPACE:
            return grant
        pid, seen = self._holder(grant)
        if not seen:
            self.unsure.add(grant.key)
        return grant if pid is not None or not seen or lives.occupied(grant.life) else None


def _holds(init: "tuple[int, int] | None", key: str) -> bool:
    from oci_hook.ledger.holders import holds

    try:
        return init is not None and holds(init[0], key) and proc.is_running(init)
    except OSError:
        return False


def is_being_made(grant: Grant) -> bool:
    """Whether its container does not exist yet: its creator is at work, or it waits for its runtime."""
    if grant.life.init is not None:
        return False
    told = lives.found(grant)
    return told is None or not (told[1] or _holds(told[0].init, grant.key))
