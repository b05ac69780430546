"""The pods that found no room on any node, and when the preemptor looks at each again. Pure.

Places in the list and planning time are shared between namespaces: whoever lets a thousand pods wait, or pods that take long
to plan, keeps others waiting no longer than its share.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from oci_hook.kube.pods import PodWords
from oci_hook.kube.preempt import Plan

FIRST = 2.0  # seconds after the refusal: Kubernetes' own preemption comes first
AGAIN, MOST = 10.0, 300.0  # after an attempt without an outcome
MOST_PODS, MOST_NODES = 1024, 500
HALF = 60.0  # seconds after which half of the time that was spent on a namespace is forgotten
STEP = 0.5  # seconds of planning: who used so much more comes later, however important


class Search:
    """How far one look at a pod's nodes has come; it may be spread over several rounds. nodes: those of its beginning. free:
    how many were looked at for room to come; planned: how many for victims. found: of these, with victims. kept: with
    victims that may not end."""

    __slots__ = ("nodes", "began", "free", "planned", "found", "kept", "best")

    def __init__(self, nodes: tuple[str, ...], began: float) -> None:
        self.nodes, self.began = nodes, began
        self.free = self.planned = self.found = self.kept = 0
        self.best: Plan | None = None


class Want:
    """nodes: where the pod may go by everything but GPUs. at: when it is looked at next. acted: victims were ended for it;
    has_acted: ever. until: for how long it waits for others to end; None while it does not."""

    __slots__ = ("pod", "nodes", "at", "tries", "acted", "has_acted", "until", "search")

    def __init__(self, pod: PodWords, at: float) -> None:
        self.pod, self.at = pod, at
        self.nodes: tuple[str, ...] = ()
        self.tries = 0
        self.acted = self.has_acted = False
        self.until: float | None = None
        self.search: Search | None = None


class Wanting:
    def __init__(self) -> None:
        self.pods: dict[str, Want] = {}
        self._spent: dict[str, tuple[float, float]] = {}  # namespace -> seconds of planning, at that time

    def note(self, pod: PodWords, nodes: Iterable[str], now: float, more: bool = False) -> None:
        """more: these nodes besides those that are known: where nobody but the Binding asks, it asks for one."""
        want = self.pods.get(pod.uid)
        if want is None:
            if len(self.pods) >= MOST_PODS and not self._room_for(pod):
                return
            want = self.pods[pod.uid] = Want(pod, now + FIRST)
        known = want.nodes if more else ()
        want.nodes = tuple(islice(dict.fromkeys((*nodes, *known)), MOST_NODES))

    def _room_for(self, pod: PodWords) -> bool:
        """Drops one of the namespace with the most pods, where this pod's has fewer; else a less important one."""
        count = Counter(want.pod.namespace for want in self.pods.values())
        own, largest = count[pod.namespace], max(count.values())
        if own + 1 < largest:
            may_go = [want for want in self.pods.values() if count[want.pod.namespace] == largest]
        else:
            lesser = (want for want in self.pods.values() if want.pod.priority < pod.priority)
            may_go = [want for want in lesser if count[want.pod.namespace] >= own]
        if not may_go:
            return False
        # Who has acted rests for a time, which must not be forgotten. Of equal ones the newest goes.
        least = min(may_go, key=lambda want: (want.has_acted, want.pod.priority, -want.at))
        del self.pods[least.pod.uid]
        return True

    def drop(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def due(self, now: float) -> list[Want]:
        """First those of namespaces on which little time was spent lately; then the most important; of equal ones, who waits
        longest."""
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
