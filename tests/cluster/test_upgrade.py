"""Kubernetes is replaced under running shares: API server, scheduler, containerd and kubelet, from 1.20 to a version of today.

A kubelet of another version may restart containers by itself ("Container definition changed"), since it computes another hash of their
specification; Kubernetes asks for a drain before. The share is then given again, on the same GPU.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cluster import lab
from testbed.cluster.control import SERVICES

BEFORE = lab.programs.BUILT_HERE


@pytest.fixture
def older(runnable: None, native: Path, tmp_path: Path) -> Iterator[lab.Cluster]:
    """One node of 1.20. Afterwards this process has the version that was asked for again."""
    now = lab.programs.version()
    if now == BEFORE or not (lab.programs.cache() / lab.programs.key() / "bin").is_dir():
        pytest.skip("needs a version of today, and 1.20 beside it")
    lab.programs.use(BEFORE)
    made = lab.Cluster(tmp_path / "state")
    try:
        made.up([lab.Gpus(2, "16Gi")])
        lab.programs.use(now)
        yield made
    finally:
        lab.programs.use(now)
        made.down()


def test_shares_outlive_an_upgrade_of_kubernetes(older: lab.Cluster) -> None:
    (node,) = older.nodes
    control = older.control

    def run(name: str) -> str:
        made = lab.pod(name, {"main": "gpu-probe info; sleep 100000"}, memory="9Gi")
        older.kubectl("apply", "-f", "-", input=json.dumps(made))
        lab.wait(180, f"{name} runs", lambda: "MiB total" in older.kubectl("logs", name))
        return older.kubectl("get", "pod", name, "-o", "jsonpath={.metadata.uid}")

    def held() -> dict[str, list[str]]:
        """Container -> its GPUs."""
        rows = json.loads(node.gpu_hook("ps", "--json").stdout)["containers"]
        return {row["id"]: [gpu["uuid"] for gpu in row["gpus"]] for row in rows}

    uid, before = run("before"), held()
    for service in ("kubelet", "containerd"):
        node.stop(service)
    for service in reversed(SERVICES):
        control.stop(service)
    control.up(older.images)  # the new programs, on the old data
    node.use_programs()
    node.start("containerd")
    assert held() == before
    node.start("kubelet")
    lab.wait(180, "the node's kubelet is new", lambda: f"v{lab.programs.version()}." in version(older, node.name))
    lab.wait(120, "the node is Ready", node.ready)
    lab.wait(120, "exec works", lambda: older.kubectl("exec", "before", "--", "echo", "x") == "x\n")
    assert older.kubectl("get", "pod", "before", "-o", "jsonpath={.metadata.uid}") == uid
    lab.wait(60, "one holds the same GPU", lambda: list(held().values()) == list(before.values()))
    run("after")
    assert lab.holders(older, node.name) == ["default/after/main", "default/before/main"]
    older.kubectl("delete", "pod", "before", "after", timeout=180)
    lab.wait(60, "the shares are back", lambda: not lab.holders(older, node.name))


def version(cluster: lab.Cluster, node: str) -> str:
    return cluster.kubectl("get", "node", node, "-o", "jsonpath={.status.nodeInfo.kubeletVersion}")
