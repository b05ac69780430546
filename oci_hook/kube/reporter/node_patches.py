"""The patches that bring the Node object up to date; empty if it is. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from oci_hook.kube.formats.names import SUMS
from oci_hook.kube.formats.quantity import whole
from oci_hook.kube.reporter.views import SeenNode, SeenPod

MOST = (1 << 63) - 1  # of a quantity; a pod that sets its node itself may request any amount
MAPS = ("capacity", "allocatable")


def annotations(node: SeenNode, wanted: Mapping[str, str]) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396)."""
    changed = {key: text for key, text in wanted.items() if node.annotations.get(key) != text}
    return {"metadata": {"annotations": changed}} if changed else {}


def bound(pods: Iterable[SeenPod]) -> dict[str, int]:
    """The sums of the node's pods."""
    found = dict.fromkeys(SUMS, 0)
    for pod in pods:
        for name, amount in pod.sums:
            found[name] += amount
    return found


def sums(capacity: Mapping[str, int], pods: Iterable[SeenPod]) -> dict[str, int]:
    """The sums to publish, never below those of the bound pods: a restarted kubelet kills pods, the oldest last, until the rest fits
    (Kubernetes 1.20, admission of a node's own pods)."""
    held = bound(pods)
    return {name: min(max(amount, held[name]), MOST) for name, amount in capacity.items()}


def lowers(node: SeenNode, wanted: Mapping[str, int]) -> bool:
    """True if this would lower a sum. If so, read the pods again first."""
    return any((_now(part, name) or 0) > amount for part in _parts(node) for name, amount in wanted.items())


def status(node: SeenNode, wanted: Mapping[str, int]) -> list[dict[str, Any]]:
    """A JSON patch (RFC 6902) of the node's status. A sum of 0 that is not there yet is left out, since it would refuse pods."""
    patch: list[dict[str, Any]] = []
    for field, part in zip(MAPS, _parts(node), strict=True):
        changed = {
            name: amount
            for name, amount in wanted.items()
            if _now(part, name) != amount and (amount or name in (part or {}))
        }
        if changed and part is None:
            patch.append({"op": "add", "path": f"/status/{field}", "value": {}})
        for name, amount in changed.items():
            path = f"/status/{field}/{name.replace('~', '~0').replace('/', '~1')}"
            patch.append({"op": "add", "path": path, "value": str(amount)})
    return patch


def withdrawal(
    node: SeenNode, annotations: Iterable[str], labels: Iterable[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(merge patch, JSON patch of the status) that remove our annotations, labels and sums."""
    there = {
        kind: {key: None for key in keys if key in had}
        for kind, keys, had in (("annotations", annotations, node.annotations), ("labels", labels, node.labels))
    }
    patch = [
        {"op": "remove", "path": f"/status/{field}/{name.replace('/', '~1')}"}
        for field, part in zip(MAPS, _parts(node), strict=True)
        for name in SUMS
        if name in (part or {})
    ]
    metadata = {kind: gone for kind, gone in there.items() if gone}
    return ({"metadata": metadata} if metadata else {}), patch


def _parts(node: SeenNode) -> tuple[Mapping[str, str] | None, Mapping[str, str] | None]:
    return node.capacity, node.allocatable


def _now(part: Mapping[str, str] | None, name: str) -> int | None:
    try:
        return whole(str((part or {})[name]))
    except (KeyError, ValueError):
        return None
