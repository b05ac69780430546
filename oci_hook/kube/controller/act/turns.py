"""Takes turns between namespaces if only some of their pods can be examined. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from oci_hook.kube.pod.asked import PodWords


def in_turn(pods: Iterable[PodWords], most: int, last: "Mapping[str, int] | None" = None) -> list[PodWords]:
    """The first pod of each namespace, then the second of each, and so on. last: namespace -> the number of its last turn;
    namespaces with none or an earlier one come first."""
    count: Counter[str] = Counter()
    turns: list[tuple[int, int, PodWords]] = []
    for pod in pods:
        turns.append((count[pod.namespace], last.get(pod.namespace, 0) if last else 0, pod))
        count[pod.namespace] += 1
    return [pod for _, _, pod in sorted(turns, key=lambda turn: turn[:2])[:most]]
