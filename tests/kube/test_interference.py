"""Measured figures decide between equal places only, and only where that is switched on."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.core.allocate import placement_of, usage
from oci_hook.core.rules import ORDERS
from oci_hook.kube import admission, calm, extender
from oci_hook.kube import choose as choose_module
from oci_hook.kube.choose import Chosen, Question, choose, order_for
from oci_hook.kube.cut import KEYS
from oci_hook.kube.fit import Fit, fit
from oci_hook.kube.interference import UNKNOWN, cost, of_pods, read
from oci_hook.kube.node_info import digest_text, read_digest
from oci_hook.kube.pods import words
from oci_hook.kube.state import ClusterState
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, inventory, listing, node, pod
from tests.kube.test_choose import check_capacity, nodes, pods

levels = st.tuples(st.integers(0, 4), st.integers(0, 4))


def renamed(obj, n):
    return {**obj, "metadata": {**obj["metadata"], "name": f"p{n}", "uid": f"u{n}"}}


def decisions(objects, asking, busy, interference):
    """Every answer of the filter and what the Binding gets, with these figures on every node."""
    state = ClusterState()
    state.interference = interference
    for one in objects:
        state.apply_node(one)
    said = []
    for n, obj in enumerate(asking):
        obj = renamed(obj, n)
        state.apply_pod(obj)
        answer = extender.filter({"Pod": obj, "NodeNames": list(state.nodes)}, state, 0.0)
        said.append(json.dumps(answer, sort_keys=True))
        for name in answer["NodeNames"] or ():
            alloc = alloc_of(admission.bind(binding(obj, name), state, 0.0, SIGNER.sign))
            said.append(alloc)
            if alloc:
                state.apply_pod(bound(obj, name, alloc))
        for one in state.nodes.values():
            one.busy = {f"u{i}": busy[i % len(busy)] for i in range(n)} if busy else {}
    return said


@settings(max_examples=80, deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=8), st.lists(levels, min_size=1, max_size=5))
def test_off_not_one_decision_differs(objects, asking, busy):
    assert decisions(objects, asking, busy, False) == decisions(objects, asking, (), False)


@settings(max_examples=80, deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=8), st.lists(levels, min_size=1, max_size=5))
def test_on_only_equals_are_exchanged(objects, asking, busy):
    """The node's key in its order, and the GPU's in the node's, are those of the choice without figures."""
    state = ClusterState()
    for one in objects:
        state.apply_node(one)
    for n, obj in enumerate(asking):
        said = words(renamed(obj, n))
        for one in state.nodes.values():
            one.busy = {f"u{i}": busy[i % len(busy)] for i in range(n)}
        plain = choose(state, Question(said))
        state.interference = True
        question = Question(said)
        found = choose(state, question)
        state.interference = False
        assert isinstance(found, Chosen) == isinstance(plain, Chosen)
        if not isinstance(found, Chosen):
            assert found == plain
            continue
        key = KEYS[order_for(state, question)]
        same_node = key(state.cut.rooms[found.node]) == key(state.cut.rooms[plain.node])
        same_gpus = level_of(state, found, question) == level_of(state, plain, question)
        assert same_gpus or (same_node and found.node != plain.node)
        state.reserve(said, found.node, found.fit, 0.0)
        check_capacity(state)


def level_of(state, chosen, question):
    one = state.nodes[chosen.node]
    order = ORDERS[placement_of(question.asked(one.rules)[0][2], one.rules)] if question.asked(one.rules) else None
    uuids = {row.uuid for row in chosen.fit.rows}
    uses = usage(state.inventory(one), state.grants(one), one.rules)
    return sorted(order(use) for use in uses if use.gpu.uuid in uuids) if order else []


