"""Finds online pods about which the scheduler does not ask us, since offline pods of the same priority hold the sums everywhere."""

from oci_hook.kube import in_tree
from oci_hook.kube.choose import Question
from oci_hook.kube.controller.client import ApiError, Client
from oci_hook.kube.controller.wanting import Wanting, in_turns
from oci_hook.kube.pods import PodWords
from oci_hook.kube.preempt import Terms, online, yields
from oci_hook.kube.state import ClusterState

PATIENCE = 3.0  # seconds that a pod may wait before we ask the API server why
NEW_AT_A_TIME, ASKED_AT_A_TIME = 100, 4
AGAIN, MOST = 15.0, 300.0


class _Seen:
    __slots__ = ("online", "at", "wait")

    def __init__(self, is_online: bool, at: float) -> None:
        self.online, self.at, self.wait = is_online, at, AGAIN


class Unasked:
    def __init__(self, client: Client, state: ClusterState, wanting: Wanting, terms: Terms) -> None:
        self._client, self._state, self._wanting, self._terms = client, state, wanting, terms
        self._seen: dict[str, _Seen] = {}

    async def look(self, now: float) -> None:
        """A bounded number of pods each time."""
        if not self._terms.equal_offline:
            return
        waiting = {pod.uid: pod for pod in self._state.waiting()}
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in waiting}
        fresh = in_turns(pod for uid, pod in waiting.items() if uid not in self._seen)[:NEW_AT_A_TIME]
        for pod in fresh:
            is_online = pod.may_preempt and online(Question(pod))
            self._seen[pod.uid] = _Seen(is_online, now + PATIENCE)
        due = [uid for uid, seen in self._seen.items() if seen.online and seen.at <= now]
        due = [uid for uid in due if uid not in self._wanting.pods and uid not in self._state.reservations]
        oldest = sorted(due, key=lambda uid: self._seen[uid].at)
        for pod in in_turns(waiting[uid] for uid in oldest)[:ASKED_AT_A_TIME]:
            seen = self._seen[pod.uid]
            seen.at, seen.wait = now + seen.wait, min(MOST, seen.wait * 2)
            await self._ask(pod, now)

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
