"""Keeps the node's ResourceSlices equal to its inventory. They are written only if they differ from what the API server has; the
kubelet deletes them when it loses the driver for half a minute, and when it starts."""

import os
import time
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode

from oci_hook.core.inventory import Inventory
from oci_hook.kube.formats import slices
from oci_hook.kube.formats.claim_words import DRIVER
from oci_hook.kube.link.api import FAILURES, Api, ApiError
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.link.watcher import Change

GATES = {
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
    "taints": "DRADeviceTaints",
}
PATH = "/apis/resource.k8s.io/v1/resourceslices"
SLICES = "slices"
AGAIN = 3600.0  # seconds; lists may come every few minutes, on each node
CONFLICT, NOT_FOUND = 409, 404


def selector(node: str) -> str:
    return f"spec.driver={DRIVER},spec.nodeName={node}"


class SlicePublisher:
    """seen: the node's slices by name, None until the watch has listed them. problem: of what the server has of them, "" for none."""

    def __init__(self, node: str, known: Credential) -> None:
        self.seen: dict[str, Any] | None = None
        self.problem = ""
        # By a slice's name: the devices that were sent, and the server's of them.
        self._kept: dict[str, tuple[Any, Any]] = {}
        self._again = 0.0  # when what the server dropped may be sent once more
        self._node, self._api = node, Api(known)
        self._owner: dict[str, Any] | None = None

    def take(self, change: Change) -> None:
        """Of the watch."""
        if change.how == "all":
            self.seen = {item["metadata"]["name"]: item for item in change.value}
            if time.monotonic() >= self._again:  # the server may have started with other gates since
                self._kept = {}
        elif self.seen is not None and change.how == "put":
            self.seen[change.value["metadata"]["name"]] = change.value
        elif self.seen is not None and change.how == "gone":
            self.seen.pop(change.value["metadata"]["name"], None)

    def publish(self, wanted: list[dict[str, Any]]) -> bool:
        """Whether it wrote. Slices keep their names. Raises ApiError, api.FAILURES."""
        if self.seen is None:
            return False
        parts = slices.parts(wanted)
        ours = sorted(self.seen.values(), key=lambda item: str(item["metadata"]["name"]))
        for extra in ours[len(parts) :]:
            self._delete(extra["metadata"]["name"])
        generation = max(map(_generation, ours), default=0)
        pool = {"name": self._node, "generation": generation, "resourceSliceCount": len(parts)}
        if len(ours) == len(parts) and all(
            item["spec"].get("pool") == pool and self._is_published(item, part)
            for item, part in zip(ours, parts, strict=True)
        ):
            self.problem = _problem((part, item["spec"].get("devices")) for item, part in zip(ours, parts, strict=True))
            return False
        pool["generation"] = generation + 1  # a pool counts only once all its slices have the newest
        for item, part in zip_longest(ours[: len(parts)], parts):
            spec = {"driver": DRIVER, "nodeName": self._node, "pool": pool, "devices": part}
            try:
                answer = self._put(item, spec)
            except ApiError as e:
                if item is not None and e.status in (CONFLICT, NOT_FOUND):  # the watch brings what has changed
                    return False
                raise
            self.seen[answer["metadata"]["name"]] = answer
            self._kept[answer["metadata"]["name"]] = part, answer["spec"].get("devices")
        self._again = time.monotonic() + AGAIN
        self.problem = _problem(self._kept[name] for name in self.seen if name in self._kept)
        return True

    def _is_published(self, item: Any, part: list[dict[str, Any]]) -> bool:
        """A server whose feature gates are off drops fields, each time."""
        devices = item["spec"].get("devices")
        sent, kept = self._kept.get(item["metadata"]["name"], (None, None))
        return slices.same(devices, part) or (sent == part and devices == kept)

    def _put(self, item: Any, spec: dict[str, Any]) -> Any:
        """The slice as it is now. item: as it was, None for a new one."""
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        if item is None:
            meta: dict[str, Any] = {
                "generateName": f"{self._node[:200].rstrip('.-')}-{DRIVER}-",
                "ownerReferences": self._owners(),
            }
            return self._api.call("POST", PATH, {**head, "metadata": meta, "spec": spec})
        meta = item["metadata"]
        return self._api.call("PUT", f"{PATH}/{meta['name']}", {**head, "metadata": meta, "spec": spec})

    def withdraw(self) -> None:
        """Raises ApiError, api.FAILURES."""
        found = self._api.get(f"{PATH}?{urlencode({'fieldSelector': selector(self._node)})}")
        for item in found.get("items") or ():
            self._delete(item["metadata"]["name"])

    def _owners(self) -> list[dict[str, Any]]:
        """The Node, with which a slice is to go; none where we may not read it."""
        try:
            uid = self._api.get(f"/api/v1/nodes/{self._node}")["metadata"]["uid"]
        except (ApiError, *FAILURES, LookupError, TypeError):
            return []
        return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}]

    def _delete(self, name: str) -> None:
        try:
            self._api.call("DELETE", f"{PATH}/{name}")
        except ApiError as e:
            if e.status != NOT_FOUND:
                raise
        if self.seen is not None:
            self.seen.pop(name, None)


def _problem(kept: Iterable[tuple[Any, Any]]) -> str:
    """Of slices as sent and as the server has them, "" for none."""
    wrong = [(_names(sent), _names(has)) for sent, has in kept if not slices.same(has, sent)]
    names = [f"{name} (feature gate {GATES[name]})" for name in GATES if any(name in a - b for a, b in wrong)]
    return f"the API server drops {', '.join(names) or 'a part'} of the ResourceSlices" if wrong else ""


def _names(value: Any) -> set[str]:
    """Of all fields, at any depth."""
    if isinstance(value, dict):
        return set(value).union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list) else set()


def _generation(item: Any) -> int:
    try:
        return int(item["spec"]["pool"]["generation"])
    except (LookupError, TypeError, ValueError):
        return 0


def pcie_roots(inventory: Inventory) -> dict[str, str]:
    return {gpu.uuid: root for gpu in inventory.gpus if (root := pcie_root(gpu.pci))}


def pcie_root(pci: str, folder: str = "/sys/bus/pci/devices") -> str:
    """The root complex of a PCI device, as pci0000:00 (resource.kubernetes.io/pcieRoot, KEP-4381); "" where it is not known. pci: as
    NVML writes it, with eight digits of the domain, of which the kernel has four."""
    if not pci or "/" in pci:
        return ""
    domain, _, rest = pci.lower().partition(":")
    path = os.path.realpath(f"{folder}/{domain[-4:]}:{rest}")
    return next((part for part in path.split("/") if part.startswith("pci") and ":" in part), "")
