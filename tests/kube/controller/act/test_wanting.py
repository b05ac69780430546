"""Very many pods that may preempt: every namespace has its turn."""

from typing import Any

from oci_hook.kube.controller.act.wanting import MOST_PODS, Wanting
from oci_hook.kube.pod.asked import words
from tests.kube.cluster_objects import pod


def of(namespace: str, name: str, priority: int = 0) -> Any:
    made = pod(name, gpus=1, priority=priority)
    made["metadata"]["namespace"] = namespace
    return words(made)


def test_one_namespace_does_not_keep_others_out() -> None:
    wanting = Wanting()
    for n in range(MOST_PODS + 1):
        wanting.note(of("flood", f"p{n}"), ["a"], 0.0)
    for n in range(3):
        wanting.note(of("team", f"q{n}"), ["a"], 0.0)
    wanting.note(of("flood", "late"), ["a"], 0.0)
    assert len(wanting.pods) == MOST_PODS
    assert {"u-q0", "u-q1", "u-q2"} <= wanting.pods.keys() and "u-late" not in wanting.pods


def test_one_namespace_does_not_take_all_turns() -> None:
    wanting = Wanting()
    for n in range(50):
        wanting.note(of("flood", f"p{n}"), ["a"], 0.0)
    wanting.note(of("team", "q"), ["a"], 1.0)
    wanting.note(of("team", "high", 5), ["a"], 2.0)
    first = wanting.due(100.0)
    assert [want.pod.name for want in first][:2] == ["high", "p0"]
    wanting.charge("flood", 0.05, 100.0)  # the time was enough for one
    first[1].at = 101.0
    assert [want.pod.name for want in wanting.due(100.0)][:3] == ["high", "q", "p1"]
