"""Nodes that mislead a scheduler without an extender, and their taints."""

import asyncio
import json
from typing import Any

import pytest

from oci_hook.kube.controller.act.taints import FRAGMENT_TAINT, FragmentTaints, fragment_patch
from oci_hook.kube.controller.api.client import ApiError
from oci_hook.kube.formats import names
from oci_hook.kube.placing.choose import Question, judge
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import words
from oci_hook.kube.preemption.fragments import MOST_NODES, MOST_PODS, Fragments
from tests.kube.cluster_objects import node, pod
from tests.kube.controller.parts import context


def cluster(*sizes: int) -> ClusterState:
    """Nodes n0, n1, ... with two GPUs of this size each."""
    state = ClusterState()
    for number, mib in enumerate(sizes):
        state.apply_node(node(f"n{number}", mib, mib))
    state.refresh()
    return state


def waiting(state: ClusterState, name: str, **said: Any) -> Any:
    made = pod(name, **said)
    state.apply_pod(made)
    return words(made)


def marks(fragments: Fragments) -> set[str]:
    return {name for some in fragments.marks() for name in some}


def test_nodes_whose_sum_has_room_and_whose_gpus_have_not() -> None:
    state = cluster(6000, 6000, 4000, 10_000)  # sums: 12000, 12000, 8000, 20000
    fragments = Fragments(state)
    fragments.denied(waiting(state, "p", memory=9000), "n0")
    assert marks(fragments) == {"n0", "n1"}  # n2's sum is too small, n3 has room


@pytest.mark.parametrize("mib", [12_001, 20_001, 90_000])
def test_no_node_is_marked_for_a_pod_that_fits_nowhere(mib: int) -> None:
    state = cluster(6000, 6000, 10_000)
    fragments = Fragments(state)
    fragments.denied(waiting(state, "p", memory=mib), "n0")
    assert marks(fragments) == set()


def test_a_pod_that_has_a_node_or_is_gone_marks_nothing() -> None:
    state = cluster(6000, 10_000)
    fragments = Fragments(state)
    fragments.denied(waiting(state, "p", memory=9000), "n0")
    fragments.denied(waiting(state, "q", memory=9000), "n0")
    assert marks(fragments) == {"n0"} and fragments
    state.apply_pod(pod("p", memory=9000, node_name="n1"))
    assert marks(fragments) == {"n0"}
    state.remove_pod("u-q", 0.0)
    assert marks(fragments) == set() and not fragments


def test_a_node_that_denied_and_changed_since_is_looked_at_anew() -> None:
    state = cluster(10_000, 10_000)
    fragments = Fragments(state)
    fragments.denied(waiting(state, "p", memory=9000), "n0")  # for another reason: its figures have room
    assert marks(fragments) == {"n0"}
    state.apply_node(node("n0", 10_000, 10_000, 10_000))
    assert marks(fragments) == set()


def test_sums_of_several_gpus_and_of_compute() -> None:
    state = cluster(6000, 6000, 30_000)
    fragments = Fragments(state)
    fragments.denied(waiting(state, "two", memory=7000, gpus=2), "n0")  # 14000 in sum: more than n1 has
    assert marks(fragments) == {"n0"}
    fragments.denied(waiting(state, "much", memory=7000, compute=100), "n0")
    assert marks(fragments) == {"n0", "n1"}


def test_the_sum_of_offline_compute_is_another_one() -> None:
    """n1's sums have room for one class only; the scheduler does not choose it for the other."""
    for asks, misleads in (("offline", False), ("default", True)):
        state = cluster(6000, 6000, 30_000)
        taken = pod("taken", memory=1000, compute=100, gpus=2, **{"class": "offline"})
        said = words(taken)
        state.reserve(said, "n1", judge(state, Question(said), "n1"), 0.0)
        fragments = Fragments(state)
        fragments.denied(waiting(state, "p", memory=7000, compute=100, **{"class": asks}), "n0")
        assert ("n1" in marks(fragments)) == misleads


def test_what_is_remembered_is_bounded() -> None:
    state = cluster(*[6000] * (MOST_NODES + 5), 10_000)
    fragments = Fragments(state)
    for number in range(MOST_PODS + 3):
        fragments.denied(waiting(state, f"p{number}", memory=9000), "n0")
    assert len(fragments._denied) == MOST_PODS
    assert len(marks(fragments)) == MOST_NODES + 1


