"""The pods that found no room on any node, and when the preemptor tries each again. Pure.

Namespaces share the list and the planning time: a thousand waiting pods of one namespace, or pods that take long to plan, do not
starve the others.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from oci_hook.kube.pod.asked import PodWords
from oci_hook.kube.preemption.preempt import EvictionPlan

FIRST = 2.0  # seconds after the refusal; Kubernetes' own preemption comes first
AGAIN, MOST = 10.0, 300.0  # seconds after an attempt in vain
MOST_PODS, MOST_NODES = 1024, 500
HALF = 60.0  # seconds; half-life of a namespace's planning time
STEP = 0.5  # seconds; a namespace with this much more planning time comes later, whatever the priorities


class Search:
    """Progress of one search over a pod's nodes, which may take several rounds. nodes: all nodes of the search. free: nodes
    checked for room that terminating pods will leave. planned: nodes checked for victims. found: nodes with victims. kept: nodes
    whose victims are protected."""

    __slots__ = ("nodes", "began", "free", "planned", "found", "kept", "best")

    def __init__(self, nodes: tuple[str, ...], began: float) -> None:
        self.nodes, self.began = nodes, began
        self.free = self.planned = self.found = self.kept = 0
        self.best: EvictionPlan | None = None


class Want:
    """nodes: those that fit but for GPUs. at: time of the next attempt. acted: the last attempt evicted victims. has_acted: any
    attempt did. until: the end of its wait for terminating pods; None if it does not wait. room: since when a node has room
    for it; None: none has."""

    __slots__ = ("pod", "nodes", "at", "tries", "acted", "has_acted", "until", "room", "search")

    def __init__(self, pod: PodWords, at: float) -> None:
        self.pod, self.at = pod, at
        self.nodes: tuple[str, ...] = ()
        self.tries = 0
        self.acted = self.has_acted = False
        self.until: float | None = None
        self.room: float | None = None
        self.search: Search | None = None


class Wanting:
    def __init__(self) -> None:
        self.pods: dict[str, Want] = {}
        self._spent: dict[str, tuple[float, float]] = {}  # namespace -> (seconds of planning, time of this value)

    def note(self, pod: PodWords, nodes: Iterable[str], now: float, more: bool = False) -> None:
        """more: add the nodes to the known ones instead of replacing them."""
        want = self.pods.get(pod.uid)
        if want is None:
            if len(self.pods) >= MOST_PODS and not self._room_for(pod):
                return
            want = self.pods[pod.uid] = Want(pod, now + FIRST)
        known = want.nodes if more else ()
        want.nodes = tuple(islice(dict.fromkeys((*nodes, *known)), MOST_NODES))

    def _room_for(self, pod: PodWords) -> bool:
        """Drops a pod of the fullest namespace if ours has at least two pods fewer; otherwise one of lower priority, from a
        namespace with at least as many pods as ours. False: there is no such pod."""
        count = Counter(want.pod.namespace for want in self.pods.values())
        own, largest = count[pod.namespace], max(count.values())
        if own + 1 < largest:
            may_go = [want for want in self.pods.values() if count[want.pod.namespace] == largest]
        else:
            lesser = (want for want in self.pods.values() if want.pod.priority < pod.priority)
            may_go = [want for want in lesser if count[want.pod.namespace] >= own]
        if not may_go:
            return False
        # A pod with evictions goes last, since its back-off must not be forgotten. Of equal pods the newest goes.
        least = min(may_go, key=lambda want: (want.has_acted, want.pod.priority, -want.at))
        del self.pods[least.pod.uid]
        return True

    def drop(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def due(self, now: float) -> list[Want]:
        """The pods due now: namespaces with little recent planning time first, then by priority, then the longest waiting."""
        found = [want for want in self.pods.values() if want.at <= now]
        spent = {name: self.spent(name, now) for name in {want.pod.namespace for want in found}}

        def order(want: Want) -> tuple[int, int, float, float]:
            time = spent[want.pod.namespace]
            return int(time / STEP), -want.pod.priority, time, want.at

        return sorted(found, key=order)

    def spent(self, namespace: str, now: float) -> float:
        seconds, at = self._spent.get(namespace, (0.0, now))
        return float(seconds * 0.5 ** ((now - at) / HALF))

    def charge(self, namespace: str, seconds: float, now: float) -> None:
        self._spent[namespace] = self.spent(namespace, now) + seconds, now

    def tidy(self, now: float) -> None:
        self._spent = {name: it for name, it in self._spent.items() if self.spent(name, now) > 0.001}

    def in_vain(self, want: Want, now: float) -> None:
        want.at = now + min(MOST, AGAIN * 2 ** min(want.tries, 8))
        want.tries += 1
