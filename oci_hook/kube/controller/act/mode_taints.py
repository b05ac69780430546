"""Keeps the taint of T9k's whole-node mode in step with the node's mode label. Removes only a taint that we added: an annotation of the
node records it. `patch` is pure."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from oci_hook.kube.controller.act import node_patch
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.context import Context
from oci_hook.kube.formats import names
from oci_hook.kube.formats.review import add_annotations, pointer

LOG = logging.getLogger(__name__)

TAINTED = names.PREFIX_KEY + "taint"  # annotation on a node: the T9k mode for which we added the taint
WHOLE = "xgn"
TAINT = {"key": names.T9K_TAINT, "value": "true", "effect": "NoSchedule"}


def patch(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The JSON Patch for the node's current object; [] if nothing changes."""
    metadata = node["metadata"]
    taints = list((node.get("spec") or {}).get("taints") or ())
    notes = metadata.get("annotations") or {}
    whole = (metadata.get("labels") or {}).get(names.T9K_MODE) == WHOLE
    has = any(taint.get("key") == names.T9K_TAINT for taint in taints)
    if whole and not has:
        note = add_annotations(metadata, {TAINTED: WHOLE})
        change = [{"op": "add", "path": "/spec/taints", "value": [*taints, TAINT]}, *note]
    elif not whole and TAINTED in notes:
        rest = [taint for taint in taints if taint.get("key") != names.T9K_TAINT]
        change = [{"op": "remove", "path": f"/metadata/annotations/{pointer(TAINTED)}"}]
        if len(rest) < len(taints):
            change.insert(0, {"op": "add", "path": "/spec/taints", "value": rest})
    else:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}, *change]


class ModeTaints:
    def __init__(self, context: Context) -> None:
        self._client, self._leads = context.client, context.leads
        self._due: set[str] = set()
        self._wake = asyncio.Event()

    def look(self, node: Mapping[str, Any]) -> None:
        """Called at each change of a node."""
        if patch(node):
            self._due.add(node["metadata"]["name"])
            self._wake.set()
        else:
            self.gone(node["metadata"]["name"])

    def gone(self, name: str) -> None:
        self._due.discard(name)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._leads():
                await asyncio.sleep(1)
                self._wake.set()
                continue
            for name in sorted(self._due):
                self._due.discard(name)  # first: a change meanwhile brings it back
                try:
                    if await node_patch.write(self._client, name, patch, self._leads):
                        LOG.info(f"{name}: the taint {names.T9K_TAINT} now matches the node's mode")
                    elif not self._leads():
                        self._due.add(name)
                        self._wake.set()
                except ApiError as e:
                    LOG.warning(f"{name}: the taint {names.T9K_TAINT} cannot be written: {e}")
                    self._due.add(name)
                    await asyncio.sleep(5)
                    self._wake.set()
