"""Taken shares of a node, by decisions, reservations and its ledger; and the time when they are free again."""

import json

import pytest

from oci_hook.core.grant import Grant, Identity, Life, Share
from oci_hook.core.rules import Rules
from oci_hook.core.terms import Terms
from oci_hook.kube.answers import admission
from oci_hook.kube.formats.node_info import Digest
from oci_hook.kube.placing.choose import Chosen, Question, choose, stays
from oci_hook.kube.placing.cluster_state import CONFIRMED, FORCED, GRACE, INVENTORIES, RESERVED, ClusterState
from oci_hook.kube.pod.asked import words
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, listing, node, pod


def cluster(*objects):
    state = ClusterState(verify=SIGNER.holds)
    for one in objects:
        state.apply_node(one)
    return state


def free(state, name="a"):
    """Free MiB of each GPU."""
    state.refresh()
    return [spot.free_mib for spot in state.cut.rooms[name].spots]


def started(state, obj, name="a", now=0.0):
    """The API object of the pod after its Binding to the node; the state knows it."""
    state.apply_pod(obj)
    alloc = alloc_of(admission.bind(binding(obj, name), state, now, SIGNER.sign))
    done = bound(obj, name, alloc)
    state.apply_pod(done)
    return done


# --- pods with a decision


def test_a_bound_pod_counts_and_its_reservation_is_over():
    state = cluster(node("a", 100))
    started(state, pod("p", memory=30))
    assert free(state) == [70] and not state.reservations


@pytest.mark.parametrize(
    ("rule", "said", "more"), [("shared", {}, True), ("exclusive", {}, False), ("shared", {"exclusive": "true"}, False)]
)
def test_a_bound_pod_with_a_whole_gpu_shares_it_where_its_node_and_itself_allow_it(rule, said, more):
    at = node("a", 100, rules=Rules(whole_gpus=rule))
    done = started(state := cluster(at), pod("p", gpus=1, **said))
    anew = cluster(at)
    anew.apply_pod(done)
    for one in (state, anew):
        assert isinstance(choose(one, Question(words(pod("q", gpus=1)))), Chosen) == more


def test_an_event_that_is_older_than_what_was_asked_frees_nothing():
    """The watch may lag behind an answer of the API server."""
    state = cluster(node("a", 100))
    waiting = pod("p", memory=30)
    started(state, waiting)
    state.apply_pod(waiting)
    assert free(state) == [70] and state.pending("default", "p") is None


@pytest.mark.parametrize("change", ["sig", "uid", "node", "text", "none"])
def test_a_decision_that_nobody_signed_counts_for_nothing(change):
    state = cluster(node("a", 100), node("b", 100))
    done = started(state, pod("p", memory=30))
    alloc = done["metadata"]["annotations"]["gpu-hook.io/alloc"]
    other = {
        "sig": alloc.replace(",30,", ",20,"),
        "uid": alloc.replace("u-p", "u-q"),
        "node": alloc.replace('"node":"a"', '"node":"b"'),
        "text": "{",
        "none": None,
    }[change]
    anew = cluster(node("a", 100), node("b", 100))
    anew.apply_pod(bound(pod("p", memory=30), "a", other))
    assert free(anew) == [100]


# --- decisions that we can no longer verify: our Secret was lost, or the generation removed


def lost(digest, *, sizes=(100,), **words):
    """A controller restarted without the key: two containers of a pod were granted 30 and 20 MiB with it."""
    first = cluster(node("a", *sizes))
    done = started(first, pod("p", containers=("main", "b"), **(words or {"memory__main": 30, "memory__b": 20})))
    state = ClusterState(verify=lambda decision: False)
    return state, done, node("a", *sizes, digest=digest)


def taken(state):
    return sum(100 - mib for mib in free(state))


@pytest.mark.parametrize("node_first", [True, False])
@pytest.mark.parametrize(
    ("containers", "expected"), [(("main",), 30), (("b",), 20), (("main", "b"), 50), (("x",), 0), ((), 0)]
)
def test_what_the_node_granted_counts_though_the_key_is_lost(node_first, containers, expected):
    state, done, at = lost(Digest((("u-p", containers),)))
    for act in [lambda: state.apply_node(at), lambda: state.apply_pod(done)][:: 1 if node_first else -1]:
        act()
    assert taken(state) == expected
    state.apply_pod(done)
    assert taken(state) == expected


