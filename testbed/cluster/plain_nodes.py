"""Nodes and pods as plain objects of the API server: no kubelet behind them. The lab writes the fields
of reporter and kubelet itself, so hundreds of nodes fit on this machine. No container runs."""

import json
from typing import Any

from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.kube.formats import names, sums
from oci_hook.kube.formats.node_info import Digest, NodeInventory, digest_text, inventory_text
from testbed.cluster.api import Api

NO_CONTROLLER_MANAGER_OF_NODES = "--controllers=*,-nodelifecycle"  # it would find that no kubelet reports
RULES = Rules()


def inventory(name: str, sizes: list[int]) -> Inventory:
    gpus = tuple(Gpu(f"GPU-{name}-{i}", i, i, mib, name="Plain") for i, mib in enumerate(sizes))
    return Inventory("", "550.1", "", True, gpus, (), (), "", "", cuda_version="12.4")


def node(name: str, sizes: list[int], labels: dict[str, str] | None = None, key: int = 1) -> dict[str, Any]:
    """sizes: MiB of each GPU."""
    found = inventory(name, sizes)
    have = {"cpu": "1000", "memory": "4Ti", "pods": "1000"}
    have |= {resource: str(amount) for resource, amount in sums.of_node(found, RULES).items()}
    return {
        "metadata": {
            "name": name,
            "labels": {"gpu-hook.io/node": "true", **(labels or {})},
            "annotations": {
                names.INVENTORY: inventory_text(NodeInventory(found, RULES, key)),
                names.LEDGER: digest_text(Digest(), found),
            },
        },
        "status": {
            "capacity": have,
            "allocatable": have,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Played", "message": "no kubelet"}],
        },
    }


def create_node(api: Api, made: dict[str, Any]) -> None:
    """Creates it without the taint that the API server gives to new nodes."""
    name = made["metadata"]["name"]
    api("POST", "/api/v1/nodes", made)
    api.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def pod(name: str, memory: str = "", **more: Any) -> dict[str, Any]:
    """more: annotations (a dict), labels, resources (limits of its container), and other fields of its spec."""
    notes = {**({"gpu-hook.io/memory": memory} if memory else {}), **more.pop("annotations", {})}
    container: dict[str, Any] = {"name": "main", "image": "none"}
    if limits := more.pop("limits", None):
        container["resources"] = {"limits": limits}
    return {
        "metadata": {"name": name, "annotations": notes, "labels": more.pop("labels", {})},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **more},
    }


def play_digest(api: Api, name: str, sizes: list[int], digest: Digest) -> None:
    """The annotations of a node's reporter."""
    text = digest_text(digest, inventory(name, sizes))
    api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {names.LEDGER: text}}})


def decision(found: dict[str, Any]) -> dict[str, Any]:
    """The decision of a pod that has one."""
    text = found["metadata"]["annotations"][names.ALLOC]
    result = json.loads(text)
    assert isinstance(result, dict)
    return result
