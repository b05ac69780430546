"""The extender's answers to the scheduler: filter and preemption."""

import json
from typing import Any

import pytest

from oci_hook.core.allocate import allocate
from oci_hook.kube.answers import admission, extender
from oci_hook.kube.placing import choose, fit
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.preemption import preempt as preempt_module
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, node, pod


def cluster(*objects):
    state = ClusterState(verify=SIGNER.holds)
    for one in objects:
        (state.apply_node if one["kind"] == "Node" else state.apply_pod)(one)
    return state


def ask(state, obj, *names, **more):
    return extender.filter({"Pod": obj, "Nodes": None, "NodeNames": list(names)}, state, 0.0, **more)


def running(state, obj, name):
    state.apply_pod(obj)
    answer = admission.bind(binding(obj, name), state, 0.0, SIGNER.sign)
    state.apply_pod(bound(obj, name, alloc_of(answer)))


def test_one_node_comes_back_and_is_reserved():
    state = cluster(node("a", 100), node("b", 100))
    answer = ask(state, pod("p", memory=60), "a", "b")
    assert answer["NodeNames"] in (["a"], ["b"]) and not answer["FailedNodes"] and answer["Error"] == ""
    other = ask(state, pod("q", memory=60), "a", "b")["NodeNames"]
    assert {*other, *answer["NodeNames"]} == {"a", "b"}
    assert json.loads(json.dumps(answer)) == answer


def test_only_nodes_that_the_scheduler_names_are_chosen():
    state = cluster(*(node(name, 100) for name in "abcdefgh"))
    assert ask(state, pod("p", memory=60), "h")["NodeNames"] == ["h"]
    assert ask(state, pod("p", memory=60))["NodeNames"] == []


def test_full_objects_are_answered_as_full_objects():
    objects = [node("a", 100), node("b", 10)]
    state = cluster(*objects)
    answer = extender.filter({"Pod": pod("p", memory=60), "Nodes": {"items": objects}}, state, 0.0)
    assert answer["Nodes"] == {"items": [objects[0]]} and answer["NodeNames"] is None


def test_why_no_node_has_room():
    state = cluster(node("a", 100), node("b", 100), node("small", 10))
    running(state, pod("x", memory=70), "a")
    running(state, pod("y", gpus=1), "b")
    answer = ask(state, pod("p", memory=60), "a", "b", "small", "unknown")
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"]["a"] == answer["FailedNodes"]["b"] == "GH-201: no GPU has 60 MiB free"
    assert answer["FailedNodes"]["unknown"].startswith("GH-606")
    assert set(answer["FailedAndUnresolvableNodes"]) == {"small", "unknown"}  # preemption there would not help
    assert not state.reservations


def test_reasons_hold_no_per_cent_sign():
    """Kubernetes 1.20's scheduler uses a reason as a format: "75 %!o(MISSING)f" in the pod's event."""
    state = cluster(node("a", 100))
    running(state, pod("x", memory=70, compute=60), "a")
    for asked, said in (
        ({"memory": "75%"}, "75 per cent of"),
        ({"memory": "5", "compute": "70"}, "70 per cent compute"),
    ):
        reason = ask(state, pod("p", **asked), "a")["FailedNodes"]["a"]
        assert said in reason and "%" not in reason


@pytest.mark.parametrize("said", [{"memory": "4G"}, {"gpus": "9"}, {"memory": "5", "devices": "GPU-x"}])
def test_what_no_node_can_ever_have_is_final(said):
    answer = ask(cluster(node("a", 100)), pod("p", **said), "a")
    assert answer["NodeNames"] == [] and answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]


def test_a_pod_that_asks_for_nothing_passes_but_not_onto_anothers_node():
    state = cluster(node("a", 100), node("b", 100))
    assert ask(state, pod("plain"), "a", "b", "c")["NodeNames"] == ["a", "b", "c"]
    mine = ask(state, pod("mine", node="exclusive"), "a", "b")["NodeNames"][0]
    answer = ask(state, pod("plain"), "a", "b")
    assert mine not in answer["NodeNames"] and answer["FailedNodes"][mine].startswith("GH-609")
    assert ask(state, pod("ds", owner="DaemonSet"), "a", "b")["NodeNames"] == ["a", "b"]


# --- preemption


def preempt(state, obj, *, meta=True, **proposed):
    given: dict[str, Any] = {
        name: {"Pods": [{"UID": u} for u in uids], "NumPDBViolations": 0} for name, uids in proposed.items()
    }
    if meta:
        args = {"Pod": obj, "NodeNameToVictims": None, "NodeNameToMetaVictims": given}
    else:
        full = {
            name: {"Pods": [{"metadata": {"uid": p["UID"]}} for p in one["Pods"]], "NumPDBViolations": 0}
            for name, one in given.items()
        }
        args = {"Pod": obj, "NodeNameToVictims": full, "NodeNameToMetaVictims": None}
    answer = extender.preempt(args, state)["NodeNameToMetaVictims"]
    return {name: {p["UID"] for p in one["Pods"]} for name, one in answer.items()}


