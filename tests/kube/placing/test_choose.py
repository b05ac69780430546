"""The choice compared with `fit` on every node, and the effect of each placement."""

from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.cli.controller import controller
from oci_hook.core.rules import BY_CLASS, Rules
from oci_hook.errors import RequestError
from oci_hook.kube.formats import sums
from oci_hook.kube.formats.node_info import NodeInventory, inventory_text
from oci_hook.kube.placing import choose as choose_module
from oci_hook.kube.placing import order
from oci_hook.kube.placing.choose import Chosen, Question, choose, judge
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit, as_grants, fit
from oci_hook.kube.placing.room import fits_each, may_fit, need_of, room_of
from oci_hook.kube.pod import asked as asked_module
from oci_hook.kube.pod.asked import RUN, SIDECAR, asked, words
from oci_hook.kube.pod.node_orders import NODE_ORDERS, NodeOrder
from testbed.long import draws
from tests.core import allocate_oracle as oracle
from tests.kube.cluster_objects import inventory, node, pod

# --- requests: annotations for one container

word = st.one_of(
    st.builds(lambda n: {"memory": str(n)}, st.integers(1, 45)),
    st.builds(lambda n: {"memory": f"{n}%"}, st.integers(1, 100)),
    st.builds(lambda n: {"compute": str(n)}, st.integers(1, 100)),
    st.builds(lambda n, c: {"memory": str(n), "compute": str(c)}, st.integers(1, 45), st.integers(1, 100)),
    st.builds(lambda n, c: {"memory": str(n), "gpus": str(c)}, st.integers(1, 45), st.integers(1, 4)),
    st.builds(lambda n: {"gpus": str(n)}, st.sampled_from([1, 2, 4, "all"])),
    st.builds(lambda n: {"devices": n}, st.sampled_from(["0", "1", "GPU-b-0", "GPU-c-1,0", "0,GPU-a-0", "none"])),
    st.builds(
        lambda n, d: {"memory": str(n), "devices": d}, st.integers(1, 45), st.sampled_from(["0", "GPU-a-1", "0,1"])
    ),
    st.just({"exclusive": "true"}),
    st.just({"memory": "5", "class": "online"}),
    st.just({"memory": "5", "compute": "10", "class": "offline"}),
    st.just({"memory": "7", "boundary": "driver"}),
)
kinds = st.sampled_from(["run", "run", "init", "sidecar"])


@st.composite
def pods(draw):
    containers, init, said = ["main"], [], {}
    for name in draw(st.lists(st.sampled_from(["main", "b", "c"]), min_size=1, max_size=3, unique=True)):
        kind = draw(kinds)
        if name != "main" and kind == "run":
            containers.append(name)
        elif name != "main":
            init.append({"name": name, **({"restartPolicy": "Always"} if kind == "sidecar" else {})})
        said |= {f"{key}__{name}": text for key, text in draw(word).items()}
    placement = draw(st.sampled_from([None, "spread", "binpack"]))
    if placement:
        said["node_placement"] = placement
    return pod("p", containers=containers, init=init, **said)


rules = st.builds(
    Rules,
    placement=st.sampled_from(["binpack", "spread", "by-class"]),
    whole_gpus=st.sampled_from(["exclusive", "shared"]),
    memory_reserve=st.sampled_from([0, 3, ("percent", 10)]),
    memory_step=st.sampled_from([1, 4]),
    memory_min=st.sampled_from([1, 5]),
    compute_step=st.sampled_from([1, 5, 30]),
    max_shares_per_gpu=st.sampled_from([64, 2]),
    memory_per_share=st.sampled_from([0, 16]),
    default_policy=st.sampled_from(["burst-share", "fixed-share", "best-effort"]),
)


@st.composite
def nodes(draw):
    found = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        sizes = draw(st.lists(st.sampled_from([12, 24, 24, 40]), max_size=4))
        no_limits = draw(st.sampled_from(["", "too old"]))
        found.append(node(name, *sizes, rules=draw(rules), no_limits=no_limits))
    return found


