"""Any number of budgets, nodes and pods costs preemption bounded time, and protects no pod."""

from typing import Any

import pytest

from oci_hook.kube.answers import admission
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import words
from oci_hook.kube.preemption import preempt
from oci_hook.kube.preemption.disruption import MOST_WORDS, Budgets, budget
from oci_hook.kube.preemption.fragments import MOST_KINDS, Fragments
from tests.kube.cluster_objects import SIGNER, alloc_of, asked, binding, bound, cluster, node, pod

MANY = tuple(f"c{n}" for n in range(64))


def run(state: ClusterState, obj: Any, where: str) -> None:
    state.apply_pod(obj)
    text = alloc_of(admission.bind(binding(obj, where), state, 0.0, SIGNER.sign))
    state.apply_pod(bound(obj, where, text))


def a_budget(uid: str, expressions: list[Any], allowed: int = 5) -> Any:
    meta = {"uid": uid, "namespace": "default", "name": uid, "generation": 1}
    status = {"disruptionsAllowed": allowed, "observedGeneration": 1}
    return budget({"metadata": meta, "spec": {"selector": {"matchExpressions": expressions}}, "status": status})


def test_more_budgets_than_can_be_compared_protect_their_namespace_alone() -> None:
    state = cluster(node("a", 100, 100))
    mine = pod("mine", memory=60, devices="GPU-a-0")
    other = pod("other", memory=60, devices="GPU-a-1")
    other["metadata"]["namespace"] = "default"
    run(state, mine, "a")
    run(state, other, "a")
    expressions = [{"key": f"k{n}", "operator": "DoesNotExist"} for n in range(MOST_WORDS)]
    expressions.append({"key": "never", "operator": "Exists"})
    budgets = Budgets([a_budget("b", expressions)])
    big = asked(pod("big", gpus=1, priority=9))
    assert preempt.plan(state, big, "a", budgets) is preempt.KEPT  # not compared: that would take seconds
    budgets.drop("b")
    assert isinstance(preempt.plan(state, asked(pod("big", gpus=1, priority=9)), "a", budgets), preempt.EvictionPlan)


def test_a_budgets_change_is_seen_though_what_it_protects_is_remembered() -> None:
    state = cluster(node("a", 100))
    run(state, pod("p", memory=60), "a")
    found = state.pods["u-p"]
    budgets = Budgets([a_budget("b", [{"key": "x", "operator": "DoesNotExist"}])])
    assert [one.uid for one in budgets.over(found)] == ["b"]
    budgets.put(a_budget("b", [{"key": "x", "operator": "Exists"}]))
    assert budgets.over(found) == ()
    budgets.put(a_budget("c", []))
    assert [one.uid for one in budgets.over(found)] == ["c"]
    budgets.drop("c")
    assert budgets.over(found) == ()


def test_a_plan_on_a_node_of_512_gpus_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster(node("huge", *[1000] * 512))
    run(state, pod("small", memory=600, devices="GPU-huge-0"), "huge")
    looked = []
    real = preempt.fit
    monkeypatch.setattr(preempt, "fit", lambda *args: looked.append(1) or real(*args))
    assert preempt.plan(state, asked(pod("large", containers=MANY, gpus=4, priority=9)), "huge") is None
    assert not looked


@pytest.mark.parametrize("name", ("../namespaces/kube-system/pods/x", "gone", "", "x" * 100_000))
def test_nodes_that_are_not_there_are_not_marked(name: str) -> None:
    state = cluster(node("good", 1000))
    waits = pod("p", memory=10)
    state.apply_pod(waits)
    fragments = Fragments(state)
    fragments.denied(words(waits), name)
    assert not fragments
    assert not set().union(*fragments.marks())


def test_kinds_of_pods_that_are_denied_for_ever_keep_nobody_from_being_led_on() -> None:
    state = cluster(node("bad", 50, 50, 50), node("good", 500, 500))
    fragments = Fragments(state)
    for n in range(3 * MOST_KINDS):
        stays = pod(f"stays-{n}", memory=10**6 + n)
        state.apply_pod(stays)
        fragments.denied(words(stays), "bad")
    waits = pod("p", memory=100)
    state.apply_pod(waits)
    fragments.denied(words(waits), "bad")
    looks = [set().union(*fragments.marks()) for _ in range(6)]
    assert {"bad"} in looks


def test_a_small_online_container_makes_no_online_pod() -> None:
    mixed = {"memory__a": 1, "class__a": "online", "memory__b": 900, "class__b": "offline"}
    assert not preempt.online(asked(pod("m", containers=("a", "b"), **mixed)))
    assert preempt.online(asked(pod("m", containers=("a", "b"), **{**mixed, "class__b": "online"})))
    assert not preempt.online(asked(pod("m")))
