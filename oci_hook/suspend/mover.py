"""Suspends a container that runs, resumes it, and ends what a crash has cut off.

The ledger has each step before the driver is asked for it (core/suspend.py). A lock beside the grant's page, which the
helper that asks the driver holds as well, says that somebody is at it: a grant that is moving and whose lock is free was
left so by a crash. Whoever finds that brings its memory back to its GPUs, which is the end of a resume and undoes a suspend.
"""

import contextlib
import fcntl
import os
import signal
import time

from oci_hook.core import suspend as rules
from oci_hook.core.grant import Grant
from oci_hook.core.layout import LEDGER_DIR
from oci_hook.core.policy_page import HOLD_MOST
from oci_hook.core.units import MIB
from oci_hook.core.value import Value
from oci_hook.discovery.checkpoint import CHECKPOINTED
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import admit, events, store
from oci_hook.ledger import inventory as node_inventory
from oci_hook.linux import memory_room, proc
from oci_hook.linux.lock import lock_file
from oci_hook.observe import inside
from oci_hook.observe.stage import paused
from oci_hook.suspend import gpu_processes
from oci_hook.suspend.gpu_processes import Found
from oci_hook.suspend.hold import Hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.config.settings import Settings
    from oci_hook.core.inventory import Inventory

ROUNDS = 10  # of looks for processes that were started meanwhile


class Moved(Value):
    """grant: as it is now. changed: it was not so before. delivered: its pages say so to the container. seconds: from the
    first step to the last."""

    grant: Grant
    changed: bool
    delivered: bool = True
    seconds: float = 0.0


