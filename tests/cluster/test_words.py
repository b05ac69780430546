"""Pods in other systems' words, as their documentation prints them, run on the real cluster; what is wrong in them is refused
at `kubectl apply`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.cluster import lab
from tests.cluster import manifests
from tests.cluster.whole import Namespace, Whole, pod

QGPU = "tke.cloud.tencent.com/"
POLICIES = {"qgpu-schedule-policy": "fs", f"{QGPU}qgpu-schedule-policy": "best-effort"}
ENABLING = {
    "qgpu-device-enable": "enable",
    "nvidia-device-enable": "enable",
    "sched.tensorstack.dev/accelerator": "nvidia-gpu",
}
MODE = "sched.tensorstack.dev/node-alloc-mode"
TAINT = "sched.tensorstack.dev/xgn-mode"


@pytest.fixture
def labels(whole: Whole) -> Iterator[Any]:
    """Sets labels of nodes (None: takes one away); afterwards they are as they were."""
    touched: dict[str, set[str]] = {}

    def put(node: str, **values: str | None) -> None:
        touched.setdefault(node, set()).update(values)
        said = [f"{key}={value}" if value is not None else f"{key}-" for key, value in values.items()]
        whole.kubectl("label", "--overwrite", "node", node, *said)

    yield put
    for node, keys in touched.items():
        left = [f"{key}-" for key in keys - {"gpu-hook.io/node"}]
        whole.kubectl("label", "--overwrite", "node", node, "gpu-hook.io/node=true", *left)


def on(node: str) -> dict[str, Any]:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def environment(team: Namespace, name: str) -> tuple[set[str], set[str]]:
    """Variables about the GPU: of the first process, and of a command by `kubectl exec`."""
    execute = ("exec", name, "--")
    first = team.kubectl(*execute, "sh", "-c", "tr '\\0' '\\n' </proc/1/environ").splitlines()
    second = team.kubectl(*execute, "env").splitlines()
    ours = ("NVIDIA_", "GPU_HOOK_", "T9K_", "CUDA_")
    return tuple({line for line in lines if line.startswith(ours)} for lines in (first, second))  # type: ignore[return-value]


@pytest.mark.promise
def test_t9ks_manifests_byte_for_byte(whole: Whole, team: Namespace) -> None:
    team.kubectl("apply", "-f", "-", input=manifests.EXCLUSIVE_NODE)
    alone = team.runs("exlusive-node")
    own = alone["spec"]["nodeName"]
    for text in (manifests.EXCLUSIVE_GPU, manifests.SHARED_GPU):
        team.kubectl("apply", "-f", "-", input=text)
    for name, visible in (("exclusive-gpu", "GPU-"), ("shared-gpu", ("0", "1"))):
        made = team.runs(name)
        assert made["spec"]["nodeName"] != own and made["spec"]["schedulerName"] == "default-scheduler"
        first, second = environment(team, name)
        assert first == second
        [value] = [line.partition("=")[2] for line in first if line.startswith("NVIDIA_VISIBLE_DEVICES=")]
        assert value.startswith(visible)
    assert "NVIDIA_VISIBLE_DEVICES=all" in environment(team, "exlusive-node")[0]
    grants = team.grants()
    assert {key: (node, set(shares)) for key, (node, shares) in grants.items()} == {
        key: (node, set(shares)) for key, (node, shares) in team.decided().items()
    }
    assert len(grants["exclusive-gpu/exclusive"][1]) == 2
    node, shared = grants["shared-gpu/shared"]
    memory = 24576 if node == "n3" else 16384
    assert list(shared.values()) == [memory * 30 // 100]
    assert len(grants["exlusive-node/exlusive"][1]) == whole.cluster.node(own).gpus.count
    assert not set(grants["exclusive-gpu/exclusive"][1]) & set(shared) or grants["exclusive-gpu/exclusive"][0] != node

    # Nobody else comes onto the node while it is the pod's own, a pod without a GPU neither.
    team.apply(pod("other", **on(own)))
    team.says("other", "GH-609")
    assert not team.get("other")["spec"].get("nodeName")
    team.delete("exlusive-node")
    team.runs("other", 240)


WORDS: dict[str, tuple[dict[str, Any], int]] = {  # of one container, and the MiB that it gets
    "qgpu": ({f"{QGPU}qgpu-memory": "5", f"{QGPU}qgpu-core": "30"}, 5120),
    "gpu-manager": ({"nvidia.com/vcuda-core": 50, "nvidia.com/vcuda-memory": 2048}, 2048),
    "gpu-manager-blocks": ({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 15}, 3840),
    "hami": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 10}, 3000),
    "ours": ({"gpu-hook.io/memory-mib": 1024, "gpu-hook.io/compute": 10}, 1024),
}


@pytest.mark.promise
def test_resources_of_each_system(whole: Whole, team: Namespace) -> None:
    made = []
    for name, (limits, _) in WORDS.items():
        one = pod(name, limits)
        one["spec"]["containers"][0]["resources"]["requests"] = dict(limits)
        made.append(one)
    two = pod("whole", {"nvidia.com/vcuda-core": 200, "nvidia.com/vcuda-memory": 2048})
    hami = pod("hami-scheduler", WORDS["hami"][0], schedulerName="hami-scheduler")
    team.apply(*made, hami, two)
    for name, (_, mib) in WORDS.items():
        running = team.runs(name)
        node, shares = team.grants()[f"{name}/main"]
        assert list(shares.values()) == [mib] and node == running["spec"]["nodeName"]
        assert f"{mib} MiB total" in team.kubectl("logs", name)
        first, second = environment(team, name)
        assert first and first == second
    assert team.runs("hami-scheduler")["spec"]["schedulerName"] == "default-scheduler"
    team.runs("whole")
    assert len(team.grants()["whole/main"][1]) == 2


BAD = {
    "unequal": ({f"{QGPU}qgpu-memory": "5"}, {f"{QGPU}qgpu-memory": "4"}, "GH-103"),
    "fraction": ({"nvidia.com/vcuda-core": "1500m"}, None, "GH-101"),
    "between": ({"nvidia.com/vcuda-core": "150"}, None, "GH-101"),
    "over": ({"tensorstack.dev/nvidia-gpu-percent": "101"}, None, "GH-101"),
    "two-ways": ({"tensorstack.dev/nvidia-gpu": "1", "tensorstack.dev/nvidia-gpu-percent": "30"}, None, "GH-103"),
}


@pytest.mark.promise
def test_what_is_wrong_is_refused_at_apply(whole: Whole, team: Namespace) -> None:
    for name, (limits, requests, code) in BAD.items():
        one = pod(name, limits)
        one["spec"]["containers"][0]["resources"]["requests"] = requests or dict(limits)
        assert code in team.refused(one)
    assert team.pods() == []


def test_t9ks_node_modes(whole: Whole, team: Namespace, labels: Any) -> None:
    """xgn: whole GPUs alone, by a taint that the controller puts and takes away; T9k's pods go to nodes of their mode."""

    def taints() -> list[str]:
        return [one["key"] for one in whole.object("get", "node", "n1")["spec"].get("taints") or ()]

    labels("n1", **{MODE: "xgn"})
    labels("n3", **{MODE: "sgn"})
    lab.wait(30, "n1 has the taint", lambda: TAINT in taints())
    team.apply(
        pod("whole", {"tensorstack.dev/nvidia-gpu": 1}),
        pod("share", {"tensorstack.dev/nvidia-gpu-percent": 30}),
        pod("ours", notes={"gpu-hook.io/memory": "1Gi"}, **on("n1")),
    )
    made = team.runs("whole")
    assert made["spec"]["nodeName"] == "n1" and TAINT in {t.get("key") for t in made["spec"]["tolerations"]}
    assert team.runs("share")["spec"]["nodeName"] == "n3"
    assert not team.get("ours")["spec"].get("nodeName")
    labels("n1", **{MODE: None})
    lab.wait(30, "n1 has it no longer", lambda: TAINT not in taints())
    assert team.runs("ours")["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize("key", POLICIES)
def test_qgpus_policy_of_a_node(whole: Whole, team: Namespace, labels: Any, key: str) -> None:
    wanted = {"fs": "fixed-share"}.get(POLICIES[key], POLICIES[key])
    labels("n2", **{key: POLICIES[key]})

    def rules() -> Any:
        return json.loads(whole.object("get", "node", "n2")["metadata"]["annotations"]["gpu-hook.io/inventory"])[
            "rules"
        ]

    lab.wait(60, "n2 says so", lambda: rules() == {"default_policy": wanted})
    limits = {f"{QGPU}qgpu-memory": "2", f"{QGPU}qgpu-core": "30"}
    team.apply(pod("one", limits, **on("n2")))
    team.runs("one")
    assert [grant["policy"] for grant in whole.ledger("n2")] == [wanted]


@pytest.mark.parametrize("key", ENABLING)
def test_a_node_of_another_systems_label(whole: Whole, team: Namespace, labels: Any, key: str) -> None:
    """It takes our label's place without a moment between."""
    labels("n2", **{key: ENABLING[key], "gpu-hook.io/node": None})
    team.apply(pod("one", notes={"gpu-hook.io/memory": "1Gi"}, **on("n2")))
    team.runs("one")
    assert team.grants()["one/main"][0] == "n2"
