"""Wake-ups of the scheduler for waiting pods, and their rate."""

import asyncio
import json
import time
from typing import Any

import pytest

from oci_hook.kube.answers import admission
from oci_hook.kube.controller.act import waker
from oci_hook.kube.controller.act.waker import AT_A_TIME, EVERY, GAP, MOST, PATIENCE, Waker
from oci_hook.kube.controller.api.client import Client
from oci_hook.kube.controller.api.objects import PODS, slim
from oci_hook.kube.controller.api.shallow import decode
from oci_hook.kube.link.kubeconfig import Credential
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import PodWords, words
from oci_hook.kube.preemption.preempt import plan
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, node, pod
from tests.kube.controller.parts import context


@pytest.fixture
def state() -> ClusterState:
    made = ClusterState()
    made.apply_node(node("a", 1000))
    return made


def waker_of(state: ClusterState, decides: bool = True) -> Waker:
    client = Client(Credential("http://127.0.0.1:1", token="x"))
    return Waker(context(client, state, leads=lambda: decides))


def woken(one: Waker, now: float) -> list[str]:
    return [found.name for found in one.due(now) if one.room(found, now)]


def times(one: Waker, name: str, seconds: int) -> list[int]:
    return [now for now in range(0, seconds, int(EVERY)) if name in woken(one, now)]


def test_a_pod_that_has_room_after_a_while_is_one_to_wake_for(state: ClusterState) -> None:
    state.apply_pod(pod("p", memory=600))
    one = waker_of(state)
    assert woken(one, 0.0) == [] and woken(one, PATIENCE - 0.1) == []
    assert woken(one, PATIENCE) == ["p"]


def test_a_pod_without_room_is_looked_at_again_and_woken_as_soon_as_there_is(state: ClusterState) -> None:
    state.apply_pod(pod("holder", memory=600, node_name="a"))
    state.apply_pod(pod("p", memory=1001))
    one = waker_of(state)
    assert times(one, "p", 400) == []
    state.apply_node(node("b", 2000))
    assert woken(one, 400.0) == ["p"]


def test_a_pod_that_something_else_keeps_is_woken_for_less_and_less(state: ClusterState) -> None:
    state.apply_pod(pod("p", memory=600))
    found = times(waker_of(state), "p", 3600)
    pauses = [later - earlier for earlier, later in zip(found, found[1:], strict=False)]
    assert pauses[:4] == [GAP, 2 * GAP, 4 * GAP, 8 * GAP] and pauses[-1] == MOST


def test_all_together_wake_once_in_a_while_and_a_bounded_number_is_looked_at(state: ClusterState) -> None:
    for n in range(3 * AT_A_TIME):
        state.apply_pod(pod(f"p{n}", memory=600))
    one, seen = waker_of(state), []
    woken(one, 0.0)
    for now in range(8, 40, 2):
        found = woken(one, float(now))
        assert len(found) <= AT_A_TIME
        seen += [(now, name) for name in found]
    moments = sorted({now for now, _ in seen})
    assert all(later - earlier >= GAP for earlier, later in zip(moments, moments[1:], strict=False))
    assert len({name for _, name in seen}) == 3 * AT_A_TIME, "each pod has its turn"


def test_who_is_not_woken_for(state: ClusterState) -> None:
    """Not for pods without a request, pods about to be bound, pods of other namespaces, and deleted pods."""
    state.apply_pod(pod("plain"))
    stranger = pod("stranger", memory=1)
    stranger["metadata"]["namespace"] = "elsewhere"
    state.apply_pod(stranger)
    state.apply_pod(pod("gone", memory=1))
    one = waker_of(state)
    assert woken(one, 0.0) == []
    state.remove_pod("u-gone", 1.0)
    assert woken(one, 60.0) == []


