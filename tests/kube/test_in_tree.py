"""Whether a pod waits for our sums alone, by the scheduler's words, and which nodes let it in."""

import pytest

from oci_hook.kube.in_tree import accepts, waits_for_sums


def waiting(message, reason="Unschedulable", status="False", **spec):
    condition = {"type": "PodScheduled", "status": status, "reason": reason, "message": message}
    return {"spec": spec, "status": {"conditions": [{"type": "Ready", "status": "False"}, condition]}}


OURS = "0/3 nodes are available: 3 Insufficient gpu-hook.io/memory-mib."


@pytest.mark.parametrize(
    ("message", "ours"),
    [
        (OURS, True),
        ("0/3 nodes are available: 1 Insufficient gpu-hook.io/gpus, 3 Insufficient gpu-hook.io/memory-mib.", True),
        (
            "0/3 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 2 Insufficient gpu-hook.io/compute.",
            True,
        ),
        (OURS + " preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.", True),
        (OURS + " preemption: 0/3 nodes are available: 3 Insufficient memory.", True),
        ("0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient gpu-hook.io/memory-mib.", False),
        ("0/3 nodes are available: 3 Insufficient cpu.", False),
        ("0/3 nodes are available: 1 Too many pods, 3 Insufficient gpu-hook.io/memory-mib.", False),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu, 3 Insufficient gpu-hook.io/gpus.", False),
        ("0/3 nodes are available: 3 GH-201: no GPU is free.", False),
        ("", False),
        (None, False),
    ],
)
def test_what_the_scheduler_says(message, ours):
    assert waits_for_sums(waiting(message)) == ours


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]},
        {"containers": [{"ports": [{"hostPort": 80}]}]},
        {"schedulingGates": [{"name": "g"}]},
        {"resourceClaims": [{"name": "g"}]},
    ],
)
def test_a_pod_of_filters_that_we_do_not_know_is_left_to_the_scheduler(spec):
    assert not waits_for_sums(waiting(OURS, **spec))


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": None},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}, "nodeAffinity": None}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {"containers": [{"ports": [{"containerPort": 80}]}]},
    ],
)
def test_wishes_that_only_order_nodes_do_not_matter(spec):
    assert waits_for_sums(waiting(OURS, **spec))


def test_other_conditions():
    assert not waits_for_sums(waiting(OURS, reason="SchedulerError"))
    assert not waits_for_sums(waiting(OURS, status="True"))
    assert not waits_for_sums({"metadata": {}}) and not waits_for_sums({"status": {"conditions": None}})


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("tolerations", "lets_in"),
    [
        (None, False),
        ([{"key": "k", "operator": "Exists"}], True),
        ([{"key": "k", "value": "v"}], True),
        ([{"key": "k", "value": "w"}], False),
        ([{"key": "k", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}], True),
        ([{"operator": "Exists"}], True),
        ([{"operator": "Equal"}], False),
    ],
)
def test_taints(tolerations, lets_in):
    node = {"metadata": {"name": "a"}, "spec": {"taints": [TAINT, {"key": "p", "effect": "PreferNoSchedule"}]}}
    assert accepts(node, {"spec": {"tolerations": tolerations}}) == lets_in


def test_labels_and_cordons():
    node = {"metadata": {"name": "a", "labels": {"x": "1"}}}
    assert accepts(node, {"spec": {"nodeSelector": {"x": "1"}}}) and accepts(node, {})
    assert not accepts(node, {"spec": {"nodeSelector": {"x": "2"}}})
    assert not accepts(node, {"spec": {"nodeSelector": {"y": ""}}})
    assert not accepts({**node, "spec": {"unschedulable": True}}, {})
    assert not accepts({"metadata": {**node["metadata"], "deletionTimestamp": "t"}}, {})