def test_a_lost_decision_counts_as_the_nodes_list_changes():
    state, done, at = lost(Digest((("u-p", ("main",)),)))
    state.apply_node(at)
    state.apply_pod(done)
    for containers, expected in ((("main", "b"), 50), (("b",), 20), (("main",), 30)):
        state.apply_node(node("a", 100, digest=Digest((("u-p", containers),))))
        assert taken(state) == expected
    state.apply_node(node("a", 100, digest=listing("u-other")))
    assert taken(state) == 0
    state.apply_node(node("a", 100, digest=listing("u-p")))
    state.remove_pod("u-p", 0.0)  # force-deleted: the container runs on
    state.tick(GRACE + 1)
    assert taken(state) == 30
    state.apply_node(node("a", 100, digest=listing()))
    assert taken(state) == 0 and not state.pods


def test_a_lost_decision_is_not_changed_by_whoever_may_write_to_the_pod():
    state, done, at = lost(listing("u-p"))
    state.apply_node(at)
    state.apply_pod(done)
    alloc = done["metadata"]["annotations"]["gpu-hook.io/alloc"]
    for text in (None, "{", alloc.replace(",30,", ",1,"), alloc.replace("u-p", "u-q")):
        state.apply_pod(bound(done, "a", text))
        assert taken(state) == 30


@pytest.mark.parametrize(("old", "new"), [('"uid":"u-p"', '"uid":"u-q"'), ('"node":"a"', '"node":"b"')])
def test_a_decision_for_another_pod_or_node_counts_for_nothing_listed_or_not(old, new):
    state, done, at = lost(listing("u-p"))
    alloc = done["metadata"]["annotations"]["gpu-hook.io/alloc"]
    assert old in alloc
    state.apply_node(at)
    state.apply_pod(bound(done, "a", alloc.replace(old, new)))
    assert taken(state) == 0


def test_a_decision_counts_whole_as_soon_as_the_key_is_there():
    state, done, at = lost(listing("u-p"))
    state.apply_node(at)
    state.apply_pod(done)
    assert taken(state) == 30
    state._verify = SIGNER.holds
    state.apply_pod(done)
    assert taken(state) == 50
    state.apply_node(node("a", 100, digest=listing()))
    assert taken(state) == 50, "it waits for its next start"


def test_a_decision_of_more_than_the_node_has_stops_nothing():
    state, done, at = lost(listing("u-p"), sizes=(100, 100))
    alloc = done["metadata"]["annotations"]["gpu-hook.io/alloc"]
    state.apply_node(at)
    state.apply_pod(bound(done, "a", alloc.replace(",30,", ",99999,").replace("GPU-a-1", "GPU-gone")))
    assert len(free(state)) == 2
    assert isinstance(choose(state, Question(words(pod("q", memory=60)))), Chosen)


@pytest.mark.parametrize("alloc", [None, "{", "another's"])
def test_a_decision_that_is_changed_later_changes_nothing(alloc):
    """Otherwise a user who may annotate a pod could make the controller give its GPU away."""
    state = cluster(node("a", 100), node("b", 100))
    started(state, pod("p", memory=30))
    if alloc == "another's":
        other = started(state, pod("q", memory=10))
        alloc = other["metadata"]["annotations"]["gpu-hook.io/alloc"]
        state.remove_pod("u-q", 0.0)
        state.tick(FORCED)
    state.apply_pod(bound(pod("p", memory=30), "a", alloc))
    assert free(state) == [70]


def test_an_annotation_that_is_added_later_does_not_take_a_node():
    state = cluster(node("a", 100, 100))
    done = started(state, pod("p", gpus=1))
    done["metadata"]["annotations"]["gpu-hook.io/node"] = "exclusive"
    anew = cluster(node("a", 100, 100))
    for one in (state, anew):  # also if the controller never saw the pod before
        one.apply_pod(done)
        assert one.owner(one.nodes["a"], "") is None
        assert isinstance(choose(one, Question(words(pod("q", memory=5)))), Chosen)