def brute_force(state, question, name):
    """Whether the pod has room on this node, by `fit` alone."""
    one = state.nodes[name]
    try:
        requests = asked(question.pod, one.rules)
    except RequestError:
        return None
    found = fit(requests, state.inventory(one), state.grants(one), one.rules)
    return found if isinstance(found, Fit) else None


def sums_of(requests):
    """The sums in the pod's object, as the create webhook writes them."""
    each = [(kind, sums.of_request(request)) for _, kind, request in requests]
    init = [(own, kind == SIDECAR) for kind, own in each if kind != RUN]
    return sums.of_pod([own for kind, own in each if kind == RUN], init)


def check_capacity(state):
    for one in state.nodes.values():
        grants = state.grants(one)
        if one.rules.memory_reserve == ("percent", 10):
            continue  # brute force knows reserves in MiB only
        # A pod whose phases differ on a GPU has it alone, as one grant.
        alone = {(grant.key, share.uuid) for grant in grants if grant.exclusive for share in grant.shares}
        single = [
            grant.replace(shares=(share,))
            for grant in grants
            for share in grant.shares
            if grant.exclusive or (grant.key, share.uuid) not in alone
        ]
        assert not oracle.violations(state.inventory(one), single, one.rules), one.name


@settings(max_examples=draws(150), deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=10))
def test_a_node_is_chosen_exactly_where_allocate_has_room(objects, asking):
    state = ClusterState()
    for one in objects:
        state.apply_node(one)
    left = {}  # free amounts of the node's published sums
    for name, one in state.nodes.items():
        left[name] = sums.of_node(state.inventory(one), one.rules)
    for n, obj in enumerate(asking):
        said = words({**obj, "metadata": {**obj["metadata"], "name": f"p{n}", "uid": f"u{n}"}})
        question = Question(said)
        state.refresh()
        possible = {name: found for name in state.nodes if (found := brute_force(state, question, name))}
        for name in state.nodes:
            found = judge(state, question, name)
            assert (found if isinstance(found, Fit) else None) == possible.get(name), (name, found)
            room = state.cut.rooms[name]
            if name in possible:
                requests = asked(said, room.rules)
                assert may_fit(room, need_of(requests, room.rules)) and fits_each(room, requests, room.rules)
        found = choose(state, question, frozenset(state.nodes))
        assert found == choose(state, question)
        if not possible:
            assert isinstance(found, dict) and found.keys() == state.nodes.keys()
            assert all(len(str(why.problem)) < 300 for why in found.values())
            continue
        assert isinstance(found, Chosen) and possible[found.node] == found.fit
        requests = asked(said, state.nodes[found.node].rules)
        for resource, amount in sums_of(requests).items():
            left[found.node][resource] -= amount
            assert left[found.node][resource] >= 0, "the scheduler would refuse what fits"
        state.reserve(said, found.node, found.fit, 0.0)
        check_capacity(state)


@settings(max_examples=draws(40), deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=8))
def test_the_rooms_that_are_kept_are_those_of_a_state_made_anew(objects, asking):
    """The cut follows each change, and keeps nothing stale."""
    state = ClusterState()
    for one in objects:
        state.apply_node(one)
    for n, obj in enumerate(asking):
        said = words({**obj, "metadata": {**obj["metadata"], "name": f"p{n}", "uid": f"u{n}"}})
        found = choose(state, Question(said))
        if isinstance(found, Chosen):
            state.reserve(said, found.node, found.fit, 0.0)
        if n % 3 == 2:
            state.release(f"u{n - 1}")
    state.refresh()
    for name, one in state.nodes.items():
        anew = room_of(state.inventory(one), state.grants(one), one.rules)
        assert anew.spots == state.cut.rooms[name].spots


# --- chosen nodes


def cluster(*objects, placement="by-class"):
    state = ClusterState(placement)
    for one in objects:
        state.apply_node(one)
    return state


def put(state, obj):
    """Reserves room for the pod, and returns the node; None if none has room."""
    said = words(obj)
    found = choose(state, Question(said))
    if not isinstance(found, Chosen):
        return None
    state.reserve(said, found.node, found.fit, 0.0)
    return found.node


