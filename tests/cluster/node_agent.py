"""A node of the cluster with its agent and reporter, and pods bound to it with decisions that a test signs."""

import json
from typing import Any

from oci_hook.core.decision import DecidedShare
from oci_hook.core.layout import ALLOC
from testbed.cluster import lab
from tests.decisions import KEYS, decided

NAMESPACE = "gpu-hook"
PREFIX = "/opt/gpu-hook"
MANIFESTS = "/etc/manifests"


class Agent:
    """`up` with a value of the setting `cluster`; `down` takes everything back."""

    def __init__(self, cluster: lab.Cluster, node: lab.Node) -> None:
        self.cluster, self.node = cluster, node
        self.gpus = [gpu["uuid"] for gpu in json.loads(node.gpu_hook("gpus", "--json").stdout)["gpus"]]

    def up(self, mode: str = "local") -> None:
        subject = f"/O=system:nodes/CN=system:node:{self.node.name}"
        kubeconfig = self.node.control.keys.kubeconfig(self.node.name, subject)  # the kubelet's own
        self.node.gpu_hook("settings", "set", f"cluster={mode}", f"agent.kubeconfig={kubeconfig}")
        self.keys()
        kubectl = self.cluster.kubectl
        kubectl("create", "namespace", NAMESPACE)
        account = ("-n", NAMESPACE, "get", "serviceaccount", "default")
        lab.wait(60, "the namespace has its service account", lambda: kubectl(*account))
        kubectl("apply", "-f", "-", input=json.dumps(self._names_the_maps()))
        self.node.machine.serve("agent", *self.node.gpu_hook_line("agent"))
        lab.wait(60, "the reporter has written", lambda: "gpu-hook.io/ledger" in self.annotations())

    def down(self) -> None:
        if self.node.machine.serving("agent"):
            self.node.machine.stop("agent")
        python = str(lab.REPO / ".venv/bin/python3")
        withdraw = [python, "-m", "oci_hook.kube.reporter", PREFIX, "--withdraw"]
        self.node.machine.run("env", f"--chdir={lab.REPO}", *withdraw)
        self.node.gpu_hook("settings", "set", "cluster=off", "agent.kubeconfig=none")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)

    def keys(self, node: str = "") -> None:
        said = {"node": node or self.node.name, "keys": {str(number): key for number, key in KEYS.items()}}
        file = f"{PREFIX}/etc/cluster.json"
        self.node.machine.run("sh", "-c", f"umask 077; echo '{json.dumps(said)}' >{file}; chmod 600 {file}")

    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self._object()["metadata"].get("annotations") or {}
        return found

    def digest(self) -> Any:
        return json.loads(self.annotations()["gpu-hook.io/ledger"])

    def sums(self) -> dict[str, str]:
        """Of capacity and of allocatable, which must be the same."""
        status = self._object()["status"]
        found = [
            {k: v for k, v in status[part].items() if k.startswith("gpu-hook.io/")}
            for part in ("capacity", "allocatable")
        ]
        return found[0] if found[0] == found[1] else {"capacity": str(found[0]), "allocatable": str(found[1])}

    def metric(self, name: str) -> float:
        ask = (
            "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9409/metrics', timeout=10).read().decode())"
        )
        text = self.node.machine.run("/usr/bin/python3", "-c", ask).stdout
        (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(f"gpu_hook_{name} ")]
        return float(value)

    def _object(self) -> Any:
        return json.loads(self.cluster.kubectl("get", "node", self.node.name, "-o", "json"))

    def _names_the_maps(self) -> dict[str, Any]:
        """A pod that names the ConfigMaps: else the Node authorizer keeps them from the kubelet's credential."""
        maps = ("gpu-hook-nodes", "gpu-hook-ca")
        volumes = [{"name": name, "configMap": {"name": name, "optional": True}} for name in maps]
        pod = lab.pod("names-the-maps", {"main": "sleep 100000"})
        pod["metadata"] |= {"namespace": NAMESPACE, "annotations": {}}
        pod["spec"] |= {"nodeName": self.node.name, "volumes": volumes}
        del pod["spec"]["runtimeClassName"]
        return pod


def waiting(cluster: lab.Cluster, namespace: str, name: str, memory: str = "2Gi", **spec: Any) -> str:
    """A pod that nobody schedules; its uid."""
    made = lab.pod(name, {"main": "sleep 100000"}, **{"memory.main": memory})
    made["spec"] |= {"schedulerName": "nobody", **spec}
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(made))
    return cluster.kubectl("-n", namespace, "get", "pod", name, "-o", "jsonpath={.metadata.uid}")


def bind(cluster: lab.Cluster, namespace: str, name: str, node: str, alloc: str | None) -> None:
    """As the scheduler does, with what the controller's webhook adds."""
    notes = {ALLOC: alloc} if alloc is not None else {}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    metadata = {"name": name, "namespace": namespace, "annotations": notes}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body))


def decision(uid: str, node: str, gpu: str, mib: int = 2048, container: str = "main", **more: Any) -> str:
    return decided({container: [DecidedShare(gpu, mib)]}, uid=uid, node=node, **more)


def running(cluster: lab.Cluster, namespace: str, name: str) -> bool:
    path = "jsonpath={.status.containerStatuses[0].state.running.startedAt}"
    return bool(cluster.kubectl("-n", namespace, "get", "pod", name, "-o", path))


def messages(cluster: lab.Cluster, namespace: str, name: str) -> str:
    select = f"--field-selector=involvedObject.name={name}"
    return cluster.kubectl("-n", namespace, "get", "events", select, "-o", "jsonpath={.items[*].message}")
