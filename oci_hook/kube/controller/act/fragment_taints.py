"""Adds a PreferNoSchedule taint to nodes that mislead the scheduler, and removes it again. kube/preemption/fragments.py chooses the
nodes. A new leader reads the taints of the one before from the nodes."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from oci_hook.kube.controller.act import node_patch
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.context import Context
from oci_hook.kube.formats import names
from oci_hook.kube.pod.asked import PodWords
from oci_hook.kube.preemption.fragments import Fragments

LOG = logging.getLogger(__name__)

TAINT = {"key": names.FRAGMENTED, "value": "true", "effect": "PreferNoSchedule"}
EVERY, IDLE = 0.5, 5.0  # seconds between two looks: while denied pods wait, and otherwise
STAYS = 10.0  # seconds for which an unneeded taint stays: the next pods often have the same sizes
CLEAR = 2.0  # seconds
AT_A_TIME, MOST = 8, 64  # parallel writes, and writes in one look


def patch(node: Mapping[str, Any], marked: bool) -> list[dict[str, Any]]:
    """The JSON Patch for the node's current object; [] if nothing changes."""
    taints = list((node.get("spec") or {}).get("taints") or ())
    rest = [taint for taint in taints if taint.get("key") != names.FRAGMENTED]
    if (len(rest) < len(taints)) == marked:
        return []
    new = [*rest, TAINT] if marked else rest
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    return [same, {"op": "add", "path": "/spec/taints", "value": new}]


class FragmentTaints:
    def __init__(self, context: Context) -> None:
        self._context, self._state = context, context.state
        self._fragments = Fragments(context.state)
        self._wake = asyncio.Event()
        self._needed: dict[str, float] = {}  # node -> when its taint was last needed
        self._ends = False

    def denied(self, pod: PodWords, node: str) -> None:
        self._fragments.denied(pod, node)
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if not self._fragments:
                self._wake.clear()
                wait = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait([wait], timeout=IDLE)
                wait.cancel()
            # The pause lets the scheduler put a denied pod aside, so that the taint's change wakes it.
            await asyncio.sleep(EVERY)
            if self._ready() and not self._ends:
                await self._look()

    def _ready(self) -> bool:
        return self._context.leads() and self._context.synced()

    async def clear(self) -> None:
        """Removes the taints before the controller ends, within CLEAR seconds and only while we lead: it may not come back."""
        self._ends = True
        marked = {node.name for node in self._state.nodes.values() if is_marked(node.taints)} | self._needed.keys()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._write_all([(name, False) for name in sorted(marked)]), CLEAR)

    async def _look(self) -> None:
        now = self._context.now()
        wanted: set[str] = set()
        for some in self._fragments.marks():
            wanted |= some
            await asyncio.sleep(0)  # lets requests be answered
        self._needed |= dict.fromkeys(wanted, now)
        marked = {node.name for node in self._state.nodes.values() if is_marked(node.taints)}
        over = [name for name in marked if self._needed.get(name, now - STAYS) + STAYS <= now]
        changes = [(name, True) for name in sorted(wanted - marked)] + [(name, False) for name in sorted(over)]
        await self._write_all(changes[:MOST])
        self._needed = {name: when for name, when in self._needed.items() if when + STAYS > now}

    async def _write_all(self, changes: list[tuple[str, bool]]) -> None:
        for first in range(0, len(changes), AT_A_TIME):
            await asyncio.gather(*(self._write(*change) for change in changes[first : first + AT_A_TIME]))

    async def _write(self, name: str, marked: bool) -> None:
        def still() -> bool:
            return self._ready() and not (marked and self._ends)

        try:
            await node_patch.write(self._context.client, name, lambda node: patch(node, marked), still)
        except ApiError as e:
            LOG.warning(f"{name}: the taint {names.FRAGMENTED} cannot be written: {e}")


def is_marked(taints: tuple[tuple[str, str, str], ...]) -> bool:
    return any(key == names.FRAGMENTED for key, _, _ in taints)
