"""Puts the soft taint on nodes that mislead the scheduler, and takes it off again (kube/fragments.py says which these are).
Nodes themselves remember: a new leader finds the taints of the one before."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from oci_hook.kube import names
from oci_hook.kube.controller.client import JSON_PATCH, ApiError, Client
from oci_hook.kube.fragments import Fragments
from oci_hook.kube.pods import PodWords
from oci_hook.kube.state import ClusterState

TAINT = {"key": names.FRAGMENTED, "value": "true", "effect": "PreferNoSchedule"}
EVERY, IDLE = 0.5, 5.0  # seconds between two looks: while denied pods wait, and else
STAYS = 10.0  # seconds for which a taint stays that is no longer needed: the next pods are often of the same sizes
CLEAR = 2.0  # seconds
AT_A_TIME, MOST = 8, 64  # writes side by side, and in one look


def patch(node: Mapping[str, Any], marked: bool) -> list[dict[str, Any]]:
    """What is to be changed on the node's object as it is now; [] for nothing."""
    taints = list((node.get("spec") or {}).get("taints") or ())
    rest = [taint for taint in taints if taint.get("key") != names.FRAGMENTED]
    if (len(rest) < len(taints)) == marked:
        return []
    new = [*rest, TAINT] if marked else rest
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
    return [same, {"op": "add", "path": "/spec/taints", "value": new}]


class Marker:
    def __init__(
        self,
        client: Client,
        state: ClusterState,
        ready: Callable[[], bool],
        now: Callable[[], float],
        log: Callable[[str], None],
    ) -> None:
        """ready: whether we lead and know the whole cluster."""
        self._fragments = Fragments(state)
        self._client, self._state, self._ready, self._now, self._log = client, state, ready, now, log
        self._wake = asyncio.Event()
        self._needed: dict[str, float] = {}  # node -> when its taint was last needed
        self._ends = False

    def denied(self, pod: PodWords, node: str) -> None:
        self._fragments.denied(pod, node)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._fragments:
                self._wake.clear()
                wait = asyncio.ensure_future(self._wake.wait())
                await asyncio.wait([wait], timeout=IDLE)
                wait.cancel()
            await asyncio.sleep(
                EVERY
            )  # also since the scheduler must have put the pod aside before a taint wakes that up
            if self._ready() and not self._ends:
                await self._look()

    async def clear(self) -> None:
        """Takes the taints off, as far as that goes quickly and we lead: the controller ends, and may not come back."""
        self._ends = True
        marked = {node.name for node in self._state.nodes.values() if is_marked(node.taints)} | self._needed.keys()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._write_all([(name, False) for name in sorted(marked)]), CLEAR)

    async def _look(self) -> None:
        now = self._now()
        wanted: set[str] = set()
        for some in self._fragments.marks():
            wanted |= some
            await asyncio.sleep(0)  # who asks meanwhile is answered
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
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        try:
            change = patch(await self._client.get(path), marked)
            if change and self._ready() and not (marked and self._ends):
                await self._client.patch(path, change, JSON_PATCH)
        except ApiError as e:
            if e.status not in (404, 409, 422):  # else it changed meanwhile: the next look sees how
                self._log(f"{name}: the taint {names.FRAGMENTED} cannot be written: {e}")


def is_marked(taints: tuple[tuple[str, str, str], ...]) -> bool:
    return any(key == names.FRAGMENTED for key, _, _ in taints)