def test_online_pods_are_spread_and_others_packed():
    state = cluster(node("a", 100, 100), node("b", 100, 100), node("c", 100, 100))
    assert {put(state, pod(f"o{i}", memory=10, **{"class": "online"})) for i in range(3)} == {"a", "b", "c"}
    assert len({put(state, pod(f"d{i}", memory=10)) for i in range(3)}) == 1
    assert len({put(state, pod(f"f{i}", memory=10, **{"class": "offline"})) for i in range(3)}) == 1


def test_memory_that_nobody_can_be_proved_to_have_is_no_room():
    """The node's admission grants none of it, either."""
    said = inventory("n", [100, 100])
    gpus = (said.gpus[0].replace(missing_mib=70), said.gpus[1].replace(missing_mib=50))
    object_ = node("n", 100, 100)
    told = inventory_text(NodeInventory(said.replace(gpus=gpus), Rules(), 1))
    object_["metadata"]["annotations"]["gpu-hook.io/inventory"] = told
    state = cluster(object_)
    assert [put(state, pod(name, memory=40)) for name in "ab"] == ["n", None]
    refused = choose(state, Question(words(pod("c", memory=40))))
    assert str(refused["n"].problem) == "GH-201: no GPU has 40 MiB free"
    assert put(state, pod("d", memory=30)) == "n"


def test_offline_compute_is_booked_apart_and_refused_in_its_own_words():
    """The node publishes 100 of each, and the controller grants as much."""
    state = cluster(node("a", 100))
    places = [
        put(state, pod(name, memory=10, compute=60, **{"class": name})) for name in ("online", "offline", "default")
    ]
    assert places == ["a", "a", None]
    state.refresh()
    (spot,) = state.cut.rooms["a"].spots
    assert (spot.free_mib, spot.free_compute, spot.free_offline) == (80, 40, 40)
    for name, what in (("default", "compute"), ("offline", "offline compute")):
        refused = choose(state, Question(words(pod("p", memory=10, compute=41, **{"class": name}))))
        assert str(refused["a"].problem) == f"GH-201: no GPU has 41 % {what} free"
    both = {"compute__one": 40, "class__one": "offline", "compute__two": 40, "class__two": "default"}
    assert put(state, pod("p", containers=("one", "two"), memory__one=10, memory__two=10, **both)) == "a"
    have = sums.of_node(state.inventory(state.nodes["a"]), state.nodes["a"].rules)
    assert (have["gpu-hook.io/compute"], have["gpu-hook.io/offline-compute"]) == (100, 100)


def test_an_init_container_of_another_class_books_its_compute_and_no_place():
    state = cluster(node("a", 100, rules=Rules(max_shares_per_gpu=2)))
    both = {"compute__main": 70, "class__main": "default", "compute__first": 80, "class__first": "offline"}
    mixed = pod("p", init=("first",), memory__main=10, memory__first=30, **both)
    assert put(state, mixed) == "a"
    state.refresh()
    (spot,) = state.cut.rooms["a"].spots
    assert (spot.free_mib, spot.free_compute, spot.free_offline, spot.containers) == (70, 30, 20, 1)
    assert put(state, pod("q", memory=10, compute=20, **{"class": "offline"})) == "a"
    assert put(state, pod("r", memory=10)) is None, "two have places"


@pytest.mark.parametrize(
    "said, setting", [("spread", "binpack"), ("binpack", "spread"), (None, "spread"), (None, "binpack")]
)
def test_the_pods_word_counts_before_the_clusters(said, setting):
    state = cluster(*(node(n, 100, 100) for n in "abc"), placement=setting)
    word = {"node_placement": said} if said else {}
    chosen = [put(state, pod(f"p{i}", memory=10, **word)) for i in range(3)]
    assert len(set(chosen)) == (3 if (said or setting) == "spread" else 1)


@pytest.mark.parametrize("more", [{}, {"memory": 10}])
def test_a_pod_that_names_an_unknown_order_is_refused_on_every_node(more):
    """The create webhook refuses it; a pod may be older than the webhook."""
    refused = choose(cluster(node("a", 100)), Question(words(pod("p", node_placement="Spread", **more))))
    said = "gpu-hook.io/node-placement='Spread' is not one of binpack, spread"
    assert str(refused["a"].problem) == f"GH-101: {said}"


