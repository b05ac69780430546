"""`explain` agrees with the filter on every node, and its suggestions are true."""

from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.kube.answers import admission, extender
from oci_hook.kube.answers.explain import explain, holders
from oci_hook.kube.placing.cluster_state import ClusterState
from testbed.long import draws
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, listing, node, pod
from tests.kube.placing.test_choose import nodes, pods


def cluster(*objects):
    state = ClusterState()
    for one in objects:
        (state.apply_node if one["kind"] == "Node" else state.apply_pod)(one)
    return state


def placed(state, obj, name):
    state.apply_pod(obj)
    done = bound(obj, name, alloc_of(admission.bind(binding(obj, name), state, 0.0, SIGNER.sign)))
    state.apply_pod(done)
    return done


@settings(max_examples=draws(60), deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=6))
def test_it_agrees_with_the_filter_on_every_node(objects, asking):
    state = cluster(*objects)
    for n, obj in enumerate(asking):
        obj = {**obj, "metadata": {**obj["metadata"], "name": f"p{n}", "uid": f"u{n}"}}
        found = explain(state, obj)
        names = list(state.nodes)
        for view in found.nodes:
            args = {"Pod": obj, "NodeNames": [view.name]}
            answer = extender.filter(args, state, 0.0)
            assert view.fits == bool(answer["NodeNames"]), view
            assert view.fits or answer["FailedNodes"][view.name] == extender.in_words(view.why)
            assert view.fits != bool(view.why) and any(gpu.given for gpu in view.gpus) <= view.fits
            state.release(obj["metadata"]["uid"])
        answer = extender.filter({"Pod": obj, "NodeNames": names}, state, 0.0)
        if found.asks:
            assert answer["NodeNames"] == ([found.node] if found.node else [])
            assert explain(state, obj) == found, "its own reservation does not count against it"
            assert [one.pod.uid for one in state.reservations.values()].count(f"u{n}") == bool(found.node)


def test_numbers_and_the_smallest_change():
    state = cluster(node("a", 100, 100), node("b", 50))
    placed(state, pod("x", memory=80, compute=40), "a")
    placed(state, pod("y", memory=70), "a")
    found = explain(state, pod("p", memory=60))
    assert not found.node and found.problem.code == "GH-607" and "0 of 2 nodes" in found.problem.message
    a, b = found.nodes
    assert sorted(gpu.free_mib for gpu in a.gpus) == [20, 30] and "30 of 100 MiB free, 60 MiB asked" in str(a.gpus)
    assert b.gpus[0].note.endswith("it has 50 MiB to grant") and str(b.why) == "GH-201: no GPU has 60 MiB to grant"
    assert "ask for at most 50 MiB of memory (node b)" in found.suggestions
    assert any(text.startswith("wait until y ends (node a)") for text in found.suggestions)
    explained = explain(state, pod("p", memory=50))
    assert explained.node == "b" and explained.nodes[1].gpus[0].given == ("main: 50 MiB",)


def test_every_suggestion_is_true():
    state = cluster(node("a", 100), node("b", 40))
    placed(state, pod("x", memory=70, compute=40), "a")
    found = explain(state, pod("p", containers=("one", "two"), memory__one=20, memory__two=60))
    assert "container two: ask for at most 10 MiB of memory (node a)" not in found.suggestions
    assert "container two: ask for at most 20 MiB of memory (node b)" in found.suggestions
    assert explain(state, pod("p", containers=("one", "two"), memory__one=20, memory__two=20)).node
    assert not explain(state, pod("p", containers=("one", "two"), memory__one=20, memory__two=21)).node


def test_pods_that_need_no_explanation():
    state = cluster(node("a", 100))
    assert not explain(state, pod("plain")).asks
    done = placed(state, pod("x", memory=70), "a")
    found = explain(state, done)
    assert found.bound and found.node == "a"
    assert explain(cluster(), pod("p", memory=5)).problem.message.startswith("0 of 0 nodes")


def test_a_request_that_is_not_valid_is_said_on_every_node():
    found = explain(cluster(node("a", 100)), pod("p", memory="4G"))
    assert found.nodes[0].why.code == "GH-101" and not found.suggestions


def test_what_the_ledger_says_of_each_pod():
    state = cluster(node("a", 100))
    first, second = placed(state, pod("x", memory=20), "a"), placed(state, pod("y", memory=30, compute=10), "a")
    assert [one.ledger for one in holders(state, {})] == ["not yet", "not yet"]
    state.apply_node(node("a", 100, digest=listing("u-x", "u-y")))
    state.apply_node(node("a", 100, digest=listing("u-y")))
    state.apply_pod({**second, "status": {"phase": "Failed"}})
    held = holders(state, {"u-x": "online"})
    assert [(one.pod, one.memory_mib, one.ledger) for one in held] == [("x", 20, "between starts"), ("y", 30, "ending")]
    assert held[0].priority_class == "online" and held[0].address == "0"
    state.apply_pod(bound(first, "a", None, deleting=True))
    assert [one.ledger for one in holders(state, {})] == ["free", "ending"]
