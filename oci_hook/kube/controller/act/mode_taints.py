"""Keeps the taint of T9k's whole-node mode in step with the node's mode label. Removes only a taint that we added: an annotation of the
node records it. `patch` is pure."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from oci_hook.kube.controller.api.client import JSON_PATCH, ApiError
from oci_hook.kube.controller.context import Context
from oci_hook.kube.formats import names

LOG = logging.getLogger(__name__)

TAINTED = names.PREFIX_KEY + "taint"  # annotation on a node: the T9k mode for which we added the taint
WHOLE = "xgn"
TAINT = {"key": names.T9K_TAINT, "value": "true", "effect": "NoSchedule"}


def patch(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The JSON Patch; [] if nothing changes."""
    metadata = node["metadata"]
    taints = list((node.get("spec") or {}).get("taints") or ())
    notes = metadata.get("annotations") or {}
    whole = (metadata.get("labels") or {}).get(names.T9K_MODE) == WHOLE
    has = any(taint.get("key") == names.T9K_TAINT for taint in taints)
    escaped = TAINTED.replace("/", "~1")
    if whole and not has:
        note: list[dict[str, Any]] = [{"op": "add", "path": f"/metadata/annotations/{escaped}", "value": WHOLE}]
        if not notes:
            note = [{"op": "add", "path": "/metadata/annotations", "value": {TAINTED: WHOLE}}]
        change = [{"op": "add", "path": "/spec/taints", "value": [*taints, TAINT]}, *note]
    elif not whole and TAINTED in notes:
        rest = [taint for taint in taints if taint.get("key") != names.T9K_TAINT]
        change = [{"op": "remove", "path": f"/metadata/annotations/{escaped}"}]
        if len(rest) < len(taints):
            change.insert(0, {"op": "add", "path": "/spec/taints", "value": rest})
    else:
        return []
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}, *change]


class ModeTaints:
    def __init__(self, context: Context) -> None:
        self._client, self._leads = context.client, context.leads
        self._due: dict[str, list[dict[str, Any]]] = {}
        self._wake = asyncio.Event()

    def look(self, node: Mapping[str, Any]) -> None:
        """Called at each change of a node."""
        if change := patch(node):
            self._due[node["metadata"]["name"]] = change
            self._wake.set()
        else:
            self._due.pop(node["metadata"]["name"], None)

    def gone(self, name: str) -> None:
        self._due.pop(name, None)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._leads():
                await asyncio.sleep(1)
                self._wake.set()
                continue
            for name, change in list(self._due.items()):
                try:
                    await self._client.patch(f"/api/v1/nodes/{name}", change, JSON_PATCH)
                    LOG.info(f"{name}: the taint {names.T9K_TAINT} now matches the node's mode")
                except ApiError as e:
                    if e.status not in (404, 409, 422):  # otherwise the node changed since: its next event comes here
                        LOG.warning(f"{name}: the taint {names.T9K_TAINT} cannot be written: {e}")
                        await asyncio.sleep(5)
                        self._wake.set()
                        continue
                if self._due.get(name) is change:
                    del self._due[name]