def test_a_row_in_the_table_is_all_that_an_order_of_nodes_needs(monkeypatch):
    """Adds a new order, by the most containers. The annotation, the cluster's setting and the option accept it."""
    table = {**NODE_ORDERS, "crowded": NodeOrder(*[lambda found: (-found.containers, 0, 0)] * 2)}
    for module in (order, choose_module, asked_module):
        monkeypatch.setattr(module, "NODE_ORDERS", table)
    for setting, word in (("by-class", {"node_placement": "crowded"}), ("crowded", {})):
        state = cluster(node("a", 100, 100), node("b", 100, 100), placement=setting)
        for n in range(2):
            put(state, pod(f"b{n}", memory=10, devices="GPU-b-0"))
        put(state, pod("a0", memory=50, devices="GPU-a-0"))
        assert put(state, pod("p", memory=20, **{"class": "online"}, **word)) == "b"
    with pytest.raises(RequestError, match="GH-101.*binpack, spread, crowded"):
        asked(words(pod("p", memory=1, node_placement="core")), Rules())


def test_every_order_of_nodes_is_an_option_and_has_its_row_in_the_guide():
    place = next(option for option in controller.params if option.name == "place")
    assert isinstance(place.type, click.Choice) and list(place.type.choices) == [BY_CLASS, *NODE_ORDERS]
    guide = (Path(__file__).resolve().parents[3] / "docs/guide/kubernetes.md").read_text()
    assert all(f"\n| `{name}` |" in guide for name in NODE_ORDERS)


def test_shares_are_packed_onto_gpus_in_use_so_that_whole_ones_stay_free():
    """Node b has fewer free GPUs, but its GPU in use is full: the share goes to a's GPU in use."""
    state = cluster(node("a", 100, 100, 100), node("b", 100, 100), placement="binpack")
    put(state, pod("full", memory=100, devices="GPU-b-0"))
    put(state, pod("half", memory=50, devices="GPU-a-0"))
    assert put(state, pod("share", memory=40)) == "a"
    state.refresh()
    assert {name: room.free_gpus for name, room in state.cut.rooms.items()} == {"a": 2, "b": 1}


def test_whole_gpus_go_where_fewest_are_free_when_packed():
    state = cluster(node("a", 100, 100, 100, 100), node("b", 100, 100, 100, 100), placement="binpack")
    put(state, pod("one", gpus=1, node_placement="spread"))
    state.refresh()
    used = next(name for name, room in state.cut.rooms.items() if room.containers)
    assert put(state, pod("three", gpus=3)) == used
    assert put(state, pod("four", gpus=4)) not in (None, used)


def test_unequal_gpus_types_and_containers_by_name():
    state = cluster(node("small", 10, 10), node("big", 80, 10))
    two = pod("two", containers=("a", "b"), memory__a=60, memory__b=10)
    assert put(state, two) == "big"
    assert dict(state.reservations["u-two"].fit.shares)["a"][0].uuid == "GPU-big-0"
    assert put(state, pod("named", memory=5, devices="GPU-small-1")) == "small"
    assert put(state, pod("nobody", memory=5, devices="GPU-other-1")) is None


def test_init_containers_count_by_their_peak():
    state = cluster(node("a", 100))
    assert put(state, pod("p", init=("prepare",), memory__prepare=90, memory__main=30)) == "a"
    assert put(state, pod("q", memory=11)) is None
    assert put(state, pod("r", memory=10)) == "a"
    sidecar = {"name": "side", "restartPolicy": "Always"}
    other = cluster(node("a", 100))
    assert put(other, pod("p", init=(sidecar,), memory__side=60, memory__main=41)) is None
    assert put(other, pod("p", init=(sidecar, "prepare"), memory__prepare=41, memory__side=60, memory__main=40)) is None
    assert put(other, pod("p", init=("prepare", sidecar), memory__prepare=100, memory__side=60, memory__main=40)) == "a"