def two_gpus():
    """Two pods of 50 MiB on each of two GPUs."""
    state = cluster(node("a", 100, 100))
    for name, gpu in (("a0", 0), ("b0", 0), ("a1", 1), ("b1", 1)):
        running(state, pod(name, memory=50, devices=f"GPU-a-{gpu}"), "a")
    return state


@pytest.mark.parametrize("meta", [True, False])
def test_victims_are_those_whose_end_makes_a_gpu_free(meta):
    """One pod of each GPU would satisfy the sums, but free no GPU."""
    found = preempt(two_gpus(), pod("p", gpus=1, priority=9), a=["u-a0", "u-a1"], meta=meta)
    assert found["a"] in ({"u-a0", "u-b0"}, {"u-a1", "u-b1"})


def test_victims_that_suffice_stay_as_proposed():
    assert preempt(two_gpus(), pod("p", memory=50, priority=9), a=["u-b1"]) == {"a": {"u-b1"}}


def test_a_node_where_no_choice_helps_is_left_out():
    assert preempt(two_gpus(), pod("p", memory=101, priority=9), a=["u-a0", "u-b0"]) == {}
    assert preempt(two_gpus(), pod("p", gpus=1, priority=9), unknown=["u-a0"]) == {}


def test_pods_of_the_same_or_a_higher_priority_stay():
    state = cluster(node("a", 100))
    running(state, pod("equal", memory=50, priority=9), "a")
    running(state, pod("low", memory=50, priority=1), "a")
    assert preempt(state, pod("p", gpus=1, priority=9), a=["u-low"]) == {}
    assert preempt(state, pod("p", memory=50, priority=9), a=["u-low"]) == {"a": {"u-low"}}


def test_victims_without_a_gpu_stay_victims():
    state = two_gpus()
    state.apply_pod(bound(pod("cpu"), "a", None))
    assert preempt(state, pod("p", memory=50, priority=9), a=["u-cpu", "u-a0"]) == {"a": {"u-cpu", "u-a0"}}
    assert preempt(state, pod("plain", priority=9), a=["u-cpu"]) == {"a": {"u-cpu"}}


def test_the_owner_of_a_node_can_be_a_victim():
    state = cluster(node("a", 100))
    running(state, pod("mine", node="exclusive"), "a")
    assert preempt(state, pod("p", memory=50, priority=9), a=["u-mine"]) == {"a": {"u-mine"}}
    assert preempt(state, pod("p", memory=50, priority=9), a=[]) == {}
    assert preempt(state, pod("own", node="exclusive", priority=9), a=["u-mine"]) == {"a": {"u-mine"}}


def test_a_pod_of_many_containers_keeps_nobody_waiting(monkeypatch):
    """One with 64 containers took 48 ms for each node, and the controller's Lease lasts 10 s."""
    asked = []
    for module in (choose, preempt_module):
        monkeypatch.setattr(module, "MOST_WORK", 100)
        monkeypatch.setattr(module, "fit", lambda *given, real=module.fit: asked.append(given) or real(*given))
    names = [f"n{i}" for i in range(30)]
    state = cluster(*(node(name, *[1000 + i] * 8) for i, name in enumerate(names)))
    hard = pod("hard", containers=[f"c{i}" for i in range(25)], priority=9, memory="30%")
    answer = ask(state, hard, *names)
    assert not answer["NodeNames"] and set(answer["FailedNodes"]) == set(names)
    assert any("not tried" in why for why in answer["FailedNodes"].values())
    assert 1 < len(asked) <= 5
    for name in names:
        running(state, pod(f"on-{name}", memory=500), name)
    asked.clear()
    preempt(state, hard, **{name: [f"u-on-{name}"] for name in names})
    assert 1 < len(asked) <= 5
    assert ask(state, pod("next", memory=100), *names)["NodeNames"]


@pytest.mark.parametrize("said", [{"gpus": 2}, {"gpus": 4}, {"gpus": 16, "memory": 1}])
def test_a_node_of_many_gpus_keeps_nobody_waiting(monkeypatch, said):
    """A node may report 512 GPUs. A pod of 128 containers of 4 GPUs each took 9 s there."""
    looked = []

    def counted(request, inventory, *rest):
        looked.append(len(request.gpus) * len(inventory.gpus))
        return allocate(request, inventory, *rest)

    monkeypatch.setattr(fit, "allocate", counted)
    state = cluster(node("small", *[50_000] * 8), node("wide", *[100_000] * 512))
    hard = pod("hard", containers=[f"c{i}" for i in range(64)], **said)
    answer = ask(state, hard, "wide")
    assert not answer["NodeNames"] and "not tried" in answer["FailedNodes"]["wide"]
    assert sum(looked) <= 8 * choose.MOST_WORK
    few = pod("few", containers=("a", "b"), memory=100)
    assert ask(state, few, "wide")["NodeNames"] == ["wide"]
    many = pod("many", containers=[f"c{i}" for i in range(64)], gpus=2, memory=100)
    assert ask(state, many, "small", "wide")["NodeNames"] == ["small"]
