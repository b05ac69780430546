"""Nodes that report very many GPUs, and very large pods, cost bounded time and little memory."""

from typing import Any

import pytest

from oci_hook.core.decision import POLICIES, DecidedShare, DecidedTerms, Decision
from oci_hook.core.decision import text as decision_text
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest
from oci_hook.errors import Problem
from oci_hook.kube.placing.choose import TOO_MUCH, Chosen, Question, choose, judge, unsuited
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import MAX_CONTAINERS
from tests.kube.cluster_objects import SIGNER, asked, bound, cluster, listing, node, pod

MANY = tuple(f"c{n}" for n in range(64))


def test_a_node_of_512_gpus_is_not_looked_at_for_a_pod_of_very_many() -> None:
    state = cluster(node("huge", *[1000] * 512))
    large = pod("large", containers=MANY, gpus=4)
    assert judge(state, asked(large), "huge") is TOO_MUCH
    state.apply_node(node("usual", *[1000] * 8))
    found = choose(state, asked(pod("p", containers=MANY, memory=1)))
    assert isinstance(found, Chosen)


DEEP = ("[" * 3000, '{"a":' * 3000, "[" * 3000 + "]" * 3000)


@pytest.mark.parametrize("verified", (True, False))
def test_a_decision_for_a_pod_whose_request_is_nested_too_deep_counts(verified: bool) -> None:
    state = ClusterState(verify=SIGNER.holds if verified else lambda decision: False)
    state.apply_node(node("a", 100))
    share, terms = DecidedShare("GPU-a-0", 0), DecidedTerms(POLICIES[0], "default")
    made = SIGNER.sign(Decision("u-p", "a", 0, (("main", (share,)),), (("main", terms),)), 1)
    state.apply_pod(bound(pod("p", request=DEEP[0]), "a", decision_text(made)))
    state.apply_node(node("a", 100, digest=listing("u-p")))
    assert [row.alone for row in state.pods["u-p"].rows] == [True]


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
    """A few hundred such pods filled the controller's memory."""
    large = pod("large", containers=tuple(f"c{n}" for n in range(12_000)), memory=1)
    large["spec"]["initContainers"] = [{"name": f"i{n}"} for n in range(12_000)]
    large["metadata"]["labels"] = {f"l{n}": "x" for n in range(15_000)}
    state = cluster(node("a", 100))
    state.apply_pod(large)
    kept = state.pods["u-large"]
    assert kept.words is not None and len(kept.words.containers) <= 2 * MAX_CONTAINERS + 2 and len(kept.labels) == 64
    problem = Question(kept.words).under(Rules())
    assert isinstance(problem, Problem) and problem.code == "GH-105"
