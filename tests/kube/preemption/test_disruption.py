"""PodDisruptionBudgets: the pods that they protect, and the evictions that they allow."""

import pytest

from oci_hook.kube.placing.records import PodRecord
from oci_hook.kube.pod.asked import words
from oci_hook.kube.preemption.disruption import BETA, Allowance, Budgets, budget, violations
from tests.kube.cluster_objects import pod


def made(name, namespace="default", **labels):
    obj = pod(name, memory=1, node_name="a")
    obj["metadata"] |= {"labels": labels, "namespace": namespace}
    return PodRecord(obj, words(obj))


def pdb(selector, allowed=1, beta=False, observed=1, generation=1, **status):
    meta = {"uid": "b", "name": "b", "namespace": "default", "generation": generation}
    status = {"disruptionsAllowed": allowed, "observedGeneration": observed, **status}
    return budget({"metadata": meta, "spec": {"selector": selector}, "status": status}, BETA if beta else "")


@pytest.mark.parametrize(
    ("selector", "beta", "matches"),
    [
        ({"matchLabels": {"app": "s"}}, False, True),
        ({"matchLabels": {"app": "t"}}, False, False),
        ({"matchLabels": {"app": "s", "tier": "x"}}, False, False),
        ({}, False, True),
        ({}, True, False),
        (None, False, False),
        (None, True, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["r", "s"]}]}, True, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["s"]}]}, False, False),
        ({"matchExpressions": [{"key": "no", "operator": "NotIn", "values": ["s"]}]}, False, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, False, True),
        ({"matchExpressions": [{"key": "no", "operator": "Exists"}]}, False, False),
        ({"matchExpressions": [{"key": "no", "operator": "DoesNotExist", "values": None}]}, False, True),
    ],
)
def test_whom_a_selector_means(selector, beta, matches):
    one = pdb(selector, beta=beta)
    assert one.covers("default", {"app": "s"}) == matches
    assert not one.covers("other", {"app": "s"})


@pytest.mark.parametrize(("allowed", "pods", "over"), [(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 2, 1), (64, 65, 1)])
def test_each_victim_takes_one(allowed, pods, over):
    budgets = Budgets([pdb({}, allowed)])
    assert violations(budgets, [made(f"p{i}") for i in range(pods)]) == over


def test_a_stale_status_allows_nothing_and_what_was_counted_is_not_counted_again():
    assert violations(Budgets([pdb({}, 5, generation=2)]), [made("p")]) == 1
    counted = Budgets([pdb({}, 0, disruptedPods={"p": "2026-01-01T00:00:00Z"})])
    assert violations(counted, [made("p")]) == 0 and violations(counted, [made("q")]) == 1
    assert violations(Budgets([pdb({}, 0, disruptedPods=None)]), [made("p")]) == 1


def test_a_budget_that_goes_protects_no_longer():
    budgets = Budgets([pdb({}, 0)])
    assert not Allowance(budgets).take(made("p"))
    budgets.drop("b")
    budgets.drop("b")
    assert Allowance(budgets).take(made("p"))
