"""The bind webhook's answers."""

import pytest

from oci_hook.core.decision import read, signed_text
from oci_hook.kube.answers import admission, extender
from oci_hook.kube.answers.admission import UnknownPod
from oci_hook.kube.formats.signing import Signer, node_key
from oci_hook.kube.placing.cluster_state import ClusterState
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, node, patch_of, pod


def cluster(*objects):
    state = ClusterState(verify=SIGNER.holds)
    for one in objects:
        (state.apply_node if one["kind"] == "Node" else state.apply_pod)(one)
    return state


def bind(state, obj, name, now=0.0, **more):
    last = more.pop("last", False)
    return admission.bind(binding(obj, name, **more), state, now, SIGNER.sign, last)


def denial(answer):
    assert not answer["response"]["allowed"]
    return answer["response"]["status"]["message"]


def test_a_binding_gets_the_signed_decision_about_its_pod():
    import json

    obj = pod(
        "p", containers=("a", "b"), memory__a="30", compute__a=20, policy__a="fs", memory__b="10%", class__b="online"
    )
    state = cluster(node("n1", 100, 50), obj)
    answer = bind(state, obj, "n1")
    assert answer["response"]["uid"] == "r1" and answer["kind"] == "AdmissionReview"
    decision = read(alloc_of(answer), json.loads)
    assert (decision.uid, decision.node, decision.generation) == ("u-p", "n1", 1)
    assert [s.memory_mib for s in decision.shares("a")] == [30] and decision.shares("a")[0].compute_limit == 20
    assert decision.terms_of("a").policy == "fixed-share" and decision.terms_of("b").priority_class == "online"
    assert SIGNER.holds(decision)
    assert not SIGNER.holds(decision.replace(uid="u-q")) and not SIGNER.holds(decision.replace(node="n2"))


def test_annotations_of_the_binding_stay():
    obj = pod("p", memory=5)
    state = cluster(node("n1", 100), obj)
    ops = patch_of(bind(state, obj, "n1", annotations={"volcano.sh/x": "1"}))
    assert [op["path"] for op in ops] == ["/metadata/annotations/gpu-hook.io~1alloc"]
    ops = patch_of(bind(state, obj, "n1"))
    assert [(op["path"], list(op["value"])) for op in ops] == [("/metadata/annotations", ["gpu-hook.io/alloc"])]


def test_a_decision_in_the_binding_is_replaced():
    obj = pod("p", memory=5)
    state = cluster(node("n1", 100), obj)
    answer = bind(state, obj, "n1", annotations={"gpu-hook.io/alloc": "mine"})
    assert alloc_of(answer).startswith("{")


def test_a_binding_cannot_change_what_its_pod_asks_for():
    obj, plain = pod("p", memory=5), pod("q")
    state = cluster(node("n1", 100), obj, plain)
    same = obj["metadata"]["annotations"]["gpu-hook.io/memory"]
    assert bind(state, obj, "n1", annotations={"gpu-hook.io/memory": same})["response"]["allowed"]
    for one, key in ((obj, "memory"), (obj, "devices"), (plain, "memory"), (plain, "alloc")):
        assert f"GH-605: gpu-hook.io/{key} " in denial(bind(state, one, "n1", annotations={f"gpu-hook.io/{key}": "50"}))


def test_the_reservation_is_consumed_and_its_gpus_are_the_pods():
    obj, other = pod("p", memory=60), pod("q", memory=60)
    state = cluster(node("n1", 100, 100), obj, other)
    for one in (obj, other):
        assert extender.filter({"Pod": one, "NodeNames": ["n1"]}, state, 0.0)["NodeNames"] == ["n1"]
    reserved = dict(state.reservations["u-p"].fit.shares)["main"][0].uuid
    assert f'"{reserved}"' in alloc_of(bind(state, obj, "n1"))
    assert state.reservations["u-p"].bound
    assert bind(state, obj, "n1")["response"]["allowed"], "the API server may ask twice"
    assert alloc_of(bind(state, other, "n1")) != alloc_of(bind(state, obj, "n1"))


def test_without_an_extender_the_binding_itself_reserves():
    """Two Bindings arrive before the watch shows either."""
    state = cluster(node("n1", 100), pod("p", memory=60), pod("q", memory=60))
    assert bind(state, pod("p", memory=60), "n1")["response"]["allowed"]
    assert "GH-201" in denial(bind(state, pod("q", memory=60), "n1"))


def test_another_node_than_the_reserved_one_is_looked_at_anew():
    obj = pod("p", memory=60)
    state = cluster(node("n1", 100), node("n2", 100), obj)
    extender.filter({"Pod": obj, "NodeNames": ["n1"]}, state, 0.0)
    assert '"node":"n2"' in alloc_of(bind(state, obj, "n2"))
    assert state.reservations["u-p"].node == "n2"
    state.refresh()
    assert state.cut.rooms["n1"].most_mib == 100


def test_a_denial_keeps_the_reservation_for_the_next_try():
    obj = pod("p", memory=60)
    state = cluster(node("n1", 100), node("n2", 50), obj)
    extender.filter({"Pod": obj, "NodeNames": ["n1"]}, state, 0.0)
    assert "GH-201" in denial(bind(state, obj, "n2"))
    assert state.reservations["u-p"].node == "n1"


def test_what_the_node_granted_by_itself_meanwhile_is_seen():
    from oci_hook.core.grant import Grant, Identity, Life, Share
    from oci_hook.kube.formats.node_info import Digest

    obj = pod("p", memory=60)
    state = cluster(node("n1", 100, 100), obj)
    extender.filter({"Pod": obj, "NodeNames": ["n1"]}, state, 0.0)
    taken = dict(state.reservations["u-p"].fit.shares)["main"][0].uuid
    grant = Grant("x", Identity("", "docker", ""), Life(""), (Share(taken, 80),))
    state.apply_node(node("n1", 100, 100, digest=Digest((), (grant,))))
    assert taken not in alloc_of(bind(state, obj, "n1"))