def cluster(levels_of, **said):
    """Four pods of one size, one on each of four GPUs of two nodes, with these figures; and a question."""
    state = ClusterState()
    state.interference = True
    objects = [node("a", 40, 40), node("b", 40, 40)]
    for obj in objects:
        state.apply_node(obj)
    for n in range(4):
        name, gpu = "ab"[n // 2], n % 2
        obj = pod(f"p{n}", memory=10, compute=10, devices=gpu)
        state.apply_pod(obj)
        state.apply_pod(bound(obj, name, alloc_of(admission.bind(binding(obj, name), state, 0.0, SIGNER.sign))))
    for n, name in enumerate("ab"):
        busy = {f"u-p{i}": {"main": levels_of[i]} for i in (2 * n, 2 * n + 1) if levels_of[i] is not None}
        state.apply_node(node(name, 40, 40, digest=listing(f"u-p{2 * n}", f"u-p{2 * n + 1}").replace(busy=busy)))
    question = Question(words(pod("new", memory=10, compute=10, **said)))
    return state, question


@pytest.mark.parametrize(
    "figures, priority, gpu",
    [
        ([(4, 4), (4, 4), (4, 4), (0, 0)], "online", "GPU-b-1"),
        ([(4, 4), (0, 0), (4, 4), (4, 4)], "offline", "GPU-a-1"),
        # An online pod rather stands beside much work in short pieces, others where little is done in long ones.
        ([(4, 1), (2, 3), (3, 4), (3, 4)], "online", "GPU-a-0"),
        ([(4, 1), (2, 3), (3, 4), (3, 4)], "offline", "GPU-a-1"),
        # Equal ones: the first, as without figures. What was not measured yet is in the middle.
        ([(1, 1), (1, 1), (1, 1), (1, 1)], "online", "GPU-a-0"),
        ([(4, 4), None, (4, 4), (4, 4)], "online", "GPU-a-1"),
        ([None, (1, 1), None, None], "offline", "GPU-a-1"),
    ],
)
def test_which_of_four_equal_gpus(figures, priority, gpu):
    state, question = cluster(figures, **{"class": priority, "placement": "binpack", "node_placement": "binpack"})
    found = choose(state, question)
    assert [row.uuid for row in found.fit.rows] == [gpu]
    state.interference = False
    assert [row.uuid for row in choose(state, question).fit.rows] == ["GPU-a-0"]


def test_the_order_comes_before_the_figures():
    state, question = cluster([(4, 4), (4, 4), (4, 4), (0, 0)], placement="binpack", node_placement="binpack")
    obj = pod("more", memory=5, devices="1")
    state.apply_pod(obj)
    state.apply_pod(bound(obj, "a", alloc_of(admission.bind(binding(obj, "a"), state, 0.0, SIGNER.sign))))
    found = choose(state, question)
    assert found.node == "a" and found.fit.rows[0].uuid == "GPU-a-1", "fuller, and busy"


def test_a_reservation_that_was_made_for_calm_is_the_one_that_is_bound():
    state, question = cluster([(4, 4), (4, 4), (4, 4), (0, 0)], **{"class": "online"})
    new = pod("new", memory=10, compute=10, **{"class": "online"})
    state.apply_pod(new)
    answer = extender.filter({"Pod": new, "NodeNames": ["a", "b"]}, state, 0.0)
    assert answer["NodeNames"] == ["b"]
    alloc = json.loads(alloc_of(admission.bind(binding(new, "b"), state, 0.0, SIGNER.sign)))
    assert "GPU-b-1" in json.dumps(alloc)


def test_several_gpus_and_containers_are_chosen_as_before_on_a_node():
    state, _ = cluster([(4, 4), (0, 0), (0, 0), (0, 0)])
    for said in ({"memory": 10, "gpus": 2}, {"memory": 10, "devices": "0"}, {"memory__main": 5, "memory__b": 5}):
        containers = ("main", "b") if "memory__b" in said else ("main",)
        found = choose(state, Question(words(pod("new", containers=containers, **said))))
        assert isinstance(found, Chosen) and isinstance(found.fit, Fit)


def test_what_a_new_pod_expects():
    assert cost(True, []) == cost(False, []) == (0, 0)
    assert cost(True, [(4, 0), (1, 2)]) == (2, 5) and cost(False, [(4, 0), (1, 2)]) == (5, 2)
    assert cost(True, [(0, 4)]) == (0, 0), "a neighbour that does nothing"
    assert cost(True, [UNKNOWN]) > cost(True, [(1, 1)])
    assert of_pods({"u": {"a": (1, 4), "b": (3, 0)}, "v": {}}) == {"u": (3, 4)}


# --- the digest


def test_the_digest_carries_the_figures_and_is_the_old_one_without():
    where = inventory("a", [40])
    plain = listing("u1")
    assert "busy" not in json.loads(digest_text(plain, where))
    full = plain.replace(busy={"u1": {"main": (3, 1)}})
    assert read_digest(digest_text(full, where), where) == full
    assert read_digest(digest_text(plain, where), where) == plain


@pytest.mark.parametrize(
    "busy",
    [
        None,
        3,
        [],
        "x",
        {"u": 3},
        {"u": {"c": 3}},
        {"u": {"c": [1]}},
        {"u": {"c": [5, 0]}},
        {"u": {"c": [True, 0]}},
        {"u": {"c": [-1, 0]}},
    ],
)
def test_figures_that_are_none_cost_the_node_nothing(busy):
    where = inventory("a", [40])
    text = json.dumps({**json.loads(digest_text(listing("u"), where)), "busy": busy, "of a newer version": 1})
    assert read_digest(text, where) == listing("u")
    assert read({"u": {"c": [1, 2, "of a newer version"], "d": 1}}) == {"u": {"c": (1, 2)}}


@pytest.mark.parametrize(("said", "nodes"), [({"memory": 1000}, 8), ({"gpus": 1}, 8), ({"gpus": 4, "memory": 10}, 1)])
def test_equal_gpus_of_wide_nodes_keep_nobody_waiting(monkeypatch, said, nodes):
    """A node may say that it has 512 GPUs, all equal: each was placed on, 3 s for one such node."""
    asked = []

    def counted(requests, *rest):
        asked.append(requests)
        return fit(requests, *rest)

    for module in (calm, choose_module):
        monkeypatch.setattr(module, "fit", counted)
    state = ClusterState()
    state.interference = True
    for name in "abcdefgh":
        state.apply_node(node(name, *[100_000] * 512))
    assert isinstance(choose(state, Question(words(pod("p", **said)))), Chosen)
    assert 1 <= len(asked) <= nodes + (calm.TRIES if nodes > 1 else 0)


def test_the_calmest_of_several_gpus_is_taken_though_it_is_the_last():
    state = ClusterState()
    state.interference = True
    uuids = [f"GPU-a-{i}" for i in range(6)]
    state.apply_node(node("a", *[40] * 6))
    for n in range(6):
        obj = pod(f"p{n}", memory=10, compute=10, devices=n)
        state.apply_pod(obj)
        state.apply_pod(bound(obj, "a", alloc_of(admission.bind(binding(obj, "a"), state, 0.0, SIGNER.sign))))
    busy = {f"u-p{n}": {"main": (4 - n // 2, 4 - n // 2)} for n in range(5)} | {"u-p5": {"main": (0, 0)}}
    state.apply_node(node("a", *[40] * 6, digest=listing(*busy).replace(busy=busy)))
    found = choose(state, Question(words(pod("new", memory=10, compute=10))))
    assert isinstance(found, Chosen) and [row.uuid for row in found.fit.rows] == uuids[5:]
