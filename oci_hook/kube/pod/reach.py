"""Containers that reach more than a share gives: privileged ones get none, or their pod is refused; of others the webhook warns.

A node refuses a privileged container with a share (GH-403), as its device rules reach every GPU. It does so on every node, so the
pod would never start. Block devices (volumeDevices) are no GPUs, and what another plugin's devices are only their node knows.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oci_hook.core import collect
from oci_hook.core.request import Request
from oci_hook.errors import Problem, refuse
from oci_hook.kube.formats.names import PREFIX_KEY

UNDOES = ("ALL", "SYS_ADMIN", "DAC_READ_SEARCH")  # capabilities in the host's user namespace: SECURITY.md


def without_privileged(
    containers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str], requests: Mapping[str, Request | None]
) -> tuple[str, ...]:
    """The containers that are to have the pod's shares, if privileged ones are to have none that keys for the whole pod speak of;
    () if nothing changes. Raises ApplyError GH-403 for a privileged one that asks for itself, or if no other one asks."""
    asking = [name for name, request in requests.items() if request is not None and request.gpus]
    held = [str(one.get("name")) for one in containers if _security(one).get("privileged") is True]
    held = [name for name in held if name in asking]
    others = tuple(name for name in asking if name not in held)
    for name in held:
        if not others or is_named(annotations, name):
            to = f"or ask for another container: {PREFIX_KEY}memory.{others[0][:63]}" if others else "or ask for no GPU"
            raise refuse(
                "GH-403", f"container {name[:63]} is privileged, and would reach every GPU; drop privileged, {to}"
            )
    return others if held else ()


def is_named(annotations: Mapping[str, str], container: str) -> bool:
    """True if one of our annotations names the container."""
    if any(key.startswith(PREFIX_KEY) and collect.split(key)[1] == container for key in annotations):
        return True
    if container in [name.strip(" ") for name in str(annotations.get(collect.CONTAINERS, "")).split(",")]:
        return True
    try:
        said = json.loads(annotations.get(collect.REQUEST, "null"))
    except ValueError:  # refused elsewhere
        return False
    return isinstance(said, dict) and container in said


def warnings(
    spec: Mapping[str, Any], containers: Sequence[Mapping[str, Any]], requests: Mapping[str, Request | None]
) -> list[Problem]:
    """Of containers with a share that can undo its limit, one for each reason."""
    found: dict[str, str] = {}
    for one in containers:
        name, request = str(one.get("name")), requests.get(str(one.get("name")))
        if request is None or not request.gpus:
            continue
        added = (_security(one).get("capabilities") or {}).get("add") or ()
        words = {str(word).upper().removeprefix("CAP_") for word in added}
        if spec.get("hostUsers") is not False:
            found |= {f"CAP_{word}": name for word in UNDOES if word in words}
        if spec.get("hostPID"):
            found["hostPID"] = name
    return [
        Problem(
            "GH-403",
            f"container {name[:63]} has {why}, by which it can undo its limit or end its neighbours; leave it out",
        )
        for why, name in found.items()
    ]


def _security(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return container.get("securityContext") or {}
