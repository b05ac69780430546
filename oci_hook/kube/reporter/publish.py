"""Which writes make the Node object say what is so: pure. Nothing to write is an empty answer."""

from collections.abc import Iterable, Mapping
from typing import Any

from oci_hook.kube.names import SUMS
from oci_hook.kube.quantity import whole
from oci_hook.kube.reporter.objects import NodeView, PodView

MOST = (1 << 63) - 1  # of a quantity; a pod that names its node itself may ask for any number
MAPS = ("capacity", "allocatable")


def annotations(node: NodeView, wanted: Mapping[str, str]) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396)."""
    changed = {key: text for key, text in wanted.items() if node.annotations.get(key) != text}
    return {"metadata": {"annotations": changed}} if changed else {}


def bound(pods: Iterable[PodView]) -> dict[str, int]:
    """What the pods on the node count for."""
    found = dict.fromkeys(SUMS, 0)
    for pod in pods:
        for name, amount in pod.sums:
            found[name] += amount
    return found


def sums(capacity: Mapping[str, int], pods: Iterable[PodView]) -> dict[str, int]:
    """What to publish. Never less than what is bound: a kubelet that starts anew kills pods, the oldest last, until the rest
    fits (Kubernetes 1.20, admission of a node's own pods)."""
    held = bound(pods)
    return {name: min(max(amount, held[name]), MOST) for name, amount in capacity.items()}


def lowers(node: NodeView, wanted: Mapping[str, int]) -> bool:
    """Whether less than now would be published: then the pods must be looked at anew before."""
    return any((_now(part, name) or 0) > amount for part in _parts(node) for name, amount in wanted.items())


def status(node: NodeView, wanted: Mapping[str, int]) -> list[dict[str, Any]]:
    """A JSON patch (RFC 6902) of the node's status. What is neither there nor wanted is not published: 0 would refuse pods."""
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


def withdrawal(node: NodeView, keys: Iterable[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The two patches that take back all that was written."""
    there = {key: None for key in keys if key in node.annotations}
    patch = [
        {"op": "remove", "path": f"/status/{field}/{name.replace('/', '~1')}"}
        for field, part in zip(MAPS, _parts(node), strict=True)
        for name in SUMS
        if name in (part or {})
    ]
    return ({"metadata": {"annotations": there}} if there else {}), patch


def _parts(node: NodeView) -> tuple[Mapping[str, str] | None, Mapping[str, str] | None]:
    return node.capacity, node.allocatable


def _now(part: Mapping[str, str] | None, name: str) -> int | None:
    try:
        return whole(str((part or {})[name]))
    except (KeyError, ValueError):
        return None
