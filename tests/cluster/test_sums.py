"""The sums at work: what Kubernetes' own parts do with them, on the real cluster."""

from testbed.cluster import lab
from tests.cluster.whole import Namespace, Whole, pod

N1 = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}


def test_a_quota_counts_gpu_memory(whole: Whole, team: Namespace) -> None:
    hard = {"requests.gpu-hook.io/memory-mib": "4096", "requests.gpu-hook.io/gpus": "3"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    team.apply(quota)
    status = lambda: whole.object("-n", team.name, "get", "resourcequota", "gpus")["status"]  # noqa: E731
    lab.wait(60, "the quota counts", lambda: status()["used"]["requests.gpu-hook.io/memory-mib"] == "0")
    team.apply(pod("one", notes={"gpu-hook.io/memory": "3Gi"}))
    team.runs("one")
    assert "exceeded quota: gpus" in team.refused(pod("two", notes={"gpu-hook.io/memory": "1025Mi"}))
    team.apply(pod("three", notes={"gpu-hook.io/memory": "1Gi"}))
    team.runs("three")
    used = {"requests.gpu-hook.io/memory-mib": "4096", "requests.gpu-hook.io/gpus": "2"}
    lab.wait(60, "the quota says what is used", lambda: status()["used"] == used)
    team.delete("one")
    lab.wait(60, "what ended is given back", lambda: status()["used"]["requests.gpu-hook.io/memory-mib"] == "1024")


def test_kubectl_describe_node_shows_the_sums(whole: Whole, team: Namespace) -> None:
    team.apply(pod("one", notes={"gpu-hook.io/memory": "3Gi", "gpu-hook.io/compute": "30"}, **N1))
    team.runs("one")
    said = whole.kubectl("describe", "node", "n1")
    allocated = [line.split() for line in said.partition("Allocated resources")[2].splitlines()]
    rows = {row[0]: row[1:] for row in allocated if row and row[0].startswith("gpu-hook.io/")}
    assert rows["gpu-hook.io/memory-mib"] == ["3072", "3072"] and rows["gpu-hook.io/compute"] == ["30", "30"]
    capacity = {row[0]: row[1] for line in said.splitlines() if len(row := line.split()) == 2}
    assert capacity["gpu-hook.io/memory-mib:"] == "32768"


def test_a_higher_priority_takes_the_room(whole: Whole, team: Namespace) -> None:
    """Kubernetes' own preemption: one of the lower pods ends, and the higher one gets a GPU that is really free."""
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"{team.name}-{name}"},
            "value": value,
        }
        for name, value in (("low", 10), ("high", 1000))
    ]
    team.apply(*classes)
    try:
        low, high = ({"priorityClassName": f"{team.name}-{name}", **N1} for name in ("low", "high"))
        team.apply(*(pod(f"low-{n}", notes={"gpu-hook.io/memory": "12Gi"}, **low) for n in (1, 2)))
        for name in ("low-1", "low-2"):
            team.runs(name)
        team.apply(pod("equal", notes={"gpu-hook.io/memory": "12Gi"}, **low))
        team.apply(pod("high", notes={"gpu-hook.io/memory": "12Gi"}, **high))
        team.runs("high")
        there = [
            one for one in team.pods() if one["spec"].get("nodeName") and not one["metadata"].get("deletionTimestamp")
        ]
        left = [one["metadata"]["name"] for one in there]
        assert len(left) == 2 and "high" in left and "equal" not in left
        grants = team.grants()
        assert len({uuid for _, shares in grants.values() for uuid in shares}) == 2, grants
    finally:
        whole.kubectl("delete", "priorityclass", *(one["metadata"]["name"] for one in classes))


def test_kubernetes_own_packing_by_the_sums(whole: Whole, team: Namespace) -> None:
    """A profile of the scheduler that packs by the sums, without our extender: the Binding's decision is ours all the same."""
    whole.cluster.control.use_scheduler_config({"profiles": [lab.packing("gpu-hook.io/memory-mib", 100)]})
    try:
        team.apply(pod("seed", notes={"gpu-hook.io/memory": "1Gi"}, nodeSelector={"kubernetes.io/hostname": "n2"}))
        team.runs("seed")
        names = [f"p{n}" for n in range(5)]
        for name in names:
            team.apply(pod(name, notes={"gpu-hook.io/memory": "1Gi"}))
            assert team.runs(name)["spec"]["nodeName"] == "n2"
        grants = team.grants()
        assert {key: shares for key, (_, shares) in grants.items()} == {
            key: shares for key, (_, shares) in team.decided().items()
        }
    finally:
        whole.use_extender()
