"""What tenants, single nodes and callers who know a token may write must cost a bounded time, and change nothing of others."""

import asyncio
import json
import time
from typing import Any

import pytest

from oci_hook.core.decision import POLICIES, DecidedShare, DecidedTerms, Decision
from oci_hook.core.decision import text as decision_text
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest
from oci_hook.errors import Problem, RequestError
from oci_hook.kube import admission, calm, extender, manifest, mutate, preempt
from oci_hook.kube.choose import TOO_MUCH, Chosen, Question, choose, judge, unsuited
from oci_hook.kube.controller import unasked
from oci_hook.kube.controller.wanting import Wanting
from oci_hook.kube.disruption import MOST_WORDS, Budgets, budget
from oci_hook.kube.fragments import MOST_KINDS, Fragments
from oci_hook.kube.pods import MAX_CONTAINERS, MAX_DECIDED, words
from oci_hook.kube.state import ClusterState
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, listing, node, pod

MANY = tuple(f"c{n}" for n in range(64))


def cluster(*nodes: Any) -> ClusterState:
    state = ClusterState(verify=SIGNER.holds)
    for one in nodes:
        state.apply_node(one)
    return state


def asked(obj: Any) -> Question:
    return Question(words(obj))


def run(state: ClusterState, obj: Any, where: str) -> None:
    state.apply_pod(obj)
    text = alloc_of(admission.bind(binding(obj, where), state, 0.0, SIGNER.sign))
    state.apply_pod(bound(obj, where, text))


# --- budgets


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
    assert preempt.plan(state, big, "a", budgets) is preempt.KEPT  # none is compared: that would take seconds
    budgets.drop("b")
    assert isinstance(preempt.plan(state, asked(pod("big", gpus=1, priority=9)), "a", budgets), preempt.Plan)


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


# --- nodes that say they have very many GPUs


def test_a_node_of_512_gpus_is_not_looked_at_for_a_pod_of_very_many() -> None:
    state = cluster(node("huge", *[1000] * 512))
    large = pod("large", containers=MANY, gpus=4)
    assert judge(state, asked(large), "huge") is TOO_MUCH
    state.apply_node(node("usual", *[1000] * 8))
    found = choose(state, asked(pod("p", containers=MANY, memory=1)))
    assert isinstance(found, Chosen)


def test_a_plan_on_a_node_of_512_gpus_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster(node("huge", *[1000] * 512))
    run(state, pod("small", memory=600, devices="GPU-huge-0"), "huge")
    looked = []
    real = preempt.fit
    monkeypatch.setattr(preempt, "fit", lambda *args: looked.append(1) or real(*args))
    assert preempt.plan(state, asked(pod("large", containers=MANY, gpus=4, priority=9)), "huge") is None
    assert not looked


def test_interference_compares_a_bounded_number_of_equal_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster(node("huge", *[1000] * 512))
    state.interference = True
    looked = []
    real = calm.fit
    monkeypatch.setattr(calm, "fit", lambda *args: looked.append(1) or real(*args))
    assert isinstance(choose(state, asked(pod("p", memory=10))), Chosen)
    assert len(looked) <= calm.TRIES


# --- callers who know a token


@pytest.mark.parametrize("names", ([["a"]], [{}], "a", {"a": 1}, [1]))
@pytest.mark.parametrize("dry_run", (False, True))
def test_names_that_are_none_leave_the_reservation(names: Any, dry_run: bool) -> None:
    state = cluster(node("a", 1000))
    waits = pod("p", memory=10)
    state.apply_pod(waits)
    assert extender.filter({"Pod": waits, "NodeNames": ["a"]}, state, 0.0)["NodeNames"] == ["a"]
    with pytest.raises(ValueError, match="no list of names"):
        extender.filter({"Pod": waits, "NodeNames": names}, state, 0.0, dry_run=dry_run)
    assert list(state.reservations) == ["u-p"]


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


# --- classes


def test_a_small_online_container_makes_no_online_pod() -> None:
    mixed = {"memory__a": 1, "class__a": "online", "memory__b": 900, "class__b": "offline"}
    assert not preempt.online(asked(pod("m", containers=("a", "b"), **mixed)))
    assert preempt.online(asked(pod("m", containers=("a", "b"), **{**mixed, "class__b": "online"})))
    assert not preempt.online(asked(pod("m")))


