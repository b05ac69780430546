"""What the reporter keeps of the objects that it watches: a few fields, each of the kind that it must have."""

import json
from typing import Any

from oci_hook.core import decision
from oci_hook.core.decision import Decision
from oci_hook.core.value import Value
from oci_hook.kube.names import ALLOC, SUMS
from oci_hook.kube.quantity import whole

ENDED = ("Succeeded", "Failed")


class NodeView(Value):
    """annotations, labels, capacity, allocatable: the object's own."""

    annotations: dict[str, str]
    labels: dict[str, str]
    capacity: dict[str, str] | None
    allocatable: dict[str, str] | None


class PodView(Value):
    """sums: (name, amount) of the extended resources that it counts for on its node. decision: None where it has none that
    can be read."""

    uid: str
    sums: tuple[tuple[str, int], ...]
    decision: Decision | None
    ended: bool


def node(item: Any) -> NodeView:
    metadata, status = item["metadata"], item.get("status") or {}
    return NodeView(
        _texts(metadata.get("annotations")),
        _texts(metadata.get("labels")),
        status.get("capacity"),
        status.get("allocatable"),
    )


def pod(item: Any) -> PodView:
    metadata, spec = item["metadata"], item.get("spec") or {}
    text = _texts(metadata.get("annotations")).get(ALLOC)
    found = None
    if text is not None:
        try:
            found = decision.read(text, json.loads)
        except ValueError:
            pass
    ended = (item.get("status") or {}).get("phase") in ENDED
    return PodView(str(metadata["uid"]), () if ended else tuple(sorted(requested(spec).items())), found, ended)


def config(item: Any) -> dict[str, str]:
    """A ConfigMap's data."""
    return _texts(item.get("data"))


def requested(spec: Any) -> dict[str, int]:
    """What the kubelet counts of the sums for the pod: its containers' together, or an init container's if that is more."""
    total = dict.fromkeys(SUMS, 0)
    for container in spec.get("containers") or ():
        for name, amount in _requests(container).items():
            total[name] += amount
    for container in spec.get("initContainers") or ():
        for name, amount in _requests(container).items():
            if container.get("restartPolicy") == "Always":
                total[name] += amount
            else:
                total[name] = max(total[name], amount)
    return {name: amount for name, amount in total.items() if amount}


def _requests(container: Any) -> dict[str, int]:
    said = (container.get("resources") or {}).get("requests") or {}
    found = {}
    for name in SUMS:
        try:
            found[name] = max(0, whole(str(said.get(name, "0"))))
        except ValueError:
            found[name] = 0
    return found


def _texts(found: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in (found or {}).items()}
