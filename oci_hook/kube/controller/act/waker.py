"""Wakes the scheduler if a waiting pod has room by now.

The scheduler puts a pod aside if no node fits, or if its extender or Binding failed. It tries again when an object changes that
it watches, or after 60 to 90 s (Kubernetes 1.20 to 1.22; 5 minutes from 1.23). It does not see a share become free in a node's
ledger, nor our replicas answer again. So the leader checks the waiting pods, and if one has room, it changes a label of the node
that has it. Schedulers of all versions look again then; changes of Services no longer wake those of about 1.26 and newer, and
annotations of nodes do not wake those of 1.20.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from urllib.parse import quote

from oci_hook.kube.controller.act.turns import in_turn
from oci_hook.kube.controller.api.client import MERGE, ApiError
from oci_hook.kube.controller.context import Context
from oci_hook.kube.formats.names import ROOM
from oci_hook.kube.placing.choose import Chosen, Question, choose, stays
from oci_hook.kube.pod.asked import PodWords

LOG = logging.getLogger(__name__)

EVERY = 2.0
PATIENCE = 8.0  # seconds before the first check of a pod: the scheduler's own queue comes first
GAP = 10.0  # seconds between two wake-ups
MOST = 300.0  # between two wake-ups for one pod: it waits for something other than GPUs, which only the scheduler knows
AT_A_TIME = 8  # pods checked in one turn
LONG = 0.02  # seconds of one turn; the other pods wait for the next one
REST = 50  # times as long as the turn took: at most 2 % of a processor


class Sleeper:
    """at: time of the next check. wait: seconds until the check after the next wake-up."""

    __slots__ = ("namespace", "at", "wait")

    def __init__(self, namespace: str, at: float) -> None:
        self.namespace, self.at, self.wait = namespace, at, GAP


class Sleepers:
    """The waiting pods, each with the time of its next check. Pure; `now` as in time.monotonic()."""

    def __init__(self) -> None:
        self._known: dict[str, Sleeper] = {}
        self._looks = 0
        self._last: dict[str, int] = {}  # namespace -> number of the last check of its pods

    def due(self, waiting: Iterable[PodWords], now: float) -> list[PodWords]:
        """A bounded number of pods. Namespaces take turns, the least recently checked first; within one, the longest due first."""
        here = {pod.uid: pod for pod in waiting}
        self._known = {uid: self._known.get(uid) or Sleeper(pod.namespace, now + PATIENCE) for uid, pod in here.items()}
        namespaces = {pod.namespace for pod in here.values()}
        self._last = {name: number for name, number in self._last.items() if name in namespaces}
        found = sorted((one.at, uid) for uid, one in self._known.items() if one.at <= now)
        return in_turn((here[uid] for _, uid in found), AT_A_TIME, self._last)

    def none(self, uid: str, now: float) -> None:
        """The pod has no room."""
        self._looked(uid).at = now + EVERY

    def woken(self, uid: str, now: float) -> None:
        one = self._looked(uid)
        one.at = now + one.wait
        one.wait = min(MOST, 2 * one.wait)

    def _looked(self, uid: str) -> Sleeper:
        one = self._known[uid]
        self._looks += 1
        self._last[one.namespace] = self._looks
        return one


class Waker:
    def __init__(self, context: Context) -> None:
        self._client, self._state, self._enabled = context.client, context.state, context.enabled
        self._leads = context.leads
        self._sleepers = Sleepers()
        self._next = 0.0

    async def run(self) -> None:
        """Runs until cancelled."""
        rest = EVERY
        while True:
            await asyncio.sleep(rest)
            rest = await self.turn() if self._leads() else EVERY

    async def turn(self) -> float:
        """Checks some pods. Returns the seconds to rest, in proportion to the time it took."""
        nodes, spent = set[str](), 0.0
        for pod in self.due(time.monotonic()):
            began = time.perf_counter()
            nodes.add(self.room(pod, time.monotonic()))
            spent += time.perf_counter() - began
            if spent > LONG:
                break
            await asyncio.sleep(0)  # lets requests be answered
        for node in sorted(nodes - {""}):
            await self._wake(node)
        return max(EVERY, REST * spent)

    def due(self, now: float) -> list[PodWords]:
        """The pods to check now."""
        waiting = [pod for pod in self._state.waiting() if pod.namespace in self._enabled and self._may_wake(pod.uid)]
        due = self._sleepers.due(waiting, now)
        return due if now >= self._next else []

    def _may_wake(self, uid: str) -> bool:
        """False for a pod with a reservation, which is about to be bound; True if its room is held while victims end."""
        one = self._state.reservations.get(uid)
        return one is None or bool(one.victims)

    def room(self, pod: PodWords, now: float) -> str:
        """The node that has room for the pod, or "". Records the answer."""
        try:
            found = self._room(pod)
        except Exception as e:  # a tenant's annotations must not end the controller
            LOG.warning(f"{pod.namespace}/{pod.name}: its request cannot be read: {type(e).__name__}")
            self._sleepers.woken(pod.uid, now)  # the next look comes later each time
            return ""
        if found:
            self._next = now + GAP
            self._sleepers.woken(pod.uid, now)
        else:
            self._sleepers.none(pod.uid, now)
        return found

    def _room(self, pod: PodWords) -> str:
        question = Question(pod)
        held = self._state.reservations.get(pod.uid)
        if held is not None:  # preemption made its room, see preemptor.py
            return held.node if question.asks and stays(self._state, question, held.node, held.fit) else ""
        chosen = choose(self._state, question) if question.asks else None
        return chosen.node if isinstance(chosen, Chosen) else ""

    async def _wake(self, node: str) -> None:
        """Labels the node with the time, since an equal value would be no change."""
        try:
            path, value = f"/api/v1/nodes/{quote(node, safe='')}", str(time.time_ns() // 10**6)
            await self._client.patch(path, {"metadata": {"labels": {ROOM: value}}}, MERGE)
        except ApiError as e:
            if e.status != 404:
                LOG.warning(f"node {node}: {e}")
