"""`kubectl apply -k packaging/kubernetes` on a cluster whose nodes have GPUs and no gpu-hook; upgrade; `kubectl delete -k`."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import REPO
from testbed.cluster import lab
from testbed.cluster.node import SIMULATOR

BASE = REPO / "packaging/kubernetes"
KINDS = "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,runtimeclasses"


def overlay(folder: Path, **settings: str) -> Path:
    """As a user would change the base: more lines of settings on every node. The nodes' driver is the simulated one."""
    folder.mkdir(exist_ok=True)
    daemonset = yaml.safe_load((BASE / "daemonset.yaml").read_text())
    install = daemonset["spec"]["template"]["spec"]["containers"][0]
    lines = next(e["value"] for e in install["env"] if e["name"] == "SETTINGS")
    more = {"driver_root": f"{SIMULATOR}/sim/root", **settings}
    env = [{"name": "SETTINGS", "value": " ".join([lines, *(f"{k}={v}" for k, v in more.items())])}]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpu-hook-node", "namespace": "gpu-hook"},
        "spec": {"template": {"spec": {"containers": [{"name": "install", "env": env}]}}},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(patch))
    base = os.path.relpath(BASE, folder.resolve())
    kustomization = {"bases": [base], "patchesStrategicMerge": ["settings.yaml"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def names(cluster: lab.Cluster) -> set[str]:
    return set(cluster.kubectl("get", KINDS, "-o", "name").split())


def pod_of(cluster: lab.Cluster, namespace: str, name: str) -> Any:
    return json.loads(cluster.kubectl("-n", namespace, "get", "pod", name, "-o", "json"))


def rolled_out(cluster: lab.Cluster) -> bool:
    """Every node's pod is Ready, of the newest revision; both controllers are Ready, so one leads."""
    daemonset = json.loads(cluster.kubectl("-n", "gpu-hook", "get", "daemonset", "gpu-hook-node", "-o", "json"))
    status = daemonset["status"]
    ours = "kubernetes.io/service-name=gpu-hook-controller"
    slices = json.loads(cluster.kubectl("-n", "gpu-hook", "get", "endpointslices", "-l", ours, "-o", "json"))
    behind = [one["conditions"].get("ready") for each in slices["items"] for one in each.get("endpoints") or ()]
    return bool(
        status.get("observedGeneration") == daemonset["metadata"]["generation"]
        and status.get("updatedNumberScheduled") == status.get("numberReady") == len(cluster.nodes)
        and behind.count(True) >= 2
    )


@pytest.mark.promise
def test_from_apply_to_delete(bare: lab.Cluster, tmp_path: Path) -> None:
    cluster = bare
    before = names(cluster)
    files = {node.name: files_of(node) for node in cluster.nodes}
    where = overlay(tmp_path / "cluster")

    cluster.kubectl("label", "--overwrite", "nodes", "--all", "gpu-hook.io/node=true")
    cluster.kubectl("apply", "-k", str(where))
    lab.wait(240, "gpu-hook is Ready on every node, and both controllers are", lambda: rolled_out(cluster))
    for node in cluster.nodes:  # Ready means that a pod can start at once
        handlers = node.machine.run("grep", "-c", "runtimes.gpu-hook\\]", "/etc/containerd/config.toml").stdout
        assert handlers.strip() == "1"

    cluster.kubectl("create", "namespace", "team")
    cluster.kubectl("label", "namespace", "team", "gpu-hook.io/namespace=enabled")
    one = lab.pod("one", {"main": "gpu-probe info; sleep 100000"}, memory="4Gi")
    del one["spec"]["runtimeClassName"], one["spec"]["nodeSelector"]  # the webhook adds what is needed
    lab.wait(
        60, "the webhook answers", lambda: cluster.kubectl("-n", "team", "apply", "-f", "-", input=json.dumps(one))
    )
    lab.wait(120, "the pod says what it sees", lambda: "4096 MiB total" in cluster.kubectl("-n", "team", "logs", "one"))
    placed = pod_of(cluster, "team", "one")
    assert placed["spec"]["runtimeClassName"] == "gpu-hook" and "gpu-hook.io/alloc" in placed["metadata"]["annotations"]
    node = cluster.node(placed["spec"]["nodeName"])
    assert holders(node) == ["team/one/main"]

    for pods in ("component=controller", "component=node"):
        logs = cluster.kubectl(
            "-n", "gpu-hook", "logs", "-l", f"app.kubernetes.io/{pods}", "--all-containers", "--tail=-1"
        )
        assert "forbidden" not in logs and " 403 " not in logs, logs
    keys = "/opt/gpu-hook/etc/cluster.json"
    for each in cluster.nodes:
        lab.wait(90, f"{each.name} has its keys", lambda each=each: each.machine.run("test", "-e", keys))  # type: ignore[misc]

    # An upgrade: the nodes' pods are replaced one after another; the user's pod stays as it is.
    overlay(tmp_path / "cluster", memory_step="256Mi")
    cluster.kubectl("apply", "-k", str(where))
    lab.wait(240, "the upgrade is Ready everywhere", lambda: rolled_out(cluster))
    again = pod_of(cluster, "team", "one")
    assert again["metadata"]["uid"] == placed["metadata"]["uid"]
    assert again["status"]["containerStatuses"] == placed["status"]["containerStatuses"], "nothing restarted"
    assert holders(node) == ["team/one/main"]
    for each in cluster.nodes:
        assert "memory_step: 256Mi" in each.machine.run("cat", "/opt/gpu-hook/etc/settings.yaml").stdout

    cluster.kubectl("delete", "namespace", "team", "--timeout=120s", timeout=180)
    lab.wait(60, "the share is back", lambda: not holders(node))
    cluster.kubectl("delete", "-k", str(where), "--timeout=240s", timeout=300)
    assert names(cluster) == before
    for each in cluster.nodes:
        lab.wait(60, f"{each.name} is as it was", lambda each=each: files_of(each) == files[each.name])  # type: ignore[misc]
        left = json.loads(cluster.kubectl("get", "node", each.name, "-o", "json"))
        assert not [key for key in left["metadata"]["annotations"] if key.startswith("gpu-hook.io/")]
        assert not [key for key in left["status"]["capacity"] if key.startswith("gpu-hook.io/")]


def holders(node: lab.Node) -> list[str]:
    """By the command line that the DaemonSet brought."""
    said = node.machine.run("/opt/gpu-hook-cli/gpu-hook", "ps", "--json").stdout
    return sorted(f"{g['namespace']}/{g['pod']}/{g['name']}" for g in json.loads(said)["containers"])


def files_of(node: lab.Node) -> dict[str, str]:
    """What an install could change on a node: paths with their checksums."""
    folders = "/opt /etc /run/gpu-hook /run/systemd /usr/local /var/lib/gpu-hook"
    command = f"find {folders} -xdev -type f 2>/dev/null | sort | xargs -d '\\n' sha256sum"
    lines = node.machine.run("sh", "-c", command).stdout.splitlines()
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines)}