# --- manifests

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
MERGES = "m0: &m0 {a: b}\n" + "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}\n" for n in range(1, 9))
JOB = "kind: Job\nmetadata: {name: %s}\nspec: {template: {spec: {containers: [{name: c}]}}}\n"


@pytest.mark.parametrize(
    "text",
    (
        BOMB + JOB % "*a8",
        BOMB + "kind: *a8\nspec: {}\n",
        MERGES + JOB % "x",
        f"s: &s {'x' * 500_000}\n" + JOB % f"[{', '.join(['*s'] * 5000)}]",
        "kind: List\nitems: &l [{kind: List, items: *l}]\n",
    ),
)
def test_aliases_that_unfold_without_end_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="GH-107"):
        manifest.roles(text, mutate.Options(Rules(), ""))


def test_aliases_of_a_usual_number_are_read() -> None:
    text = "kind: Job\nmetadata: &m {name: j, labels: {a: &s b, c: *s}}\nspec: {template: {metadata: {<<: *m}, spec: {}}}\n"
    assert [one.name for one in manifest.roles(text, mutate.Options(Rules(), ""))] == ["j"]


# --- annotations of one pod

DEEP = ("[" * 3000, '{"a":' * 3000, "[" * 3000 + "]" * 3000)


@pytest.mark.parametrize("text", DEEP)
def test_json_that_is_nested_too_deep_is_a_problem_of_its_pod(text: str) -> None:
    with pytest.raises(RequestError, match=r"GH-101.*nested too deep"):
        asked(pod("p", request=text)).asked(Rules())
    with pytest.raises(RequestError, match=r"GH-101.*nested too deep"):
        mutate.mutate(pod("p", request=text), mutate.Options(Rules()))


@pytest.mark.parametrize("verified", (True, False))
def test_a_decision_for_a_pod_whose_request_is_nested_too_deep_counts(verified: bool) -> None:
    state = ClusterState(verify=SIGNER.holds if verified else lambda decision: False)
    state.apply_node(node("a", 100))
    share, terms = DecidedShare("GPU-a-0", 0), DecidedTerms(POLICIES[0], "default")
    made = SIGNER.sign(Decision("u-p", "a", 0, (("main", (share,)),), (("main", terms),)), 1)
    state.apply_pod(bound(pod("p", request=DEEP[0]), "a", decision_text(made)))
    state.apply_node(node("a", 100, digest=listing("u-p")))
    assert [row.alone for row in state.pods["u-p"].rows] == [True]


def test_a_pod_that_cannot_be_read_does_not_end_the_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(question: Question) -> bool:
        if question.pod.name == "bad":
            raise ZeroDivisionError
        return True

    monkeypatch.setattr(unasked, "online", read)
    state = cluster(node("a", 100))
    for name in ("bad", "good"):
        state.apply_pod(pod(name, memory=10))
    said: list[str] = []
    looks = unasked.Unasked(None, state, Wanting(), preempt.Terms(equal_offline=True), ("default",), said.append)  # type: ignore[arg-type]
    asyncio.run(looks.look(0.0))
    asyncio.run(looks.look(1.0))
    assert {uid: seen.online for uid, seen in looks._seen.items()} == {"u-bad": False, "u-good": True}
    assert [line.split(":")[0] for line in said] == ["default/bad"]


@pytest.mark.parametrize(
    "limits", ({}, {"gpu-hook.io/gpus": "1", "gpu-hook.io/memory-mib": "7"}, {"tensorstack.dev/nvidia-gpu": "1"})
)
def test_more_containers_than_can_be_read_are_refused_before_any_is_read(
    limits: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {} if limits else {"memory": 10}
    many = pod("p", containers=tuple(f"c{n}" for n in range(MAX_CONTAINERS + 1)), **words)
    for container in many["spec"]["containers"]:
        container["resources"] = {"limits": limits}
    monkeypatch.setattr(mutate, "read_pod", None)
    with pytest.raises(RequestError, match=r"GH-105.*more than 128 containers"):
        mutate.mutate(many, mutate.Options(Rules(dialects=("t9k",))))


def test_more_containers_without_a_word_for_us_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "read_pod", None)
    many = pod("p", containers=tuple(f"c{n}" for n in range(1000)))
    assert mutate.mutate(many, mutate.Options(Rules())) == mutate.Mutation()


