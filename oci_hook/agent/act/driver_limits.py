"""Looks after the driver's memory limits: makes each again what its grant says, and clears those of ended containers.

A limit may be missing or different because somebody else changed it with nvidia-smi, or the driver lost it. Nothing is
done for grants whose boundary is the shim. A container that had to start without limits gets them when the driver works.
"""

from functools import partial

from oci_hook.agent import journal
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.boundary_server import Answer, BoundaryServer
from oci_hook.boundary import limit_records
from oci_hook.boundary.limit_records import FAILED, LimitRecord
from oci_hook.core.boundary import Boundary, expected
from oci_hook.core.grant import Grant
from oci_hook.core.terms import DRIVER
from oci_hook.ledger import events
from oci_hook.linux.cgroup_tree import MOUNTED
from oci_hook.linux.proc import seconds_since
from oci_hook.observe import boundary_now

CHECK_TICKS = 6  # of the agent, between two looks at a container's limits; one takes well below a millisecond
NEW_SECONDS = 35.0  # a container that has no record may still be given its limits by its start (apply/to_spec.py)
SWEEP_SECONDS = 5.0  # between two tries to clear limits


class DriverLimits:
    """`tick` regularly, `grants_changed` after each reading of the ledger. found: the boundary of each grant,
    and its record, by key. repaired: limits that were missing or different. failed: checks and clearings that failed."""

    def __init__(self, node: NodeState, server: BoundaryServer) -> None:
        self.found: dict[str, tuple[Boundary, LimitRecord | None]] = {}
        self.repaired = 0
        self.failed = 0
        self._node = node
        self._server = server
        self._checked: dict[str, float] = {}
        self._pinged = 0.0
        self._errors: dict[str, str] = {}  # by key, of those whose last check failed
        self._swept_at = -SWEEP_SECONDS
        self._sweep_error = ""

    def tick(self, now: float) -> None:
        node = self._node
        self._server.use(node.prefix, node.state_dir, node.inventory, now)
        self._server.check(now)
        self._look()
        self._sweep(now)
        if self._server.state == "ok":
            self._check(now)
        node.problem("boundary", self._problem())

    def grants_changed(self, ended: set[str], now: float) -> None:
        for key in ended:
            self._checked.pop(key, None)
            self._errors.pop(key, None)
        self._look()
        if ended:
            self._sweep(now)

    def cgroups(self) -> dict[str, dict[str, list[str]]]:
        """GPU -> key -> the cgroups to ask the driver for the memory of."""
        found: dict[str, dict[str, list[str]]] = {}
        inventory = self._node.inventory
        able = {gpu.uuid for gpu in inventory.gpus if not gpu.no_limits} if inventory else set()
        for key, grant in self._node.grants.items():
            record = self.found[key][1] if key in self.found else None
            paths = [path for path, _ in record.cgroups] if record and record.cgroups else own_cgroup(grant)
            for share in grant.shares:
                if paths and share.uuid in able:
                    found.setdefault(share.uuid, {})[key] = paths
        return found

    def _check(self, now: float) -> None:
        """Ask for the limits of the containers whose turn it is, and whether the server still answers."""
        due = now - CHECK_TICKS * self._node.options.interval
        for key, (_, record) in self.found.items():
            if self._wants_check(key, record) and self._checked.get(key, due) <= due:
                self._checked[key] = now
                self._server.ask({"do": "check", "grant": key}, partial(self._take_check, key), now)
        if self._server.idle and self._pinged <= due:
            self._pinged = now
            self._server.ask({"do": "list"}, lambda answer: None, now)

    def _wants_check(self, key: str, record: LimitRecord | None) -> bool:
        """True if the container has limits or could have: one that started without gets them when the driver can again."""
        grant, inventory = self._node.grants[key], self._node.inventory
        init = grant.life.init
        if init is None:
            return False
        if record is not None and record.state != FAILED:
            return True
        if inventory is None or expected(grant, inventory).name != DRIVER:
            return False
        return bool(record.cgroups) if record is not None else seconds_since(init[1]) > NEW_SECONDS

    def _look(self) -> None:
        node = self._node
        found = {key: boundary_now.look(node.state_dir, grant, node.inventory) for key, grant in node.grants.items()}
        if found != self.found:
            self.found, node.shown = found, False

    def _sweep(self, now: float) -> None:
        """Clear the limits that no grant has any more."""
        try:
            stray = set(limit_records.keys(self._node.state_dir)) - set(self._node.grants)
        except OSError:
            return
        if not stray:
            self._sweep_error = ""
        elif now - self._swept_at >= SWEEP_SECONDS and self._server.state == "ok":
            self._swept_at = now
            self._server.ask({"do": "sweep"}, self._take_sweep, now)

    def _take_sweep(self, answer: Answer) -> None:
        for key in answer.get("grants") or ():
            journal.write(f"the driver's memory limits of grant {str(key)[:80]}, which has ended, are cleared")
        if not answer.get("ok"):
            self.failed += 1
            self._sweep_error = str(answer.get("error"))[:200]

    def _take_check(self, key: str, answer: Answer) -> None:
        grant = self._node.grants.get(key)
        if grant is None:
            return
        if not answer.get("ok"):
            self.failed += 1
            if (
                grant.terms.boundary == DRIVER or self.found[key][0].name == DRIVER
            ):  # otherwise an event of its start told it
                self._errors[key] = str(answer.get("error"))[:200]
            return
        self._errors.pop(key, None)
        if answer.get("repaired"):
            self.repaired += 1
            self._look()
            who = grant.who.id
            said = "the driver's memory limits were missing or different, and are set again"
            journal.write(f"container {events.title(grant.who)}: {said}", journal.WARNING, container=who)
            name = events.full_name(grant.who)[:256]
            events.record(self._node.state_dir, "boundary-repaired", id=who[:256], name=name, key=key)

    def _problem(self) -> str:
        """Findings about limits that containers were promised."""
        server = self._server
        if server.state == "down" and server.error:
            return f"the server that sets the driver's memory limits: {server.error}"
        for key, why in self._errors.items():
            return f"the driver's limits of {self._id(key)} cannot be checked: {why}"
        for key, (now, _) in self.found.items():
            grant = self._node.grants[key]
            if grant.terms.boundary == DRIVER and now.name != DRIVER and now.why == boundary_now.UNRECORDED:
                return f"{self._id(key)} insists on the driver's limit and has none: {now.why}"
        return self._sweep_error and f"limits of ended containers cannot be cleared: {self._sweep_error}"

    def _id(self, key: str) -> str:
        return events.title(self._node.grants[key].who) if key in self._node.grants else key


def own_cgroup(grant: Grant) -> list[str]:
    """The container's cgroup where that is of version 2 and at the driver's place, else nothing."""
    path = grant.life.cgroup
    return [path] if path.startswith(f"{MOUNTED}/") and "/devices/" not in path and "/pids/" not in path else []
