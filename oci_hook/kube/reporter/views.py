"""The few fields that the reporter keeps of watched objects, with their types checked."""

import json
from typing import Any

from oci_hook.core import decision
from oci_hook.core.decision import Decision
from oci_hook.core.value import Value
from oci_hook.kube.formats.names import ALLOC, SUMS
from oci_hook.kube.formats.sums import of_object

ENDED = ("Succeeded", "Failed")


class SeenNode(Value):
    """annotations, labels, capacity, allocatable: as in the object."""

    annotations: dict[str, str]
    labels: dict[str, str]
    capacity: dict[str, str] | None
    allocatable: dict[str, str] | None


class SeenPod(Value):
    """sums: (name, amount) of the extended resources that it uses on its node. decision: None if missing or invalid."""

    uid: str
    sums: tuple[tuple[str, int], ...]
    decision: Decision | None
    ended: bool


def node(item: Any) -> SeenNode:
    metadata, status = item["metadata"], item.get("status") or {}
    return SeenNode(
        _texts(metadata.get("annotations")),
        _texts(metadata.get("labels")),
        status.get("capacity"),
        status.get("allocatable"),
    )


def pod(item: Any) -> SeenPod:
    metadata = item["metadata"]
    text = _texts(metadata.get("annotations")).get(ALLOC)
    found = None
    if text is not None:
        try:
            found = decision.read(text, json.loads)
        except ValueError:
            pass
    ended = (item.get("status") or {}).get("phase") in ENDED
    counted = {} if ended else of_object(item)
    sums = tuple((name, counted[name] // 1000) for name in sorted(SUMS) if counted.get(name))
    return SeenPod(str(metadata["uid"]), sums, found, ended)


def config(item: Any) -> dict[str, str]:
    """A ConfigMap's data."""
    return _texts(item.get("data"))


def _texts(found: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in (found or {}).items()}
