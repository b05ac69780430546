"""Decides whether a grant's container still lives. A grant ends only on proof: all that keeps it alive has ended, and
no process has its policy page mounted.

The cheapest evidence is asked for first: the container's init and the grant's creator; the runtime's state file; the copy
of it that the launcher keeps; for a container whose init was never seen, the mounts of all processes (ledger/holders.py);
at last the cgroup. The runtime's file is not enough: another container may have the same id by now, or the runtime's
directory may not be visible here.
"""

import time

from oci_hook.core.grant import Grant
from oci_hook.ledger import life as lives
from oci_hook.linux import proc

INITIAL_SPACE = 0xEFFFFFFC  # the inode number of the first pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO)
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

QUICK, PATIENT = (
    0.1,
    2.0,
)  # seconds of processor time to look at processes: while a container starts, and when there is time
CREATION = 60  # seconds that a container of another pid namespace may need until it runs


class Judge:
    """One look at the node: call `current` for each grant. Raises OSError when /proc is not mounted.

    pages: the folder of the grants' pages. seconds: of processor time, to look for processes that hold a grant; tenants can
    make more processes than that is enough for. made: the key of the grant whose container is to be made anew. Its runtime's
    caller knows that no container of that id lives, so it has ended if the runtime and its cgroup say the same.
    new: the init of a container that is being made, 0 none. It may be in the cgroup planned for a former container of its id,
    and does not keep that one's grant alive.
    later: treat a grant as living if only a look at all processes could tell, and note its key in `wanted`. Call `look`
    then, which needs no lock, and `current` again. unsure: keys of grants that are kept only because not every process
    could be looked at.
    """

    __slots__ = (
        "wanted",
        "unsure",
        "_pages",
        "_made",
        "_new",
        "_seconds",
        "_later",
        "_boot",
        "_space",
        "_held",
        "_living",
    )

    def __init__(self, pages: str, seconds: float = PATIENT, later: bool = False, made: str = "", new: int = 0) -> None:
        self.wanted: set[str] = set()
        self.unsure: set[str] = set()
        self._pages = pages
        self._made = made
        self._new = new
        self._seconds = seconds
        self._later = later
        self._boot = ""
        self._space = 0
        self._held: tuple[dict[str, tuple[int, int]], int] | None = None
        self._living: set[str] = set()  # cgroups of containers that are known to live

    def all_of(self, grants: "Iterable[Grant]") -> list[Grant | None]:
        """`current` of each grant. Processes are looked at once, for the grants that cheaper evidence leaves open."""
        self._later = True
        grants = tuple(grants)
        found = [self.current(grant) for grant in grants]
        if self.wanted:
            self.look()
            found = [self.current(grant) for grant in grants]
        return found

    def look(self) -> None:
        """Look at all processes of the node."""
        from oci_hook.ledger.holders import holders  # most sweeps do not need it

        self.unsure.clear()
        self._held = holders(self._seconds, frozenset(self._living), self._pages)

    def current(self, grant: Grant) -> Grant | None:
        """The grant, with its Life brought up to date, or None if its container has ended. A grant that cannot
        be judged is kept, and does not stop the others from being judged."""
        if not self._boot:
            self._boot, self._space = proc.boot_id(), proc.pid_space()
        try:
            return self._current(grant)
        except (ValueError, ArithmeticError, LookupError, RecursionError):  # an unknown form of a /proc file
            self.unsure.add(grant.key)
            return grant

    def _current(self, grant: Grant) -> Grant | None:
        life = grant.life
        if life.boot_id != self._boot:
            return None
        if life.space not in (0, self._space):
            return self._of_another_space(grant)
        waits = life.deadline > 0
        made = not waits and proc.is_running(life.creator)
        if proc.is_running(life.init):
            if life.cgroup_inode:
                self._living.add(life.cgroup)
            return grant
        reported = lives.found(grant)
        if reported is not None and reported[0].init != life.init:
            new, named = reported
            if (proc.is_running(new.init) or lives.occupied(new)) and (
                named or _holds(new.init, grant.key, self._pages)
            ):
                if new.cgroup_inode:
                    self._living.add(new.cgroup)
                return grant.replace(life=new)
        if made:  # asked this late, since `runc run` in the foreground, the creator, lives as long as its container
            return grant
        if waits and lives.expected(life) and (life.creator is None or proc.is_running(life.creator)):
            return grant
        if life.cgroup_inode and lives.occupied(life, self._new):
            return grant
        if life.init is not None and life.cgroup_inode:
            return None  # the container's init has ended, and so have all processes of its cgroup
        kept = None if waits else lives.kept(grant, f"{self._pages}/{grant.key}")
        if kept is not None:
            last, has_cgroup = kept
            # If the runtime's file names another container of this id, the cgroup is that container's.
            if proc.is_running(last.init) or (reported is None and lives.occupied(last, self._new)):
                return grant.replace(life=last)
            if has_cgroup:
                return None
        if grant.key == self._made and not waits and reported is None and lives.gone(grant):
            return None
        pid, seen = self._holder(grant)
        if pid is not None:
            return grant if pid == life.init else grant.replace(life=life.replace(creator=None, init=pid, deadline=0))
        if not seen:
            self.unsure.add(grant.key)
            return grant
        # A process may have left the mount namespace, as user namespaces allow; it cannot leave the cgroup. If the
        # runtime's file names another container of this id, the cgroup is that container's.
        if reported is None and life.init is None and lives.occupied(life, self._new):
            return grant
        return None

    def _holder(self, grant: Grant) -> tuple[tuple[int, int] | None, bool]:
        """(a process that holds the grant, whether every process that may hold it was looked at)"""
        if self._later and (self._held is None or grant.key not in self.wanted):
            self.wanted.add(grant.key)  # the grant's creator may have ended after the last look
            return None, False
        if self._held is None:
            self.look()
        assert self._held is not None
        known = grant.life.init or (None if grant.life.deadline else grant.life.creator)
        return self._held[0].get(grant.key), self._held[1] < (known[1] if known else proc.ticks(grant.born))

    def _of_another_space(self, grant: Grant) -> Grant | None:
        """For a grant made in another pid namespace, whose pids are other processes here, or none. Only the first pid
        namespace shows all processes and their mounts."""
        young = time.monotonic() - grant.born / 1e9 < CREATION
        if young or self._space != INITIAL_SPACE:
            return grant
        pid, seen = self._holder(grant)
        if not seen:
            self.unsure.add(grant.key)
        return grant if pid is not None or not seen or lives.occupied(grant.life) else None


def _holds(init: "tuple[int, int] | None", key: str, pages: str = "") -> bool:
    from oci_hook.ledger.holders import holds

    try:
        return init is not None and holds(init[0], key, pages) and proc.is_running(init)
    except OSError:
        return False


def is_being_made(grant: Grant) -> bool:
    """Whether its container does not exist yet: its creator is at work, or it waits for its runtime."""
    if grant.life.init is not None:
        return False
    reported = lives.found(grant)
    return reported is None or not (reported[1] or _holds(reported[0].init, grant.key))