def test_words_that_name_containers_are_decoded_for_the_pod_not_for_each_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = json.dumps({name: [{"memory": "1Mi"}] for name in MANY})
    many = pod("p", containers=MANY, request=text)
    read: list[int] = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **how: read.append(len(text)) or real(text, **how))
    assert mutate.mutate(many, mutate.Options(Rules())).asks
    assert len(asked(many).asked(Rules())) == len(MANY)
    assert sum(read) < 16 * len(text)


@pytest.mark.parametrize(
    "words", ({"memory": "1" * 5000}, {"request": "[{}" + " " * 5000 + "]"}, {"class": "a," * 20_000})
)
def test_annotations_that_are_too_long_to_be_read_for_each_container(words: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="GH-105"):
        asked(pod("p", containers=MANY, **words)).asked(Rules())
    with pytest.raises(RequestError, match="GH-105"):
        mutate.mutate(pod("p", containers=MANY, **words), mutate.Options(Rules()))


def test_as_many_containers_as_are_allowed_may_each_ask_for_their_own_with_long_names() -> None:
    names = tuple(f"{'c' * 47}-{n}" for n in range(MAX_CONTAINERS))
    many = pod("p", containers=names)
    for n, container in enumerate(many["spec"]["containers"][:MAX_DECIDED]):
        amounts = {"gpus": "1", "memory-mib": str(1000 + n), "compute": "1"}
        container["resources"] = {"limits": {f"gpu-hook.io/{key}": amount for key, amount in amounts.items()}}
    began = time.process_time()
    done = mutate.mutate(many, mutate.Options(Rules()))
    assert time.process_time() - began < 8  # 0.1 s; names that are alike, each compared with each, took half a minute
    many["metadata"]["annotations"] = next(o["value"] for o in done.patch if o["path"] == "/metadata/annotations")
    requests = asked(many).asked(Rules())
    assert [request.gpus[0].memory for _, _, request in requests] == [("mib", 1000 + n) for n in range(MAX_DECIDED)]


def test_what_one_container_asks_for_is_no_miss_of_another_that_says_how() -> None:
    two = pod("p", containers=("trainer", "trianer"), memory__trainer=10, **{"class__trianer": "online"})
    assert mutate.mutate(two, mutate.Options(Rules())).asks


def test_containers_that_a_word_does_not_name_get_nothing_of_it() -> None:
    def named(**words: Any) -> list[str]:
        some = pod("p", containers=("a", "b", "c"))
        some["metadata"]["annotations"] = {f"gpu-hook.io/{key}": text for key, text in words.items()}
        return [name for name, _, _ in asked(some).asked(Rules())]

    assert named(containers="b, gone", memory="10") == ["b"]
    assert named(containers="gone", memory="10") == []
    assert named(request=json.dumps({"c": [{"memory": 10}], "gone": [{"memory": 10}]})) == ["c"]


def test_the_gpus_that_a_pod_names_are_collected_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster(*(node(f"n{n}", 100) for n in range(20)))
    names = ",".join(f"MIG-GPU-n/{n}/0" for n in range(16))
    question = asked(pod("p", containers=MANY[:100], memory=10, devices=names))
    wishes = sum(len(request.gpus) for _, _, request in question.asked(state.nodes["n0"].rules))
    looked: list[int] = []
    real = GpuRequest.__dict__["whole"].fget
    monkeypatch.setattr(GpuRequest, "whole", property(lambda wish: looked.append(1) or real(wish)))
    assert len(judge_names(state, question)) == 20
    assert len(looked) <= 2 * wishes


def judge_names(state: ClusterState, question: Question) -> list[Any]:
    return [unsuited(question, one) for one in state.nodes.values()]


def test_little_is_kept_of_a_pod_however_large_it_is() -> None:
    """Some hundred of them filled the controller's memory."""
    large = pod("large", containers=tuple(f"c{n}" for n in range(12_000)), memory=1)
    large["spec"]["initContainers"] = [{"name": f"i{n}"} for n in range(12_000)]
    large["metadata"]["labels"] = {f"l{n}": "x" for n in range(15_000)}
    state = cluster(node("a", 100))
    state.apply_pod(large)
    kept = state.pods["u-large"]
    assert kept.words is not None and len(kept.words.containers) <= 2 * MAX_CONTAINERS + 2 and len(kept.labels) == 64
    problem = Question(kept.words).under(Rules())
    assert isinstance(problem, Problem) and problem.code == "GH-105"
