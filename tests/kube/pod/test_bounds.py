"""A pod's annotations are bounded, and affect only that pod."""

import json
import time
from typing import Any

import pytest

from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError
from oci_hook.kube.pod import mutate
from oci_hook.kube.pod.asked import MAX_CONTAINERS, MAX_DECIDED, MAX_WORDS, is_daemon
from tests.kube.cluster_objects import asked, pod

MANY = tuple(f"c{n}" for n in range(64))


@pytest.mark.parametrize("many", (1, 5, 5000))
@pytest.mark.parametrize("first", (False, True))
def test_words_too_long_to_be_read_are_not_kept(many: int, first: bool) -> None:
    """Each pod of a cluster is in the controller's memory, whoever made it."""
    made = pod("p", memory=10)
    notes = {f"gpu-hook.io/x{n}": "x" * (500_000 // many) for n in range(many)}
    long = {"gpu-hook.io/asked": "1" * 200_000, "gpu-hook.io/alloc": "x" * 200_000}
    said = made["metadata"]["annotations"]
    made["metadata"]["annotations"] = {**long, **notes, **said} if first else {**said, **notes, **long}
    words = asked(made)
    assert sum(len(key) + len(text) for key, text in words.pod.annotations.items()) < 3 * MAX_WORDS
    with pytest.raises(RequestError, match="GH-105"):
        words.asked(Rules())


def test_what_asks_for_nothing_hides_no_request() -> None:
    made = pod("p", memory=10)
    notes = {"gpu-hook.io/asked": "1" * 200_000, "gpu-hook.io/alloc": "x" * 200_000}
    made["metadata"]["annotations"] = notes | made["metadata"]["annotations"]
    assert [name for name, _, _ in asked(made).asked(Rules())] == ["main"]


@pytest.mark.parametrize(
    ("owner", "believed"),
    [
        ({"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}, True),
        ({"apiVersion": "v1", "kind": "Node", "controller": True}, True),
        ({"apiVersion": "evil/v1", "kind": "DaemonSet", "controller": True}, False),
        ({"apiVersion": "apps/v1", "kind": "DaemonSet"}, False),
        ({"kind": "Node", "controller": True}, False),
    ],
)
def test_an_owner_that_nobody_looks_for_counts_for_nothing(owner: dict[str, Any], believed: bool) -> None:
    """The garbage collector ends pods whose owner of a known kind does not exist."""
    assert is_daemon({"ownerReferences": [{"name": "x", **owner}]}) == believed


DEEP = ("[" * 3000, '{"a":' * 3000, "[" * 3000 + "]" * 3000)


@pytest.mark.parametrize("text", DEEP)
def test_json_that_is_nested_too_deep_is_a_problem_of_its_pod(text: str) -> None:
    with pytest.raises(RequestError, match=r"GH-101.*nested too deep"):
        asked(pod("p", request=text)).asked(Rules())
    with pytest.raises(RequestError, match=r"GH-101.*nested too deep"):
        mutate.mutate(pod("p", request=text), mutate.WebhookOptions(Rules()))


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
        mutate.mutate(many, mutate.WebhookOptions(Rules(dialects=("t9k",))))


def test_more_containers_without_a_word_for_us_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "read_pod", None)
    many = pod("p", containers=tuple(f"c{n}" for n in range(1000)))
    assert mutate.mutate(many, mutate.WebhookOptions(Rules())) == mutate.Mutation()


def test_words_that_name_containers_are_decoded_for_the_pod_not_for_each_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = json.dumps({name: [{"memory": "1Mi"}] for name in MANY})
    many = pod("p", containers=MANY, request=text)
    read: list[int] = []
    real = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **how: read.append(len(text)) or real(text, **how))
    assert mutate.mutate(many, mutate.WebhookOptions(Rules())).asks
    assert len(asked(many).asked(Rules())) == len(MANY)
    assert sum(read) < 16 * len(text)


@pytest.mark.parametrize(
    "words", ({"memory": "1" * 5000}, {"request": "[{}" + " " * 5000 + "]"}, {"class": "a," * 20_000})
)
def test_annotations_that_are_too_long_to_be_read_for_each_container(words: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="GH-105"):
        asked(pod("p", containers=MANY, **words)).asked(Rules())
    with pytest.raises(RequestError, match="GH-105"):
        mutate.mutate(pod("p", containers=MANY, **words), mutate.WebhookOptions(Rules()))


def test_as_many_containers_as_are_allowed_may_each_ask_for_their_own_with_long_names() -> None:
    names = tuple(f"{'c' * 47}-{n}" for n in range(MAX_CONTAINERS))
    many = pod("p", containers=names)
    for n, container in enumerate(many["spec"]["containers"][:MAX_DECIDED]):
        amounts = {"gpus": "1", "memory-mib": str(1000 + n), "compute": "1"}
        container["resources"] = {"limits": {f"gpu-hook.io/{key}": amount for key, amount in amounts.items()}}
    began = time.process_time()
    done = mutate.mutate(many, mutate.WebhookOptions(Rules()))
    assert time.process_time() - began < 8  # takes 0.1 s; comparing all pairs of similar names took half a minute
    many["metadata"]["annotations"] = next(o["value"] for o in done.patch if o["path"] == "/metadata/annotations")
    requests = asked(many).asked(Rules())
    assert [request.gpus[0].memory for _, _, request in requests] == [("mib", 1000 + n) for n in range(MAX_DECIDED)]


@pytest.mark.parametrize("each", (False, True))
def test_more_containers_that_ask_than_a_decision_can_have_are_refused_at_creation(each: bool) -> None:
    """The filter would refuse the pod on every node, and it would wait for ever."""

    def of(asking: int) -> dict[str, Any]:
        made = pod("p", containers=tuple(f"c{n}" for n in range(asking)), **({} if each else {"memory": 10}))
        for container in made["spec"]["containers"]:
            container["resources"] = {"limits": {"gpu-hook.io/memory-mib": "10"}} if each else {}
        return made

    said = f"GH-602: {MAX_DECIDED + 1} containers ask for a GPU, a decision has {MAX_DECIDED} at most"
    with pytest.raises(RequestError, match=said):
        mutate.mutate(of(MAX_DECIDED + 1), mutate.WebhookOptions(Rules()))
    assert mutate.mutate(of(MAX_DECIDED), mutate.WebhookOptions(Rules())).asks


def test_what_one_container_asks_for_is_no_miss_of_another_that_says_how() -> None:
    two = pod("p", containers=("trainer", "trianer"), memory__trainer=10, **{"class__trianer": "online"})
    assert mutate.mutate(two, mutate.WebhookOptions(Rules())).asks


def test_containers_that_a_word_does_not_name_get_nothing_of_it() -> None:
    def named(**words: Any) -> list[str]:
        some = pod("p", containers=("a", "b", "c"))
        some["metadata"]["annotations"] = {f"gpu-hook.io/{key}": text for key, text in words.items()}
        return [name for name, _, _ in asked(some).asked(Rules())]

    assert named(containers="b, gone", memory="10") == ["b"]
    assert named(containers="gone", memory="10") == []
    assert named(request=json.dumps({"c": [{"memory": 10}], "gone": [{"memory": 10}]})) == ["c"]