def suspend(settings: "Settings", key: str, lent_to: str = "") -> Moved:
    """Move all of a container's GPU memory to the host's, or raise; then it runs on as before. lent_to: as in Grant; without it,
    one that is away for another stays away, too, until somebody resumes it.

    Raises ApplyError GH-410, GH-411 (nothing to suspend, or under way), GH-415 (it cannot be moved), GH-416 (the node has too
    little memory), GH-417 (the driver cannot, or it is paused), NodeError GH-30x.
    """
    inventory, began = node_inventory.load(settings), time.monotonic()
    with Hold(settings, key) as hold:
        grant = hold.grant
        if grant.suspended and grant.lent_to and not lent_to:  # it is a person's from now on
            _, grant, delivered = admit.alter(settings, key, lambda g, _: g.replace(lent_to=""))
            events.moved(settings.state_dir, "suspended", grant, host_mib=grant.host_mib, seconds=0.0)
            return Moved(grant, True, delivered)
        if grant.suspended:
            return Moved(grant, False)
        rules.check_suspendable(grant)
        _check_runs(grant, "suspended")
        found = gpu_processes.find(grant, inventory, (hold.fd,))
        gpu_processes.check_movable(grant, inventory, found)
        _check_cgroup(grant, found.used_mib)
        gpu_processes.note(hold.fd, found)

        def begun(grant: Grant, others: tuple[Grant, ...]) -> Grant:
            free, total = (size // MIB for size in memory_room.of_node())
            return rules.begun(grant, others, found.used_mib, free, total, int(time.time()), lent_to)

        # If one of several cannot be moved, those that were come back.
        several = len(found.processes) > 1
        with _RoomKept(settings, grant, found.used_mib) if several else contextlib.nullcontext(()) as kept:
            _, grant, delivered = admit.alter(settings, key, begun)
            try:
                if not delivered:
                    raise _refusal(grant, "suspended", "it blocks its policy page by a file lease")
                _send(settings, grant, inventory, found, (hold.fd, *kept))
                _, grant, delivered = admit.alter(settings, key, lambda g, _: rules.arrived(g, int(time.time())))
            except BaseException as e:
                _bring_back(settings, grant, inventory, hold.fd, kept)
                events.moved(settings.state_dir, "not-suspended", grant, why=str(e)[:300], **_for(lent_to))
                raise
    seconds = round(time.monotonic() - began, 3)
    events.moved(settings.state_dir, "suspended", grant, host_mib=grant.host_mib, seconds=seconds, **_for(lent_to))
    return Moved(grant, True, delivered, seconds)


def resume(settings: "Settings", key: str, if_so: "Callable[[Grant], object]" = lambda grant: True) -> Moved:
    """Move a container's memory back to its GPUs, or raise; then it stays suspended. Ends also what a crash has cut off.
    if_so: false for a grant whose memory is to stay where it is; asked once nobody else can move it.

    Raises NoRoomError GH-201 (its GPUs were granted to others meanwhile), GH-202, ApplyError GH-410, GH-411 (under way),
    GH-415 (its memory does not come back), GH-417 (the driver cannot, or it is paused), NodeError GH-30x.
    """
    inventory, began = node_inventory.load(settings), time.monotonic()
    with Hold(settings, key) as hold:
        before = grant = hold.grant
        if not grant.off_gpu or not if_so(grant):
            return Moved(grant, False)
        _check_runs(grant, "resumed")  # before others are held

        def returning(grant: Grant, others: tuple[Grant, ...]) -> Grant:
            return rules.returning(grant, others, inventory, settings.rules, int(time.time()))

        with _RoomKept(settings, grant, grant.host_mib) as kept:
            if grant.suspended:
                _, grant, _ = admit.alter(settings, key, returning)
            said = _come_back(grant, inventory, (hold.fd, *kept))
        if said.get("done") is not True:
            why = _why(said)
            # What was cut off on its way to the host may have no room any more on a GPU whose memory is lent.
            if (before.suspended or before.lent_to) and said.get("half") is False:
                since = before.suspended or int(time.time())
                try:
                    admit.alter(settings, key, lambda g, _: rules.arrived(g, since))
                    why += "; it stays suspended" + (
                        ", and an agent that runs brings it back once there is room" if before.lent_to else ""
                    )
                except GhError as e:  # as of a container that ended with its lost process
                    why += f"; {e.problems[0].message}"
            else:
                why += "; it is half moved: run this again, or leave it to the agent"
            events.moved(settings.state_dir, "not-resumed", grant, why=why)
            raise _refusal(grant, "resumed", why, _code(said))
        _, grant, delivered = admit.alter(settings, key, lambda g, _: rules.returned(g))
    seconds = round(time.monotonic() - began, 3)
    more = {} if before.suspended else {"cut_off": True}
    events.moved(settings.state_dir, "resumed", grant, seconds=seconds, **more)
    return Moved(grant, True, delivered, seconds)


class _RoomKept:
    """`with`: the room that is there for what comes back stays there until it has come (discovery/checkpoint.py): nobody else comes
    back to these GPUs, and where memory is lent, the containers beside this one take no more of it. If this process is killed,
    they go on by themselves after the time that the move may take. What it gives are the locks, for the helper to keep as well.
    Raises NodeError GH-303."""

    def __init__(self, settings: "Settings", grant: Grant, mib: int) -> None:
        self._state, self._grant, self._mib = settings.state_dir, grant, mib
        self._locks: list[int] = []
        self._held = False

    def __enter__(self) -> tuple[int, ...]:
        try:
            # Whoever is held has one time on its page: no two hold the same one.
            shares = [share for g in self._beside(store.snapshot(self._state)) for share in g.shares]
            for uuid in sorted(
                {share.uuid for share in (*self._grant.shares, *shares)}
            ):  # one order: none wait for each other
                path = f"{self._state}/{LEDGER_DIR}/{uuid.replace('/', '_')}.return"
                advice = "another container's memory comes back to this GPU; wait for it"
                self._locks.append(lock_file(path, fcntl.LOCK_EX, seconds=gpu_processes.MOVE_SECONDS, advice=advice))
            self._hold(time.monotonic_ns() + min(HOLD_MOST, int(1e9 * gpu_processes.seconds_for(self._mib))))
        except BaseException:
            self._unlock()
            raise
        return tuple(self._locks)

    def __exit__(self, *_: object) -> None:
        try:
            self._hold(0)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def _hold(self, until: int) -> None:
        with store.open_ledger(self._state) as ledger:
            keys = [g.key for g in self._beside(ledger.grants)]
            ledger.hold(keys, until)
            self._held = bool(keys)  # then all are let go at the end, though nothing may be lent any more

    def _beside(self, grants: tuple[Grant, ...]) -> list[Grant]:
        """All on these GPUs where some of their memory is lent, this one as well: who starts meanwhile has its time from there
        (ledger/store.py). Where none is, the ledger has room for all."""
        uuids = {share.uuid for share in self._grant.shares}
        beside = [g for g in grants if uuids & {share.uuid for share in g.shares}]
        shares = [share for g in beside for share in g.shares if share.uuid in uuids]
        return beside if self._held or any(share.booked_mib < share.memory_mib for share in shares) else []


def _check_runs(grant: Grant, what: str) -> None:
    """Raises ApplyError GH-417."""
    if paused(grant):
        why = "it is paused, and the driver needs its processes to run; unpause it first, as by `docker unpause`"
        raise _refusal(grant, what, why, "GH-417")


def _check_cgroup(grant: Grant, need_mib: int) -> None:
    """The driver moves the memory into the container's own processes. Raises ApplyError GH-415 where the container itself leaves
    no room for it, GH-416 where others do, in a cgroup above its own."""
    assert grant.life.init is not None
    init, reported = grant.life.init[0], grant.life.cgroup
    try:
        own = inside.directory(init, "memory", reported), inside.directory(init, "", reported)
        now, alone = memory_room.of_cgroup(init, own)
    except (OSError, ValueError):
        raise _refusal(grant, "suspended", "its cgroup's memory limit cannot be read") from None
    for room, code, whose, then in (
        (alone, "GH-415", "its cgroup's limit", "give it a larger limit"),
        (now, "GH-416", "the limit of a cgroup above its own, which others fill", "wait for them"),
    ):
        if room is not None and need_mib > room // MIB:
            raise refuse(
                code,
                f"container {events.title(grant.who)} is not suspended: it has {need_mib} MiB on its GPUs, and may take"
                f" {room // MIB} MiB of host memory until {whose}; {then}",
            )


def _send(settings: "Settings", grant: Grant, inventory: "Inventory", found: Found, locks: tuple[int, ...]) -> None:
    """Move the memory of all processes, and of those that they start meanwhile; the ledger and the lock's file, the first one, say how
    much that is. Raises ApplyError GH-410, GH-415, GH-417."""
    for _ in range(ROUNDS):
        for what in ("lock", "suspend"):
            seconds, needs = gpu_processes.seconds_for(found.used_mib), gpu_processes.needs(grant, found.used_mib)
            said = gpu_processes.call(inventory, what, found.processes, seconds, locks, needs)
            if said.get("done") is not True:
                raise _refusal(grant, "suspended", _why(said), _code(said))
            gpu_processes.check_movable(
                grant, inventory, found
            )  # once more: no call is under way in those that are locked
        found = gpu_processes.together(found, gpu_processes.find(grant, inventory, locks))
        gpu_processes.note(locks[0], found)
        _book(settings, grant.key, found.used_mib)
        if found.gone:
            return
    why = "it starts new processes on its GPUs all the time"
    if all(state == CHECKPOINTED for state in found.states.values()):
        why = f"the driver still sees {found.left_mib} MiB of it on its GPUs"
    raise _refusal(grant, "suspended", why)


def _book(settings: "Settings", key: str, mib: int) -> None:
    admit.alter(settings, key, lambda g, _: g.replace(host_mib=max(1, mib)))


def _come_back(grant: Grant, inventory: "Inventory", locks: tuple[int, ...]) -> "dict[str, object]":
    """The helper's answer. locks: the container's is the first. Raises ApplyError GH-410."""
    try:
        there = gpu_processes.listed(grant)
    except GhError as e:
        if e.problems[0].code == "GH-410":
            raise
        return {"error": str(e)}
    # What has ended needs no room. The container's page is not asked: one without room enough would be lost.
    needs = gpu_processes.needs(grant, max(0, grant.host_mib - gpu_processes.ended_mib(locks[0])))
    said = gpu_processes.call(inventory, "resume", there, gpu_processes.seconds_for(grant.host_mib), locks, needs)
    if said.get("lost"):  # it would wait for ever in its next call of CUDA
        for pid, start in there:
            if pid == said["failed"] and proc.is_running((pid, start)):
                os.kill(pid, signal.SIGKILL)
        said["why"] = f"{said['why']}: the driver cannot bring it back any more, and it is killed"
    return said


def _bring_back(settings: "Settings", grant: Grant, inventory: "Inventory", lock: int, kept: tuple[int, ...]) -> None:
    """After a suspend that failed: what cannot be undone now stays noted as moving, and a later look tries again."""
    try:
        grant = admit.find(store.snapshot(settings.state_dir), grant.key)  # with what _send found later
        with contextlib.nullcontext(kept) if kept else _RoomKept(settings, grant, grant.host_mib) as kept:
            if _come_back(grant, inventory, (lock, *kept)).get("done") is True:
                admit.alter(settings, grant.key, lambda g, _: rules.returned(g))
    except (GhError, OSError):
        pass  # the first failure is the one to report


def _why(said: "dict[str, object]") -> str:
    if "failed" in said:
        return f"process {said['failed']}: {said.get('why')}"
    if "full" in said:
        return f"{said['full']}"
    return str(said.get("error") or "the driver gave no answer")


def _code(said: "dict[str, object]") -> str:
    """GH-415: the driver does not move one of the processes. GH-201: there is no room. GH-417: the driver does not answer."""
    return "GH-415" if "failed" in said else "GH-201" if "full" in said else "GH-417"


def _for(lent_to: str) -> "dict[str, str]":
    return {"lent_to": lent_to} if lent_to else {}


def _refusal(grant: Grant, what: str, why: str, code: str = "GH-415") -> GhError:
    return refuse(code, f"container {events.title(grant.who)} is not {what}: {why[:200]}")
