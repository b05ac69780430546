"""The pods that found no room on any node, and when the preemptor looks at each again. Pure."""

from collections.abc import Iterable
from itertools import islice

from oci_hook.kube.pods import PodWords

FIRST = 2.0  # seconds after the refusal: Kubernetes' own preemption comes first
AGAIN, MOST = 10.0, 300.0  # after an attempt without an outcome
MOST_PODS, MOST_NODES = 1024, 500


class Want:
    """nodes: where the pod may go by everything but GPUs. at: when it is looked at next. acted: victims were ended for it."""

    __slots__ = ("pod", "nodes", "at", "tries", "acted")

    def __init__(self, pod: PodWords, at: float) -> None:
        self.pod, self.at = pod, at
        self.nodes: tuple[str, ...] = ()
        self.tries = 0
        self.acted = False


class Wanting:
    def __init__(self) -> None:
        self.pods: dict[str, Want] = {}

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
        least = min(self.pods.values(), key=lambda want: want.pod.priority)
        if least.pod.priority >= pod.priority:
            return False
        del self.pods[least.pod.uid]
        return True

    def drop(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def due(self, now: float) -> list[Want]:
        """The most important first; of equal ones, who waits longest."""
        found = [want for want in self.pods.values() if want.at <= now]
        return sorted(found, key=lambda want: (-want.pod.priority, want.at))

    def in_vain(self, want: Want, now: float) -> None:
        want.at = now + min(MOST, AGAIN * 2 ** min(want.tries, 8))
        want.tries += 1