def test_less_than_a_context_is_said_in_these_words():
    state = cluster(node("a", 1000, 1000, context_mib=64))
    small = judge(state, Question(words(pod("p", memory=63))), "a")
    assert str(small.problem) == "GH-201: less memory than a program's context takes" and small.final
    assert put(state, pod("p", memory=64)) == "a"


def test_labels_of_a_node_say_what_it_takes():
    t9k = "sched.tensorstack.dev/node-alloc-mode"
    state = cluster(node("whole", 100, labels={t9k: "xgn"}), node("shared", 100, labels={"gpu-hook.io/mode": "shared"}))
    assert put(state, pod("share", memory=5)) == "shared"
    assert put(state, pod("gpu", gpus=1)) == "whole"
    assert put(state, pod("more", gpus=1)) is None
    refused = choose(state, Question(words(pod("gpu2", gpus=1))))
    assert refused["shared"].problem.code == "GH-607" and refused["shared"].final


def test_the_policy_that_the_node_reports_counts_for_pods_that_name_none():
    """Its label is in there already, unless the ConfigMap gpu-hook-nodes has another one for it."""
    label = {"tke.cloud.tencent.com/qgpu-schedule-policy": "be"}
    state = cluster(node("a", 100, labels=label, rules=Rules(default_policy="fixed-share")))
    put(state, pod("p", memory=5, compute=10))
    put(state, pod("q", memory=5, compute=10, policy="best-effort"))
    assert dict(state.reservations["u-p"].fit.terms)["main"].policy == "fixed-share"
    assert dict(state.reservations["u-p"].fit.shares)["main"][0].compute_limit == 10
    assert dict(state.reservations["u-q"].fit.terms)["main"].policy == "best-effort"


def test_a_node_for_one_pod():
    state = cluster(node("a", 100, 100), node("b", 100))
    assert put(state, pod("s", memory=5, devices="GPU-a-0")) == "a"
    assert put(state, pod("mine", node="exclusive")) == "b"
    assert put(state, pod("other", memory=5)) == "a"
    refused = choose(state, Question(words(pod("again", node="exclusive"))))
    assert {name: why.problem.code for name, why in refused.items()} == {"a": "GH-609", "b": "GH-609"}
    state.apply_pod(pod("agent", owner="DaemonSet", node_name="b"))
    state.release("u-mine")
    assert put(state, pod("again", node="exclusive")) == "b"  # a DaemonSet's pod is on every node
    state.release("u-again")
    state.apply_pod(pod("plain", node_name="b"))
    assert put(state, pod("again", node="exclusive")) is None


def test_pods_apart_from_each_other_get_different_gpus():
    """Also the reserved ones, and those whose decision is on the pod; one pod's containers may share a GPU."""
    state = cluster(node("a", 100, 100))

    def place(name, word="web", namespace="default", **more):
        one = pod(name, memory="5", apart_from=word, **more)
        one["metadata"]["namespace"] = namespace
        question = Question(words(one))
        found = choose(state, question)
        if not isinstance(found, Chosen):
            return found["a"].problem.message
        state.apply_pod(one)
        state.reserve(question.pod, "a", found.fit, 0.0)
        return [share.uuid for _, shares in found.fit.shares for share in shares]

    assert place("one", containers=["main", "b"]) == ["GPU-a-0"] * 2
    assert place("two", placement="binpack") == ["GPU-a-1"]
    assert place("three") == "the node's GPUs do not have room for the whole request"
    assert place("four", word="db") == ["GPU-a-0"]
    assert place("five", namespace="other") == ["GPU-a-0"]


def test_driver_files_alone_fit_on_a_full_node():
    state = cluster(node("a", 100))
    assert put(state, pod("all", gpus=1)) == "a"
    assert put(state, pod("files", devices="none")) == "a"
    assert state.reservations["u-files"].fit.shares == (("main", ()),)


def test_a_grant_counts_whatever_its_rows():
    assert as_grants("k", ()) == ()


def test_a_node_that_lacks_something_says_nothing_about_equal_gpus_elsewhere():
    state = cluster(node("a", 100), node("b", 100, imex_major=508))
    assert put(state, pod("channels", gpus=1, imex_channels=0)) == "b"
