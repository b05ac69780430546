"""Choosing against the slow way: `fit` on every node. And what each kind of placement does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError
from oci_hook.kube.choose import Chosen, Question, choose, judge
from oci_hook.kube.fit import Fit, as_grants, fit
from oci_hook.kube.pods import asked, words
from oci_hook.kube.room import fits_each, may_fit, need_of, room_of
from oci_hook.kube.state import ClusterState
from tests.core import allocate_oracle as oracle
from tests.kube.cluster_objects import node, pod

# --- what is asked: our words for one container, as text

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


def check_capacity(state):
    for one in state.nodes.values():
        grants = state.grants(one)
        if one.rules.memory_reserve == ("percent", 10):
            continue  # the oracle knows reserves in MiB
        # A pod whose phases differ on a GPU has it alone, and is one grant there.
        alone = {(grant.key, share.uuid) for grant in grants if grant.exclusive for share in grant.shares}
        single = [
            grant.replace(shares=(share,))
            for grant in grants
            for share in grant.shares
            if grant.exclusive or (grant.key, share.uuid) not in alone
        ]
        assert not oracle.violations(state.inventory(one), single, one.rules), one.name


@settings(max_examples=150, deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=10))
def test_a_node_is_chosen_exactly_where_allocate_has_room(objects, asking):
    state = ClusterState()
    for one in objects:
        state.apply_node(one)
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
        state.reserve(said, found.node, found.fit, 0.0)
        check_capacity(state)


@settings(max_examples=40, deadline=None)
@given(nodes(), st.lists(pods(), min_size=1, max_size=8))
def test_the_rooms_that_are_kept_are_those_of_a_state_made_anew(objects, asking):
    """The cut follows each change; nothing of an old state stays in it."""
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


# --- where pods go


def cluster(*objects, placement="by-class"):
    state = ClusterState(placement)
    for one in objects:
        state.apply_node(one)
    return state


def put(state, obj):
    """The node on which the pod is now reserved; None where none has room."""
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


@pytest.mark.parametrize(
    "said, setting", [("spread", "binpack"), ("binpack", "spread"), (None, "spread"), (None, "binpack")]
)
def test_the_pods_word_counts_before_the_clusters(said, setting):
    state = cluster(*(node(n, 100, 100) for n in "abc"), placement=setting)
    word = {"node_placement": said} if said else {}
    chosen = [put(state, pod(f"p{i}", memory=10, **word)) for i in range(3)]
    assert len(set(chosen)) == (3 if (said or setting) == "spread" else 1)


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


def test_the_policy_label_counts_for_pods_that_name_none():
    label = {"tke.cloud.tencent.com/qgpu-schedule-policy": "fs"}
    state = cluster(node("a", 100, labels=label))
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
