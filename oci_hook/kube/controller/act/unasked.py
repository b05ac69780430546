"""Finds online pods for which the scheduler never calls our extender: offline pods of the same priority take the node sums everywhere."""

import asyncio
import logging
import time

from oci_hook.kube.controller.act.turns import in_turn
from oci_hook.kube.controller.act.wanting import Wanting
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.controller.context import Context
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.pod.asked import PodWords
from oci_hook.kube.preemption import in_tree
from oci_hook.kube.preemption.preempt import PreemptionTerms, online, yields

LOG = logging.getLogger(__name__)

PATIENCE = 3.0  # seconds that a pod waits before we read its condition from the API server
NEW_AT_A_TIME, ASKED_AT_A_TIME = 100, 4
LONG = 0.05  # seconds for parsing new pods in one look; the others wait for the next one
AGAIN, MOST = 15.0, 300.0


class _Seen:
    __slots__ = ("online", "at", "wait")

    def __init__(self, is_online: bool, at: float) -> None:
        self.online, self.at, self.wait = is_online, at, AGAIN


class Unasked:
    def __init__(self, context: Context, wanting: Wanting, terms: PreemptionTerms) -> None:
        self._client, self._state, self._enabled = context.client, context.state, context.enabled
        self._wanting, self._terms = wanting, terms
        self._seen: dict[str, _Seen] = {}

    async def look(self, now: float) -> None:
        """Examines a bounded number of pods."""
        if not self._terms.equal_offline:
            return
        waiting = {pod.uid: pod for pod in self._state.waiting() if pod.namespace in self._enabled}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in waiting}
        fresh = in_turn((pod for uid, pod in waiting.items() if uid not in self._seen), NEW_AT_A_TIME)
        spent = 0.0
        for pod in fresh:
            if spent > LONG:
                break
            began = time.perf_counter()
            self._seen[pod.uid] = _Seen(self._is_online(pod), now + PATIENCE)
            spent += time.perf_counter() - began
            await asyncio.sleep(0)  # lets requests be answered: parsing one pod takes up to 30 ms
        due = [uid for uid, seen in self._seen.items() if seen.online and seen.at <= now]
        due = [uid for uid in due if uid not in self._wanting.pods and uid not in self._state.reservations]
        due.sort(key=lambda uid: self._seen[uid].at)
        for pod in in_turn((waiting[uid] for uid in due), ASKED_AT_A_TIME):
            seen = self._seen[pod.uid]
            seen.at, seen.wait = now + seen.wait, min(MOST, seen.wait * 2)
            await self._ask(pod, now)

    def _is_online(self, pod: PodWords) -> bool:
        try:
            return pod.may_preempt and online(Question(pod))
        except Exception as e:  # a tenant's annotations must not end the controller
            LOG.warning(f"{pod.namespace}/{pod.name}: its request cannot be read: {type(e).__name__}")
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
