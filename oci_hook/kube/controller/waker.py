"""Has the scheduler look again at pods that have room by now.

A scheduler that found no node for a pod, or whose extender or Binding failed, keeps the pod until something changes that it
watches, or for 60 to 90 s (Kubernetes 1.20 to 1.22; 5 minutes from 1.23). A share that becomes free in a node's ledger is nothing that
it watches, nor are our replicas that answer again. So the leader looks at pods that wait, and where one has room, it writes into
its Service's annotations: a change of a Service is one of those things.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from oci_hook.kube.choose import Chosen, Question, choose, stays
from oci_hook.kube.controller.client import MERGE, ApiError, Client
from oci_hook.kube.controller.takeover import SERVICE
from oci_hook.kube.pods import PodWords
from oci_hook.kube.state import ClusterState

ROOM = "gpu-hook.io/room"  # annotation of our Service
EVERY = 2.0
PATIENCE = 8.0  # seconds that a pod waits before it is looked at: the scheduler's own queue comes first
GAP = 10.0  # between two changes
MOST = 300.0  # between two changes for one pod: something else than GPUs keeps it, and only the scheduler knows what
AT_A_TIME = 8  # pods that are looked at every time
LONG = 0.02  # seconds, then the others have to wait for the next time
REST = 50  # times as long as it took, whatever people let wait: 2 % of a processor


class Sleeper:
    """at: when it is looked at next. wait: how long after the next change."""

    __slots__ = ("namespace", "at", "wait")

    def __init__(self, namespace: str, at: float) -> None:
        self.namespace, self.at, self.wait = namespace, at, GAP


class Sleepers:
    """The pods that wait, and when each is looked at. Pure; `now` as in time.monotonic()."""

    def __init__(self) -> None:
        self._known: dict[str, Sleeper] = {}
        self._looks = 0
        self._last: dict[str, int] = {}  # namespace -> the number of the last look at one of its pods

    def due(self, waiting: Iterable[PodWords], now: float) -> list[PodWords]:
        """A bounded number. Namespaces take turns, whose pod was looked at longest ago first; of one, the pod that waits for longest."""
        here = {pod.uid: pod for pod in waiting}
        self._known = {uid: self._known.get(uid) or Sleeper(pod.namespace, now + PATIENCE) for uid, pod in here.items()}
        namespaces = {pod.namespace for pod in here.values()}
        self._last = {name: number for name, number in self._last.items() if name in namespaces}
        count: Counter[str] = Counter()
        turns: list[tuple[int, int, str]] = []
        for _, uid in sorted((one.at, uid) for uid, one in self._known.items() if one.at <= now):
            namespace = here[uid].namespace
            turns.append((count[namespace], self._last.get(namespace, 0), uid))
            count[namespace] += 1
        turns.sort(key=lambda turn: turn[:2])
        return [here[uid] for _, _, uid in turns[:AT_A_TIME]]

    def none(self, uid: str, now: float) -> None:
        """There is no room for it."""
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
    """enabled: the namespaces whose pods get GPUs. decides: whether we do."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        state: ClusterState,
        enabled: Collection[str],
        decides: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        self._client, self._state, self._enabled, self._decides, self._log = client, state, enabled, decides, log
        self._path = f"/api/v1/namespaces/{namespace}/services/{SERVICE}"
        self._sleepers = Sleepers()
        self._next = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        rest = EVERY
        while True:
            await asyncio.sleep(rest)
            rest = await self.turn() if self._decides() else EVERY

    async def turn(self) -> float:
        """Looks at some pods. Returns for how many seconds to rest: one of very many containers takes long to look at."""
        found, spent = [], 0.0
        for pod in self.due(time.monotonic()):
            began = time.perf_counter()
            if self.has_room(pod, time.monotonic()):
                found.append(pod)
            spent += time.perf_counter() - began
            if spent > LONG:
                break
            await asyncio.sleep(0)  # requests come between
        if found:
            await self._wake(found)
        return max(EVERY, REST * spent)

    def due(self, now: float) -> list[PodWords]:
        """The pods to be looked at now."""
        waiting = [pod for pod in self._state.waiting() if pod.namespace in self._enabled and self._may_wake(pod.uid)]
        due = self._sleepers.due(waiting, now)
        return due if now >= self._next else []

    def _may_wake(self, uid: str) -> bool:
        """A pod with a reservation is about to get its node; one whose room is held waits for it."""
        one = self._state.reservations.get(uid)
        return one is None or bool(one.victims)

    def has_room(self, pod: PodWords, now: float) -> bool:
        """Whether the scheduler is to be woken for it."""
        question = Question(pod)
        held = self._state.reservations.get(pod.uid)
        if held is not None:  # for it others ended; see preemptor.py
            found = question.asks and stays(self._state, question, held.node, held.fit)
        else:
            found = question.asks and isinstance(choose(self._state, question), Chosen)
        if found:
            self._next = now + GAP
            self._sleepers.woken(pod.uid, now)
        else:
            self._sleepers.none(pod.uid, now)
        return found

    async def _wake(self, pods: list[PodWords]) -> None:
        first = f"{pods[0].namespace}/{pods[0].name}"
        says = f"{first} and {len(pods) - 1} more at {time.time():.3f}"  # differs each time: else nothing would change
        try:
            await self._client.patch(self._path, {"metadata": {"annotations": {ROOM: says}}}, MERGE)
        except ApiError as e:
            if e.status != 404:
                self._log(f"service {SERVICE}: {e}")
