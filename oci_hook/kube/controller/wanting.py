"""The pods that found no room on any node, and when the preemptor looks at each again. Pure."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from oci_hook.kube.pods import PodWords

FIRST = 2.0  # seconds after the refusal: Kubernetes' own preemption comes first
AGAIN, MOST = 10.0, 300.0  # after an attempt without an outcome
MOST_PODS, MOST_NODES = 1024, 500


def in_turns(pods: Iterable[PodWords]) -> list[PodWords]:
    """One of each namespace, then the next one of each: nobody comes late because of another's many."""
    ranks: Counter[str] = Counter()
    found = []
    for pod in pods:
        found.append((ranks[pod.namespace], pod))
        ranks[pod.namespace] += 1
    return [pod for _, pod in sorted(found, key=lambda one: one[0])]


class Want:
    """nodes: where the pod may go by everything but GPUs. at: when it is looked at next. acted: victims were ended for it.
    held_until: when room is held for it no longer."""

    __slots__ = ("pod", "nodes", "at", "tries", "acted", "held_until")

    def __init__(self, pod: PodWords, at: float) -> None:
        self.pod, self.at = pod, at
        self.nodes: tuple[str, ...] = ()
        self.tries = 0
        self.acted = False
        self.held_until: float | None = None


class Wanting:
    def __init__(self) -> None:
        self.pods: dict[str, Want] = {}
        self._looked: dict[str, float] = {}  # namespace -> when one of its pods was looked at last

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
        """Where others are less important, or of a namespace that has more here: nobody keeps others out by sheer number."""
        least = min(want.pod.priority for want in self.pods.values())
        counts = Counter(want.pod.namespace for want in self.pods.values())
        lower = [want.pod for want in self.pods.values() if want.pod.priority == least]
        worst = max(lower, key=lambda other: counts[other.namespace])
        if least > pod.priority or (least == pod.priority and counts[worst.namespace] <= counts[pod.namespace] + 1):
            return False
        del self.pods[worst.uid]
        return True

    def drop(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def due(self, now: float) -> list[Want]:
        """The most important first; of equal ones, one of each namespace, that first which was looked at longest ago."""
        found = sorted((want for want in self.pods.values() if want.at <= now), key=lambda want: want.at)
        ranks: Counter[tuple[int, str]] = Counter()
        keys = {}
        for want in found:
            group = want.pod.priority, want.pod.namespace
            keys[want.pod.uid] = -group[0], ranks[group], self._looked.get(group[1], 0.0), want.at
            ranks[group] += 1
        return sorted(found, key=lambda want: keys[want.pod.uid])

    def looks(self, want: Want, now: float) -> None:
        """At this one, now."""
        if len(self._looked) > MOST_PODS:
            here = {each.pod.namespace for each in self.pods.values()}
            self._looked = {name: at for name, at in self._looked.items() if name in here}
        self._looked[want.pod.namespace] = now

    def in_vain(self, want: Want, now: float) -> None:
        want.at = now + min(MOST, AGAIN * 2 ** min(want.tries, 8))
        want.tries += 1
