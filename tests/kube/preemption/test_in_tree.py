"""Pods that wait for our sums only, by the scheduler's message."""

import pytest

from oci_hook.kube.preemption.in_tree import waits_for_sums


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
        (
            "0/4 nodes are available: 1 node(s) didn't match Pod's required features, 3 Insufficient gpu-hook.io/memory-mib.",
            False,
        ),
        ("", False),
        (None, False),
    ],
)
def test_what_the_scheduler_says(message, ours):
    assert waits_for_sums(waiting(message)) == ours


@pytest.mark.parametrize(
    "spec",
    [
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
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}, "nodeAffinity": None}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {"containers": [{"ports": [{"containerPort": 80}]}]},
    ],
)
def test_wishes_that_order_nodes_and_those_that_are_judged_do_not_matter(spec):
    assert waits_for_sums(waiting(OURS, **spec))


def test_other_conditions():
    assert not waits_for_sums(waiting(OURS, reason="SchedulerError"))
    assert not waits_for_sums(waiting(OURS, status="True"))
    assert not waits_for_sums({"metadata": {}}) and not waits_for_sums({"status": {"conditions": None}})
