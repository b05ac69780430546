"""A driver that comes late, changes, and is released."""

import os

import pytest

from oci_hook.agent.act import driver_changes
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.node_state import NodeState
from oci_hook.core.inventory import Inventory
from oci_hook.errors import refuse
from testbed.installs import Install

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.mark.parametrize("fails", [False, True])
def test_what_discovery_does_not_resolve_is_discovered_seldom(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Such as a GPU in MIG mode without an instance, beside others. A new difference is discovered at once."""
    asked: list[int] = []
    watch = driver_changes.DriverChanges(node)

    def discover(root: str) -> Inventory:
        asked.append(now)
        if fails:
            raise refuse("GH-302", "no")
        return prefix.inventory

    monkeypatch.setattr(driver_changes, "discover", discover)
    seen = {gpu.uuid: GpuSample(0, 0, -1, ()) for gpu in prefix.inventory.gpus}
    seen["GPU-split"] = GpuSample(0, 0, -1, ())
    for now in range(0, 800, 5):
        if now == 600:
            seen["GPU-new"] = GpuSample(0, 0, -1, ())
        watch.look(float(now))
        if watch._thread:
            watch._thread.join()
        watch.compare(dict(seen))
    # Each is taken at the look after it.
    assert asked == [10, 45, 110, 235, 480, 610, 645, 710]


class Machine:
    """A real driver's signs, as DriverChanges sees them; nothing of it is there."""

    def __init__(self, node: NodeState, inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files, self.module, self.asked = "old", "old", 0
        self.inventory = inventory
        monkeypatch.setattr(driver_changes.cache, "load", self._load)
        monkeypatch.setattr(driver_changes, "is_loaded", lambda root: self.module == self.files != "")
        monkeypatch.setattr(driver_changes, "discover", self._discover)
        monkeypatch.setattr(driver_changes, "save_inventory", lambda settings, found: None)
        self.watch = driver_changes.DriverChanges(node)

    def _load(self, settings: object) -> Inventory:
        if self.files == self.module == "old":
            return self.inventory
        raise refuse("GH-301", "changed")

    def _discover(self, root: str) -> Inventory:
        self.asked += 1
        raise refuse("GH-302", "no")

    def look(self, now: float) -> None:
        self.watch.look(now)
        if self.watch._thread:
            self.watch._thread.join()


def test_a_driver_that_comes_late_is_discovered_at_once(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU Operator lets our pod come back before its driver pod has loaded the module: backing off, we would miss it by
    minutes."""
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.files, machine.module = "new", ""
    for now in range(0, 600, 5):
        machine.look(float(now))
    before, machine.module = machine.asked, "new"
    machine.look(600.0)
    assert machine.asked == before + 1
    machine.look(605.0)
    assert machine.asked == before + 1, "while it does not answer, seldom"


@pytest.mark.parametrize(
    "steps", ["unload remove install load", "remove unload load install", "remove install unload load"]
)
def test_what_was_released_is_asked_nothing_before_it_is_another_one(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.look(0.0)
    assert node.inventory is not None
    machine.watch.release()
    changes = {
        "unload": ("module", ""),
        "load": ("module", "new"),
        "remove": ("files", ""),
        "install": ("files", "new"),
    }
    for now, step in enumerate(steps.split(), 1):
        machine.look(float(now))
        assert machine.watch.released and node.inventory is None and "driver" in node.problems and not machine.asked
        setattr(machine, *changes[step])
    machine.look(10.0)
    assert not machine.watch.released and machine.asked == 1 and "driver" not in node.problems


def test_what_was_released_may_come_back_as_it_was(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.watch.release()
    for now, module in enumerate(("old", "", "", "old")):
        machine.module = module
        machine.look(float(now))
        assert machine.watch.released == (now < 3)
    assert node.inventory is prefix.inventory


def test_what_was_released_and_stays_is_taken_when_told(
    prefix: Install, node: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node, prefix.inventory, monkeypatch)
    machine.watch.release()
    for now in range(0, 3600, 5):
        machine.look(float(now))
    assert machine.watch.released and node.inventory is None
    machine.watch.take()
    machine.look(3600.0)
    assert node.inventory is prefix.inventory and not machine.asked and "driver" not in node.problems