def test_a_pod_with_a_node_of_its_own_keeps_it_when_a_lost_gpu_is_back():
    state = cluster(node("a", 100))
    done = started(state, pod("p", gpus="all", node="exclusive"))
    for _ in range(2):
        state.apply_node(node("a", 100, 100))
        state.apply_pod(done)
        assert not isinstance(choose(state, Question(words(pod("q", memory=5)))), Chosen)
    state.apply_pod(bound(done, "a", None, phase="Succeeded"))
    assert isinstance(choose(state, Question(words(pod("q", memory=5)))), Chosen)


def test_the_order_of_events_at_a_start_does_not_matter():
    """After a restart, pods may be listed before nodes."""
    first = cluster(node("a", 100))
    done = started(first, pod("p", memory=30))
    state = cluster()
    state.apply_pod(done)
    state.apply_node(node("a", 100))
    assert free(state) == [70]
    state.remove_node("a")
    state.refresh()
    assert "a" not in state.cut.rooms
    state.apply_node(node("a", 100))
    assert free(state) == [70]
    state.remove_pod("u-p", 0.0)
    state.tick(FORCED)
    assert free(state) == [100]


def test_a_container_that_waits_for_its_next_start_keeps_its_share():
    state = cluster(node("a", 100))
    started(state, pod("p", memory=30))
    state.apply_node(node("a", 100, digest=listing("u-p")))
    state.apply_node(node("a", 100, digest=listing()))
    assert free(state) == [70]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_counts_while_the_ledger_has_it(phase):
    state = cluster(node("a", 100, digest=listing("u-p")))
    done = started(state, pod("p", memory=30))
    state.apply_pod({**done, "status": {"phase": phase}})
    assert free(state) == [70]
    state.apply_node(node("a", 100, digest=listing()))
    assert free(state) == [100]


def test_a_deleted_pod_is_free_when_the_ledger_says_so_long_before_its_object_goes():
    state = cluster(node("a", 100))
    done = started(state, pod("p", memory=30))
    alloc = done["metadata"]["annotations"]["gpu-hook.io/alloc"]
    state.apply_node(node("a", 100, digest=listing("u-p")))
    state.apply_pod(bound(pod("p", memory=30), "a", alloc, deleting=True))
    assert free(state) == [70]
    state.apply_node(node("a", 100, digest=listing()))
    assert free(state) == [100]


def test_a_pod_deleted_by_force_counts_until_a_node_that_could_not_write_has_written():
    state = cluster(node("a", 100))
    started(state, pod("p", memory=30))
    state.remove_pod("u-p", 0.0)
    state.tick(30.0)
    assert free(state) == [70]
    state.apply_node(node("a", 100, digest=listing("u-p")))
    state.tick(1000.0)
    assert free(state) == [70]


def test_a_deleted_pod_that_the_ledger_never_had_counts_until_its_object_goes_and_a_moment_longer():
    state = cluster(node("a", 100))
    done = started(state, pod("p", memory=30))
    alloc = done["metadata"]["annotations"]["gpu-hook.io/alloc"]
    state.apply_pod(bound(pod("p", memory=30), "a", alloc, deleting=True))
    assert free(state) == [70]
    state.remove_pod("u-p", 100.0)
    assert free(state) == [70]  # its container may be starting at this moment
    state.tick(100.0 + GRACE - 0.1)
    assert free(state) == [70]
    state.tick(100.0 + GRACE)
    assert free(state) == [100] and not state.pods


def test_an_object_deleted_by_force_frees_nothing_while_the_container_runs():
    state = cluster(node("a", 100, digest=listing("u-p")))
    started(state, pod("p", memory=30))
    state.remove_pod("u-p", 0.0)
    state.tick(1000.0)
    assert free(state) == [70]
    state.apply_node(node("a", 100, digest=listing()))
    assert free(state) == [100] and not state.pods


def test_a_new_process_waits_for_the_share_of_a_deleted_pod_whose_containers_run_but_not_for_ever():
    at = node("a", 100, digest=listing("u-p"))
    done = started(cluster(at), pod("p", memory=30))
    other = Question(words(pod("q", memory=5)))
    state = cluster(at)
    state.tick(0.0)  # as while the pods are still read
    assert not isinstance(choose(state, other), Chosen)
    state.apply_pod(done)
    assert isinstance(found := choose(state, other), Chosen)
    for end in ("reports", "is cut off"):
        state = cluster(at)
        state.tick(0.0)
        why = choose(state, other)["a"].problem
        assert why.code == "GH-201" and "deleted pod" in why.message and not stays(state, other, "a", found.fit)
        state.tick(FORCED - 1)
        assert not isinstance(choose(state, other), Chosen)
        if end == "reports":
            state.apply_node(node("a", 100, digest=listing()))
        else:
            state.tick(FORCED)
        assert isinstance(choose(state, other), Chosen) and stays(state, other, "a", found.fit)