def test_a_dry_run_changes_nothing():
    obj = pod("p", memory=60)
    state = cluster(node("n1", 100), obj)
    assert alloc_of(bind(state, obj, "n1", dry_run=True))
    assert not state.reservations


@pytest.mark.parametrize("name", ["nowhere", "", "silent"])
def test_a_node_that_says_nothing_of_its_gpus_gets_no_pod_that_asks(name):
    obj = pod("p", memory=60)
    silent = node("silent")
    del silent["metadata"]["annotations"]["gpu-hook.io/inventory"]
    state = cluster(silent, obj)
    assert denial(bind(state, obj, name)).startswith("GH-606")
    assert not state.reservations


def test_an_unknown_pod_is_fetched_by_the_caller():
    obj = pod("p", memory=60)
    state = cluster(node("n1", 100))
    assert bind(state, obj, "n1") == UnknownPod("default", "p")
    assert denial(bind(state, obj, "n1", last=True)).startswith("GH-603")
    state.apply_pod(obj)
    assert bind(state, obj, "n1", last=True)["response"]["allowed"]


def test_a_pod_that_only_the_filter_has_seen_is_known():
    obj = pod("p", memory=60)
    state = cluster(node("n1", 100))
    extender.filter({"Pod": obj, "NodeNames": ["n1"]}, state, 0.0)
    assert alloc_of(bind(state, obj, "n1"))


def test_a_binding_with_another_uid_is_for_another_pod():
    obj = pod("p", memory=60)
    state = cluster(node("n1", 100), obj)
    assert isinstance(bind(state, obj, "n1", uid="u-old"), UnknownPod)
    assert alloc_of(bind(state, obj, "n1", uid=""))  # old schedulers send no UID


def test_a_pod_that_asks_for_nothing_is_let_through_untouched():
    obj = pod("plain")
    state = cluster(node("n1", 100), obj)
    answer = bind(state, obj, "n1")
    assert answer["response"] == {"uid": "r1", "allowed": True}
    assert bind(state, obj, "not-ours")["response"]["allowed"]


def test_nobody_but_daemons_joins_a_pod_that_has_its_node():
    mine, plain, daemon = pod("mine", node="exclusive"), pod("plain"), pod("ds", owner="DaemonSet")
    state = cluster(node("n1", 100), mine, plain, daemon)
    answer = bind(state, mine, "n1")
    assert '"GPU-n1-0",0,' in alloc_of(answer)
    for _ in ("reserved", "bound"):
        assert "default/mine" in denial(bind(state, plain, "n1"))
        assert denial(bind(state, plain, "n1")).startswith("GH-609")
        assert bind(state, daemon, "n1")["response"]["allowed"]
        state.apply_pod(bound(mine, "n1", alloc_of(answer)))
    state.apply_pod(bound(mine, "n1", alloc_of(answer), phase="Succeeded"))
    assert bind(state, plain, "n1")["response"]["allowed"]


@pytest.mark.parametrize(
    "said", [{"memory": "4G"}, {"memory": "0"}, {"nonsense": "1"}, {"node_placement": "x", "memory": "5"}]
)
def test_a_request_that_is_not_valid_is_denied_with_its_code(said):
    obj = pod("p", **said)
    state = cluster(node("n1", 100), obj)
    assert denial(bind(state, obj, "n1")).startswith("GH-10")


def test_a_decision_that_no_node_would_read_is_not_made():
    names = tuple(f"c{i}" for i in range(65))
    obj = pod("p", containers=names, memory="1")
    state = cluster(node("n1", 100, 100), obj)
    assert denial(bind(state, obj, "n1")).startswith("GH-602")
    obj = pod("p", containers=tuple(f"c{i}" for i in range(129)), memory__c1="1")
    state.apply_pod(obj)
    assert denial(bind(state, obj, "n1")).startswith("GH-105")


# --- signatures


def test_the_key_that_the_node_has_signs_while_it_counts():
    signer = Signer({1: b"a" * 32, 2: b"b" * 32, 3: b"c" * 32})
    from oci_hook.core.decision import Decision

    plain = Decision("u", "n", 0, (), ())
    assert [signer.sign(plain, gen).generation for gen in (1, 2, 3, 0, 9)] == [3, 2, 3, 3, 3]
    assert signer.holds(signer.sign(plain, 2)) and not Signer({2: b"x" * 32}).holds(signer.sign(plain, 2))
    assert not Signer({3: b"c" * 32}).holds(signer.sign(plain, 2))
    with pytest.raises(ValueError):
        Signer({}).sign(plain, 1)


def test_a_signature_is_what_the_format_says():
    """HMAC-SHA256 of signed_text with the node's key, as openssl and the node compute it."""
    import hashlib
    import hmac

    decision = SIGNER.sign(read_like("n1"), 1)
    key = hmac.new(b"\x01" * 32, b"gpu-hook.io/node-key\0n1", hashlib.sha256).digest()
    assert node_key(b"\x01" * 32, "n1") == key
    assert decision.sig == hmac.new(key, signed_text(decision).encode(), hashlib.sha256).hexdigest()


def read_like(name):
    from oci_hook.core.decision import DecidedShare, DecidedTerms, Decision

    return Decision(
        "u", name, 0, (("c", (DecidedShare("GPU-a", 5, 1, 100),)),), (("c", DecidedTerms("burst-share", "default")),)
    )