def test_a_pod_that_cannot_be_read_does_not_end_the_controller(
    state: ClusterState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state.apply_pod(pod("typo", node_placement="Spread"))
    state.apply_pod(pod("bad", memory=600))
    assert times(waker_of(state), "typo", 100) == []

    def unread(found: ClusterState, question: Question) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(waker, "choose", unread)
    assert times(waker_of(state), "bad", 100) == []
    assert {line.partition(":")[0] for line in caplog.messages} == {"default/typo", "default/bad"}
    assert len(caplog.messages) <= 2 * 4, "each is looked at less and less often"


@pytest.mark.parametrize(
    ("part", "more"),
    [
        ("spec", {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),
        ("metadata", {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["batch.kubernetes.io/job-tracking"]}),
        ("status", {"phase": "Failed"}),
    ],
)
def test_a_pod_that_the_scheduler_does_not_try_is_not_woken_for(
    state: ClusterState, part: str, more: dict[str, Any]
) -> None:
    there = pod("p", memory=600)
    other = {**there, part: {**there[part], **more}}
    state.apply_pod(slim(decode(json.dumps(other).encode(), PODS.objects)))
    one = waker_of(state)
    assert times(one, "p", 100) == []
    state.apply_pod(there)
    assert woken(one, 100.0) == [] and woken(one, 100.0 + PATIENCE) == ["p"]


def test_who_waits_long_comes_first_and_a_woken_pod_that_went_is_forgotten(state: ClusterState) -> None:
    state.apply_pod(pod("p", memory=600))
    one = waker_of(state)
    assert woken(one, 0.0) == [] and woken(one, PATIENCE) == ["p"]
    state.remove_pod("u-p", 9.0)
    assert woken(one, 10.0) == []
    state.apply_pod(pod("p", memory=600))  # the same pod starts with a fresh interval
    assert woken(one, 30.0) == [] and woken(one, 30.0 + PATIENCE) == ["p"]


def test_pods_that_take_long_to_look_at_cost_no_more_than_a_small_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch, state: ClusterState
) -> None:
    for n in range(3):
        state.apply_pod(pod(f"p{n}", memory=1001))
    one, looked = waker_of(state), []
    assert one.due(0.0) == []

    def slow(found: PodWords, now: float) -> str:
        looked.append(found.name)
        time.sleep(2 * waker.LONG)
        return ""

    monkeypatch.setattr(one, "room", slow)
    monkeypatch.setattr(one, "due", lambda now, due=one.due: due(PATIENCE))
    rest = asyncio.run(one.turn())
    assert len(looked) == 1 and rest >= waker.REST * 2 * waker.LONG


def test_the_nodes_that_have_room_change(monkeypatch: pytest.MonkeyPatch, state: ClusterState) -> None:
    """Schedulers of all versions look again when a node's labels change. An equal value would be no change."""
    state.apply_node(node("b", 2000))
    for name, memory in (("p", 600), ("q", 1500), ("none", 3000)):
        state.apply_pod(pod(name, memory=memory))
    said: list[Any] = []

    class Recorder(Client):
        async def patch(self, path: str, body: Any, kind: str) -> Any:
            said.append((path, body))

    one = Waker(context(Recorder(Credential("http://127.0.0.1:1", token="x")), state))
    one.due(0.0)
    monkeypatch.setattr(one, "due", lambda now: state.waiting())
    for moment in (10**9, 10**9 + 10**6):
        monkeypatch.setattr(waker.time, "time_ns", lambda moment=moment: moment)
        asyncio.run(one.turn())
    assert said == [
        (f"/api/v1/nodes/{name}", {"metadata": {"labels": {"gpu-hook.io/room": at}}})
        for at in ("1000", "1001")
        for name in ("a", "b")
    ]


def test_a_pod_whose_room_is_held_is_woken_for_as_soon_as_its_victims_have_ended(state: ClusterState) -> None:
    victim, big = pod("victim", memory=600), pod("big", memory=700, priority=9)
    state.apply_pod(victim)
    state.apply_pod(bound(victim, "a", alloc_of(admission.bind(binding(victim, "a"), state, 0.0, SIGNER.sign))))
    state.apply_pod(big)
    found = plan(state, Question(words(big)), "a")
    assert found is not None
    state.hold(words(big), "a", found.fit, found.victims, 1000.0)
    one = waker_of(state)
    assert times(one, "big", 20) == []
    state.remove_pod("u-victim", 20.0)
    state.tick(60.0)
    assert woken(one, 60.0) == ["big"]
    state.reserve(words(big), "a", found.fit, 60.0)  # the scheduler asked, and the Binding is under way
    assert woken(one, 100.0) == []


@pytest.mark.parametrize("floods", (1, 2 * AT_A_TIME))
@pytest.mark.parametrize("looks", (1, AT_A_TIME))
def test_namespaces_take_turns_however_many_pods_wait_in_one(floods: int, looks: int) -> None:
    """looks: pods for which a turn has time."""

    def of(namespace: str, name: str) -> PodWords:
        obj = pod(f"{namespace}-{name}", memory=10**6)
        obj["metadata"]["namespace"] = namespace
        return words(obj)

    waiting = [of(f"flood{n}", f"p{i}") for n in range(floods) for i in range(30)] + [of("team", "one")]
    sleepers, seen = waker.Sleepers(), []
    for number in range(100):
        now = number * EVERY
        for found in sleepers.due(waiting, now)[:looks]:
            sleepers.none(found.uid, now)
            if found.namespace == "team":
                seen.append(number)
    most = -(-(floods + 1) // looks) + 1  # rounds in which each namespace has its turn
    assert seen[0] <= PATIENCE / EVERY + most
    assert max(later - earlier for earlier, later in zip(seen, seen[1:], strict=False)) <= most
    sleepers.due([of("other", "p")], 1e6)
    assert not sleepers._last
