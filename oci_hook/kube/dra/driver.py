"""The driver's one loop: serves the kubelet's calls, publishes the node's GPUs, repairs what was cut short."""

import os
import random
import stat
from typing import Any

from oci_hook.core.backoff import Backoff
from oci_hook.core.inventory import Inventory
from oci_hook.errors import GhError
from oci_hook.kube.dra import kubelet_messages
from oci_hook.kube.dra.grpc_server import GrpcServer, Method
from oci_hook.kube.dra.prepare import ClaimPreparer
from oci_hook.kube.dra.publisher import PATH, SLICES, SlicePublisher, pcie_roots, selector
from oci_hook.kube.formats import slices
from oci_hook.kube.formats.claim_words import DRIVER
from oci_hook.kube.link.api import FAILURES, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.loop import Loop
from oci_hook.kube.link.node_settings import NodeSettings
from oci_hook.kube.link.status import Status
from oci_hook.kube.link.watcher import FIRST, MOST, Change, Watcher, words
from oci_hook.kube.reporter.ledger import LedgerView
from oci_hook.ledger import resource_claims

SERVICES = tuple(f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin" for version in ("v1", "v1beta1"))
REGISTRATION = "/pluginregistration.Registration"
LOOK = 5.0  # seconds between two steps without an event
GAP = 1.0  # seconds between two writes
FORGET = 300.0  # seconds between two looks for claims that the API server has no more
SOON = 15.0  # the same where a claim had no room, as the scheduler takes such a claim's share for free; and where one is hidden
CDI = "/var/run/cdi"  # of what lives until the next boot (SPEC.md of CDI)


class Sockets:
    """Those of a driver below the kubelet's folder."""

    def __init__(self, kubelet: str) -> None:
        self.folder = f"{kubelet}/plugins/{DRIVER}"
        self.calls = f"{self.folder}/dra.sock"
        self.registry = f"{kubelet}/plugins_registry"
        self.registration = f"{self.registry}/{DRIVER}-reg.sock"

    def remove(self) -> None:
        for path in (self.registration, self.calls):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        try:
            os.rmdir(self.folder)
        except OSError:
            pass


class ClaimDriver(Loop):
    """kubelet: its root folder. cdi: the folder of CDI files."""

    def __init__(
        self, prefix: str, node: str, options: NodeSettings, known: Credential, status: Status, cdi: str = CDI
    ) -> None:
        super().__init__(status)
        self.claims = ClaimPreparer(prefix, node, known, cdi)
        self.sockets = Sockets(os.path.dirname(options.device_plugins))
        self._node, self._known = node, known
        self._publisher = SlicePublisher(node, known)
        self._ledger = LedgerView(prefix, self._selector)
        self._backoff = Backoff(FIRST, MOST, random.random)
        self._next_write = self._next_forget = 0.0
        self._no_room = False  # for a claim since the last look
        self._kubelet = self._watch = ""  # their problems
        self._roots: tuple[Inventory | None, dict[str, str]] = (None, {})
        self._servers: dict[str, tuple[GrpcServer, int]] = {}

    def step(self, now: float) -> float:
        for change in self._told():
            self._take(change)
        problems = {"kubelet": self._kubelet, "watch": self._watch}
        try:
            self._ledger.follow()
            problems["claims"] = self.claims.repair()  # before the kubelet is served: it may ask for what is repaired
            problems["sockets"] = self._serve()
            if now >= self._next_forget - (FORGET - SOON if self._no_room or self.claims.is_hidden else 0):
                self._next_forget, self._no_room = now + FORGET, False
                problems["claims"] = problems["claims"] or self.claims.forget_deleted(now)
        except GhError as e:
            problems["node"] = str(e)
        wait = LOOK
        if now >= self._next_write:
            wait = self._publish(problems, now)
        else:
            problems["write"] = self._status.problems.get("write", "")
            wait = min(wait, self._next_write - now)
        problems["slices"] = self._publisher.problem
        self._status.problems = {what: why for what, why in problems.items() if why}
        return wait

    def close(self) -> None:
        for server, _ in self._servers.values():
            server.close()
        self._servers = {}
        self._ledger.close()
        self._selector.close()

    def withdraw(self) -> None:
        """Raises GhError, ApiError, api.FAILURES."""
        self.sockets.remove()
        self.claims.withdraw()
        self._publisher.withdraw()

    def methods(self) -> dict[str, Method]:
        found: dict[str, Method] = {
            f"{REGISTRATION}/GetInfo": lambda data: kubelet_messages.plugin_info(DRIVER, self.sockets.calls),
            f"{REGISTRATION}/NotifyRegistrationStatus": self._registered,
        }
        for service in SERVICES:
            found[f"{service}/NodePrepareResources"] = self._prepare
            found[f"{service}/NodeUnprepareResources"] = self._unprepare
        return found

    def _prepare(self, data: bytes) -> bytes:
        found = self.claims.prepare(kubelet_messages.claim_names(data))
        if any(one.error.startswith("GH-201") for one in found.values()):
            self._no_room = True
            self._wake_up()
        return kubelet_messages.prepared(found)

    def _unprepare(self, data: bytes) -> bytes:
        return kubelet_messages.unprepared(self.claims.unprepare(kubelet_messages.claim_names(data)))

    def _registered(self, data: bytes) -> bytes:
        done, why = kubelet_messages.registration_status(data)
        self._kubelet = "" if done else f"the kubelet does not register the driver: {why[:200]}"
        self._wake_up()
        return b""

    def _serve(self) -> str:
        """Listens again where somebody has removed a socket, as a kubelet that is installed anew does. The one for calls first:
        the kubelet calls as soon as it sees the other."""
        sockets = self.sockets
        try:
            os.makedirs(sockets.folder, 0o750, exist_ok=True)
            os.makedirs(sockets.registry, 0o750, exist_ok=True)
            for path in (sockets.calls, sockets.registration):
                server, inode = self._servers.get(path, (None, 0))
                if server is not None and _inode(path) == inode:
                    continue
                if server is not None:
                    server.close()
                self._servers[path] = (GrpcServer(path, self.methods()), _inode(path))
        except OSError as e:
            return f"{e.filename or sockets.folder}: {e.strerror or e}: the kubelet does not see the driver; set agent.device_plugins"
        return ""

    def _publish(self, problems: dict[str, str], now: float) -> float:
        try:
            inventory = self._ledger.inventory()
            if self._roots[0] is not inventory.inventory:
                self._roots = inventory.inventory, pcie_roots(inventory.inventory)
            wanted = slices.devices(
                inventory.inventory, inventory.rules, self._taken(inventory.inventory), self._roots[1]
            )
            wrote = self._publisher.publish(wanted)
        except GhError as e:  # the published devices stay: the driver may be starting
            problems["inventory"] = str(e)
            return LOOK
        except (ApiError, *FAILURES, LookupError, TypeError, AttributeError) as e:
            problems["write"] = f"the ResourceSlices cannot be written: {words(e)}"
            self._status.failures += 1
            self._next_write = now + self._backoff.failed()
            return self._next_write - now
        self._backoff.worked()
        if not wrote:
            return LOOK
        self._status.wrote()
        self._next_write = now + GAP
        return GAP

    def _taken(self, inventory: Inventory) -> set[str]:
        """The GPUs of which containers without a claim have a part, such as those that ran before the setting changed, or programs
        that are in no container."""
        claims = {resource_claims.grant_key(uid) for uid in resource_claims.uids(self._ledger.settings())}
        others = {share.uuid for grant in self._ledger.grants() if grant.key not in claims for share in grant.shares}
        return others | {gpu.uuid for gpu in inventory.gpus if gpu.missing_mib}

    def _watchers(self) -> list[Watcher]:
        return [Watcher(self._known, SLICES, PATH, selector(self._node), _sliced, self._tell)]

    def _take(self, change: Change) -> None:
        self._watch = f"ResourceSlices cannot be watched: {change.value}" if change.how == "failure" else ""
        if change.how != "failure":
            self._publisher.take(change)


def _sliced(item: Any) -> Any:
    """Raises LookupError, TypeError for what is no ResourceSlice: the watch then begins anew."""
    return (
        {"metadata": {**item["metadata"], "managedFields": None}, "spec": item["spec"]}
        if item["metadata"]["name"]
        else {}
    )


def _inode(path: str) -> int:
    try:
        st = os.stat(path)
    except OSError:
        return 0
    return st.st_ino if stat.S_ISSOCK(st.st_mode) else 0
