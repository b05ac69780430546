"""Follows the driver: keeps the inventory current when driver or GPUs change, repairs missing device nodes, and keeps off
the driver while it is replaced."""

import threading

from oci_hook.agent import journal
from oci_hook.agent.act import device_nodes
from oci_hook.agent.judge.gpu_sample import GpuSample
from oci_hook.agent.node_state import NodeState
from oci_hook.agent.watch.sampler import lost
from oci_hook.core.backoff import Backoff
from oci_hook.core.inventory import Inventory
from oci_hook.discovery.discover import discover, is_loaded
from oci_hook.discovery.save import save_inventory
from oci_hook.errors import GhError, refuse
from oci_hook.ledger import events
from oci_hook.ledger import inventory as cache

DISCOVER_SECONDS = 30.0  # from a discovery to the next for the same reason; doubled with each, up to
DISCOVER_MAX = 600.0
RELEASED = "told to keep off the driver until it is replaced: nothing is found by NVML meanwhile"


class DriverChanges:
    """`look` loads the cached inventory, or has it discovered anew; `compare` with what NVML sees. Discovery runs in a
    thread, since a driver may take a minute to answer, or never answer.

    released: the agent is to keep off the driver, so that its kernel module can be unloaded, until another one is there
    or `take` is called."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._thread: threading.Thread | None = None
        self._found: Inventory | GhError | None = None
        self._retry_at = 0.0
        self._backoff = Backoff(DISCOVER_SECONDS, DISCOVER_MAX)
        self._wanted = False
        self._changed: frozenset[str] = frozenset()  # GPUs that only one of NVML and the inventory has
        self._known: frozenset[str] = frozenset()  # as seen twice; discovery need not end it: a GPU without MIG devices
        self.released = False
        self._gone = False  # since it was released, the driver has been away or became another one
        self._loaded = False  # while there is no inventory, whether there was a driver at the last look

    @property
    def asks(self) -> bool:
        """True if a program that asks the driver may run."""
        return self._thread is not None

    def release(self) -> None:
        if not self.released:
            journal.write("keeps off the driver from now on", journal.NOTICE)
            self.released, self._gone = True, False

    def take(self) -> None:
        """Use the driver again."""
        if self.released:
            journal.write("uses the driver again", journal.NOTICE)
            self.released = False
            self._discover_at_once()
            self._node.problem("driver", "")

    def _is_replaced(self) -> bool:
        """True if there is a driver again that is not the one that was released."""
        try:
            cache.load(self._node.settings)
        except GhError:
            self._gone = True
        return self._gone and is_loaded(self._node.settings.driver_root)

    def look(self, now: float) -> str:
        """Bring `node.inventory` up to date. Returns why there is no inventory, or ""."""
        node, why = self._node, ""
        self._take_discovered(now)
        if self.released and self._is_replaced():
            self.take()
        if self.released:
            node.inventory, node.gpus = None, {}
            node.problem("inventory", "")
            node.problem("driver", RELEASED)
            return RELEASED
        try:
            node.inventory = cache.load(node.settings)
            node.problem("inventory", "")
        except GhError as e:
            why = str(e)
            if "inventory" not in node.problems:
                node.problem("inventory", why)
            loaded = is_loaded(node.settings.driver_root)
            if node.inventory is not None or (loaded and not self._loaded):
                self._discover_at_once()
            node.inventory, node.gpus, self._loaded = None, {}, loaded
            self._wanted = now >= self._retry_at
        if self._wanted and now >= self._retry_at and self._thread is None:
            self._wanted = False
            self._thread = threading.Thread(target=self._discover, daemon=True)
            self._thread.start()
        return why

    def _take_discovered(self, now: float) -> None:
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        found, self._found = self._found, None
        self._retry_at = now + self._backoff.failed()
        try:
            if isinstance(found, GhError):
                raise found
            if found is not None:
                save_inventory(self._node.settings, found)
                journal.write(f"GPUs found: {len(found.gpus)}, driver {found.driver_version}", journal.NOTICE)
        except GhError as e:
            self._node.problem("inventory", str(e))

    def _discover_at_once(self) -> None:
        self._retry_at = 0.0
        self._backoff.worked()

    def _discover(self) -> None:
        try:
            self._found = discover(self._node.settings.driver_root)
        except GhError as e:
            self._found = e
        except Exception as e:  # reported, and tried again later
            self._found = refuse("GH-302", f"looking for GPUs: {type(e).__name__}: {e}")

    def compare(self, sample: dict[str, GpuSample]) -> None:
        """Find GPUs that fell off the bus or came back, and add the lost ones to the sample. When NVML sees the same
        change twice in a row, the inventory is discovered anew; while it stays, seldom."""
        gpus = self._node.inventory.gpus if self._node.inventory else ()
        known = {gpu.uuid for gpu in gpus}
        expected = known | {gpu.parent for gpu in gpus if gpu.parent}  # NVML lists a split GPU besides its MIG devices
        for uuid in expected - set(sample):  # NVML may have no handle of a lost GPU any more
            sample[uuid] = GpuSample(0, 0, -1, (), "NVML does not find it: GPU is lost")
        lost_gpus = {uuid for uuid, gpu in sample.items() if lost(gpu.error)}
        new = {uuid for uuid, gpu in sample.items() if not gpu.error} - expected
        changed = frozenset((lost_gpus & expected) | new)
        if changed == self._changed and self._thread is None:
            self._wanted = bool(changed)
            if changed != self._known:
                self._known = changed
                self._discover_at_once()
        self._changed = changed
        containers: dict[str, int] = {}
        for grant in self._node.grants.values():
            for share in grant.shares:
                containers[share.uuid] = containers.get(share.uuid, 0) + 1
        gone = sorted((lost_gpus & expected) | (set(containers) - known))
        words = [f"{uuid} is lost (containers on it: {containers.get(uuid, 0)})" for uuid in gone[:4]]
        advice = "; look for Xid in the kernel's log; its containers cannot go on" if gone else ""
        self._node.problem("gpus", ", ".join(words) + advice)

    def repair_devices(self) -> None:
        if self._node.inventory is None:
            return
        made, wrong = device_nodes.repair(self._node.inventory)
        for path in made:
            journal.write(f"{path} was missing and is made", journal.NOTICE)
            events.record(self._node.state_dir, "device-repaired", path=path)
        self._node.problem("devices", "; ".join(wrong))
