"""Finds online pods about which the scheduler does not ask us, since offline pods of the same priority hold the sums everywhere."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from oci_hook.kube import in_tree
from oci_hook.kube.choose import Question
from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.wanting import Wanting
from oci_hook.kube.pods import PodWords
from oci_hook.kube.preempt import Terms, online, yields
from oci_hook.kube.state import ClusterState

PATIENCE = 3.0  # seconds that a pod may wait before we ask the API server why
NEW_AT_A_TIME, ASKED_AT_A_TIME = 100, 4
LONG = 0.05  # seconds for the words of new pods, then the others have to wait for the next time
AGAIN, MOST = 15.0, 300.0


class _Seen:
    __slots__ = ("online", "at", "wait")

    def __init__(self, is_online: bool, at: float) -> None:
        self.online, self.at, self.wait = is_online, at, AGAIN


class Unasked:
    """enabled: the namespaces whose pods get GPUs; for others nobody ends."""

    def __init__(
        self,
        client: Client,
        state: ClusterState,
        wanting: Wanting,
        terms: Terms,
        enabled: Collection[str],
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._client, self._state, self._wanting, self._terms, self._log = client, state, wanting, terms, log
        self._enabled = enabled
        self._seen: dict[str, _Seen] = {}

    async def look(self, now: float) -> None:
        """A bounded number of pods each time."""
        if not self._terms.equal_offline:
            return
        waiting = {pod.uid: pod for pod in self._state.waiting() if pod.namespace in self._enabled}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in waiting}
        fresh = _in_turn([pod for uid, pod in waiting.items() if uid not in self._seen], NEW_AT_A_TIME)
        spent = 0.0
        for uid in fresh:
            if spent > LONG:
                break
            began = time.perf_counter()
            self._seen[uid] = _Seen(self._is_online(waiting[uid]), now + PATIENCE)
            spent += time.perf_counter() - began
            await asyncio.sleep(0)  # requests come between: the words of one pod take up to 30 ms
        due = [uid for uid, seen in self._seen.items() if seen.online and seen.at <= now]
        due = [uid for uid in due if uid not in self._wanting.pods and uid not in self._state.reservations]
        due.sort(key=lambda uid: self._seen[uid].at)
        for uid in _in_turn([waiting[uid] for uid in due], ASKED_AT_A_TIME):
            seen = self._seen[uid]
            seen.at, seen.wait = now + seen.wait, min(MOST, seen.wait * 2)
            await self._ask(waiting[uid], now)

    def _is_online(self, pod: PodWords) -> bool:
        try:
            return pod.may_preempt and online(Question(pod))
        except Exception as e:  # a tenant's words: one pod that we cannot read must not end the controller
            self._log(f"{pod.namespace}/{pod.name}: what it asks for cannot be read: {type(e).__name__}")
            return False

    async def _ask(self, pod: PodWords, now: float) -> None:
        try:
            found = await self._client.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
        except ApiError as e:
            if e.status != 404:
                raise
            return
        if found["metadata"]["uid"] == pod.uid and in_tree.waits_for_sums(found):
            question = Question(pod)
            nodes = [
                node.name
                for node in self._state.nodes.values()
                if any(
                    each.rows and each.offline and yields(each, question, self._terms) for each in node.pods.values()
                )
            ]
            if nodes:
                self._wanting.note(pod, nodes, now)


def _in_turn(pods: Iterable[PodWords], most: int) -> list[str]:
    """UIDs: the first of each namespace, then the second of each, and so on."""
    count: Counter[str] = Counter()
    turns: list[tuple[int, str]] = []
    for pod in pods:
        turns.append((count[pod.namespace], pod.uid))
        count[pod.namespace] += 1
    return [uid for _, uid in sorted(turns, key=lambda turn: turn[0])[:most]]