def test_a_pod_that_is_being_bound_closes_no_node():
    """Its node's report may come before its own event."""
    state = cluster(node("a", 100))
    state.apply_pod(obj := pod("p", memory=30))
    reserve(state, obj)
    state.apply_node(node("a", 100, digest=listing("u-p")))
    state.tick(1.0)
    assert isinstance(choose(state, Question(words(pod("q", memory=5)))), Chosen)


def test_a_new_pod_of_the_same_name_is_another_one():
    state = cluster(node("a", 100, digest=listing("u-p")))
    started(state, pod("p", memory=30))
    state.remove_pod("u-p", 0.0)
    again = pod("p", uid="u-2", memory=30)
    started(state, again)
    assert free(state) == [40]
    assert set(state.pods) == {"u-p", "u-2"}


# --- grants without a decision


def local(mib, uid="", whole=False):
    share = Share("GPU-a-0", mib, 10, 100, whole)
    return Grant("x", Identity("", "docker", "", pod_uid=uid), Life(""), (share,), Terms())


def test_grants_that_the_node_made_itself_count():
    state = cluster(node("a", 100, 100, digest=Digest((), (local(60),))))
    assert free(state) == [40, 100]
    state.apply_node(node("a", 100, 100, digest=Digest((), (local(100, whole=True),))))
    assert free(state) == [0, 100]
    state.apply_node(node("a", 100, 100))
    assert free(state) == [100, 100]


def test_the_ledger_is_read_again_when_the_inventory_changes():
    """The ledger refers to GPUs by their place in the inventory."""
    state = cluster(node("a", 100, 100, digest=Digest((), (local(60),))))
    other = node("a", 100, gpus="new", digest=Digest((), (local(60).replace(shares=(Share("GPU-new-0", 60, 10),)),)))
    assert other["metadata"]["annotations"]["gpu-hook.io/ledger"].count("60")
    state.apply_node(other)
    assert free(state) == [40]


@pytest.mark.parametrize("key", ["inventory", "ledger"])
@pytest.mark.parametrize(
    "text", ["{", "[]", '{"v":1}', "x" * (257 << 10), '{"v":1,"pods":{},"local":[[1]],"refused":{}}']
)
def test_a_node_whose_annotations_cannot_be_read_is_not_chosen(key, text):
    state = cluster(node("a", 100))
    said = words(pod("p", memory=5))
    assert isinstance(choose(state, Question(said)), Chosen)
    broken = node("a", 100)
    broken["metadata"]["annotations"][f"gpu-hook.io/{key}"] = text
    state.apply_node(broken)
    refused = choose(state, Question(said))
    assert refused["a"].problem.code == "GH-606" and len(str(refused["a"].problem)) < 300
    state.apply_node(node("a", 100))
    assert isinstance(choose(state, Question(said)), Chosen)


@pytest.mark.parametrize(
    "rules",
    [{"memory_step": 0}, {"compute_step": 0}, {"placement": "x"}, {"max_shares_per_gpu": "9"}, {"memory_reserve": [1]}],
)
def test_rules_that_no_setting_allows_are_refused(rules):
    """A node can write any text into its annotation; it must not crash the controller."""
    state = cluster(node("a", 100), node("b", 100))
    broken = node("a", 100)
    text = broken["metadata"]["annotations"]["gpu-hook.io/inventory"]
    broken["metadata"]["annotations"]["gpu-hook.io/inventory"] = json.dumps({**json.loads(text), "rules": rules})
    state.apply_node(broken)
    assert state.nodes["a"].problem
    found = choose(state, Question(words(pod("p", memory="10%", compute=5))))
    assert isinstance(found, Chosen) and found.node == "b"


