"""Taints of nodes, all that we write. FragmentTaints: PreferNoSchedule on nodes that mislead the scheduler, as long as
kube/preemption/fragments.py chooses them; a new leader reads the taints of the one before from the nodes. ModeTaints: the taint of
T9k's whole-node mode, in step with the node's mode label; removes only one that we added, by an annotation of the node. The two
patches are pure."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from oci_hook.kube.controller.api.client import JSON_PATCH, ApiError, Client
from oci_hook.kube.controller.context import Context
from oci_hook.kube.formats import names
from oci_hook.kube.formats.review import add_annotations, pointer
from oci_hook.kube.pod.asked import PodWords
from oci_hook.kube.preemption.fragments import Fragments

LOG = logging.getLogger(__name__)

FRAGMENT_TAINT = {"key": names.FRAGMENTED, "value": "true", "effect": "PreferNoSchedule"}
EVERY, IDLE = 0.5, 5.0  # seconds between two looks: while denied pods wait, and otherwise
STAYS = 10.0  # seconds for which an unneeded taint stays: the next pods often have the same sizes
CLEAR = 2.0  # seconds
AT_A_TIME, MOST = 8, 64  # parallel writes, and writes in one look

MODE_TAINT = {"key": names.T9K_TAINT, "value": "true", "effect": "NoSchedule"}
TAINTED = names.PREFIX_KEY + "taint"  # annotation on a node: the T9k mode for which we added the taint
WHOLE = "xgn"


def fragment_patch(node: Mapping[str, Any], marked: bool) -> list[dict[str, Any]]:
    """The JSON Patch for the node's current object; [] if nothing changes."""
    taints = list((node.get("spec") or {}).get("taints") or ())
    rest = [taint for taint in taints if taint.get("key") != names.FRAGMENTED]
    if (len(rest) < len(taints)) == marked:
        return []
    new = [*rest, FRAGMENT_TAINT] if marked else rest
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
            await _write(self._context.client, name, lambda node: fragment_patch(node, marked), still)
        except ApiError as e:
            LOG.warning(f"{name}: the taint {names.FRAGMENTED} cannot be written: {e}")


def is_marked(taints: tuple[tuple[str, str, str], ...]) -> bool:
    return any(key == names.FRAGMENTED for key, _, _ in taints)


def mode_patch(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The JSON Patch for the node's current object; [] if nothing changes."""
    metadata = node["metadata"]
    taints = list((node.get("spec") or {}).get("taints") or ())
    notes = metadata.get("annotations") or {}
    whole = (metadata.get("labels") or {}).get(names.T9K_MODE) == WHOLE
    has = any(taint.get("key") == names.T9K_TAINT for taint in taints)
    if whole and not has:
        note = add_annotations(metadata, {TAINTED: WHOLE})
        change = [{"op": "add", "path": "/spec/taints", "value": [*taints, MODE_TAINT]}, *note]
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
        if mode_patch(node):
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
                    if await _write(self._client, name, mode_patch, self._leads):
                        LOG.info(f"{name}: the taint {names.T9K_TAINT} now matches the node's mode")
                    elif not self._leads():
                        self._due.add(name)
                        self._wake.set()
                except ApiError as e:
                    LOG.warning(f"{name}: the taint {names.T9K_TAINT} cannot be written: {e}")
                    self._due.add(name)
                    await asyncio.sleep(5)
                    self._wake.set()


async def _write(
    client: Client, name: str, patch: Callable[[Mapping[str, Any]], list[dict[str, Any]]], still: Callable[[], bool]
) -> bool:
    """Patches a node by its current object: our copy lacks other systems' annotations and fields, and a patch from it would take them
    off. patch: makes the JSON Patch, which tests resourceVersion; [] for no change. still: False if it must not write now.
    Returns whether it wrote: not if the node changed meanwhile or is gone, which the watch brings. Raises ApiError."""
    path = f"/api/v1/nodes/{quote(name, safe='')}"
    try:
        change = patch(await client.get(path))
        if not (change and still()):
            return False
        await client.patch(path, change, JSON_PATCH)
    except ApiError as e:
        if e.status not in (404, 409, 422):
            raise
        return False
    return True