def on(*taints: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": list(taints)} if taints else {}}


def test_other_taints_stay_as_they_are() -> None:
    other = {"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert fragment_patch(on(), True) == [same, {"op": "add", "path": "/spec/taints", "value": [FRAGMENT_TAINT]}]
    assert fragment_patch(on(other), True) == [
        same,
        {"op": "add", "path": "/spec/taints", "value": [other, FRAGMENT_TAINT]},
    ]
    assert fragment_patch(on(FRAGMENT_TAINT, other), False) == [
        same,
        {"op": "add", "path": "/spec/taints", "value": [other]},
    ]
    assert (
        fragment_patch(on(FRAGMENT_TAINT, other), True)
        == fragment_patch(on(other), False)
        == fragment_patch(on(), False)
        == []
    )


class Api:
    """A simulated API server with nodes. refuse: the number of writes to answer with a conflict."""

    def __init__(self, state: ClusterState, count: int) -> None:
        self.state, self.refuse = state, 0
        self.nodes = {f"n{n}": on() for n in range(count)}

    async def get(self, path: str) -> Any:
        return json.loads(json.dumps(self.nodes[path.rpartition("/")[2]]))

    async def patch(self, path: str, change: Any, kind: str) -> None:
        if self.refuse:
            self.refuse -= 1
            raise ApiError(409, "Conflict", "it changed")
        name = path.rpartition("/")[2]
        self.nodes[name]["spec"]["taints"] = change[1]["value"]
        self.state.nodes[name].taints = tuple((t["key"], t["value"], t["effect"]) for t in change[1]["value"])

    def marked(self) -> set[str]:
        return {
            n for n, it in self.nodes.items() if any(t["key"] == names.FRAGMENTED for t in it["spec"].get("taints", ()))
        }


def test_taints_come_at_once_and_go_some_time_after_nobody_waits() -> None:
    state = cluster(6000, 6000, 10_000)
    api, clock, leads = Api(state, 3), [100.0], [True]
    made = FragmentTaints(context(api, state, leads=lambda: leads[0], now=lambda: clock[0]))

    async def story() -> None:
        made.denied(waiting(state, "p", memory=9000), "n0")
        api.refuse = 1
        await made._look()
        assert len(api.marked()) == 1  # the other node changed meanwhile
        await made._look()
        assert api.marked() == {"n0", "n1"}
        state.apply_pod(pod("p", memory=9000, node_name="n2"))
        clock[0] += 9
        await made._look()
        assert api.marked() == {"n0", "n1"}
        clock[0] += 2
        await made._look()
        assert api.marked() == set()

    asyncio.run(story())


def test_a_new_leader_takes_off_what_it_does_not_need() -> None:
    state = cluster(6000, 10_000)
    api = Api(state, 2)
    api.nodes["n0"]["spec"]["taints"] = [FRAGMENT_TAINT]
    state.nodes["n0"].taints = ((names.FRAGMENTED, "true", "PreferNoSchedule"),)
    made = FragmentTaints(context(api, state, now=lambda: 5.0))
    asyncio.run(made._look())
    assert api.marked() == set()


def test_a_controller_that_ends_leaves_no_taint() -> None:
    state = cluster(6000, 10_000)
    api = Api(state, 2)
    made = FragmentTaints(context(api, state, now=lambda: 5.0))

    async def story() -> None:
        made.denied(waiting(state, "p", memory=9000), "n0")
        await made._look()
        assert api.marked() == {"n0"}
        await made.clear()
        assert api.marked() == set()

    asyncio.run(story())


def test_who_no_longer_leads_leaves_the_taints_to_the_next() -> None:
    state = cluster(6000, 10_000)
    api, leads = Api(state, 2), [True]
    made = FragmentTaints(context(api, state, leads=lambda: leads[0], now=lambda: 5.0))

    async def story() -> None:
        made.denied(waiting(state, "p", memory=9000), "n0")
        await made._look()
        leads[0] = False
        await made.clear()
        assert api.marked() == {"n0"}

    asyncio.run(story())


@pytest.mark.parametrize("seen", [False, True])
def test_no_taint_comes_back_while_the_controller_ends(seen: bool) -> None:
    """seen: our watch has brought the taint. A pod is denied meanwhile: we still lead."""
    state = cluster(6000, 6000, 10_000)
    api = Api(state, 3)
    made = FragmentTaints(context(api, state, now=lambda: 5.0))

    async def story() -> None:
        made.denied(waiting(state, "p", memory=9000), "n0")
        await made._look()
        assert api.marked() == {"n0", "n1"}
        if not seen:
            for node in state.nodes.values():
                node.taints = ()
        await made.clear()
        assert api.marked() == set()
        await made._look()  # a pass that had begun
        assert api.marked() == set()

    asyncio.run(story())