@pytest.mark.parametrize("driver, read", [("\u00b2", True), ("\u00b2.1", True), ("5" * 64, True), ("5" * 5000, False)])
def test_a_driver_s_version_that_is_no_number_is_an_old_one(driver, read):
    state = cluster()
    odd = node("a", 100, rules=Rules(oversubscribe=200))
    notes = odd["metadata"]["annotations"]
    notes["gpu-hook.io/inventory"] = json.dumps({**json.loads(notes["gpu-hook.io/inventory"]), "driver": driver})
    state.apply_node(odd)
    assert isinstance(choose(state, Question(words(pod("p", memory=100, compute=5)))), Chosen) == read
    assert not read or isinstance(choose(state, Question(words(pod("p", memory=101, compute=5)))), dict)


# --- reservations


def reserve(state, obj, now=0.0):
    said = words(obj)
    state.release(said.uid)
    found = choose(state, Question(said))
    assert isinstance(found, Chosen)
    state.reserve(said, found.node, found.fit, now)
    return found


def test_a_reservation_counts_and_ends_with_its_time():
    state = cluster(node("a", 100))
    reserve(state, pod("p", memory=30), 5.0)
    assert free(state) == [70]
    assert state.tick(5.0 + RESERVED - 0.1) == () and free(state) == [70]
    assert state.tick(5.0 + RESERVED) == () and free(state) == [100]


def test_the_next_filter_of_a_pod_replaces_its_reservation():
    state = cluster(node("a", 100))
    reserve(state, pod("p", memory=80))
    reserve(state, pod("p", memory=90))
    assert free(state) == [10] and len(state.reservations) == 1


def test_a_reservation_ends_with_its_pod():
    state = cluster(node("a", 100))
    obj = pod("p", memory=30)
    state.apply_pod(obj)
    reserve(state, obj)
    state.remove_pod("u-p", 0.0)
    assert free(state) == [100] and not state.pods and state.pending("default", "p") is None


def test_an_answered_binding_counts_until_somebody_looked():
    """The watch may lag: the room stays taken until the caller knows the result of the Binding."""
    state = cluster(node("a", 100))
    obj = pod("p", memory=30)
    state.apply_pod(obj)
    answer = admission.bind(binding(obj, "a"), state, 0.0, SIGNER.sign)
    state.apply_pod(obj)  # a stale event of the pod without a node
    assert state.tick(CONFIRMED - 1) == ()
    assert [said.uid for said in state.tick(CONFIRMED)] == ["u-p"] and free(state) == [70]
    state.apply_pod(bound(obj, "a", alloc_of(answer)))
    assert state.tick(CONFIRMED) == () and free(state) == [70]


def test_a_binding_that_failed_is_released_by_the_caller():
    state = cluster(node("a", 100))
    obj = pod("p", memory=30)
    state.apply_pod(obj)
    admission.bind(binding(obj, "a"), state, 0.0, SIGNER.sign)
    state.release(state.tick(CONFIRMED)[0].uid)
    assert free(state) == [100]


def test_a_pod_bound_past_the_webhook_frees_its_reservation():
    state = cluster(node("a", 100), node("b", 100))
    obj = pod("p", memory=30)
    state.apply_pod(obj)
    reserve(state, obj)
    state.apply_pod(bound(obj, "b", None))
    assert free(state, "a") == [100] == free(state, "b")


def test_a_removed_pod_or_node_that_is_not_known_changes_nothing():
    state = cluster(node("a", 100))
    state.remove_pod("nobody", 0.0)
    state.remove_node("nowhere")
    state.release("nobody")
    assert state.tick(0.0) == () and free(state) == [100]


def test_nothing_is_kept_of_what_is_gone():
    state = cluster(node("a", 100))
    for i in range(50):
        started(state, pod(f"p{i}", memory=2))
    for i in range(50):
        state.remove_pod(f"u-p{i}", 0.0)
    state.tick(FORCED)
    state.remove_node("a")
    state.refresh()
    held = (
        state.nodes,
        state.pods,
        state.reservations,
        state._pending,
        state._ghosts,
        state._inventories,
        state.cut.rooms,
    )
    assert not any(held)


def test_a_node_that_changes_its_rules_all_the_time_takes_no_memory():
    state = cluster()
    for n in range(3 * INVENTORIES):
        state.apply_node(node("a", 100, rules=Rules(dialects=(f"x{n}",))))
    assert len(state._rules) <= INVENTORIES
