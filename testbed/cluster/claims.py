"""A cluster whose pods have GPU shares by ResourceClaims."""

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import psutil

from testbed import REPO
from testbed.cluster import lab
from testbed.cluster.node import SIMULATOR

BASE = REPO / "packaging/kubernetes/dra"

CLI = ("/opt/gpu-hook-cli/gpu-hook",)  # that the DaemonSet brought

DRIVER = "oci_hook.kube.dra"

SOONER = "--sync-frequency=10s"  # of 60: a kubelet calls a driver that failed again at the pod's next sync


class Claims:
    def __init__(self, cluster: lab.Cluster) -> None:
        self.cluster, self.nodes, self.kubectl = cluster, cluster.nodes, cluster.kubectl

    def up(self, folder: Path) -> None:
        subprocess.run([str(REPO / "scripts/package"), "image", "--out", str(folder)], check=True, capture_output=True)
        self.cluster.up([lab.Gpus(2, "16Gi"), lab.Gpus(2, "16Gi")], installed=False, flags={"kubelet": [SOONER]})
        self.nodes = self.cluster.nodes
        self.kubectl("delete", "runtimeclass", "gpu-hook", "--ignore-not-found")
        for node in self.nodes:
            for archive in folder.iterdir():
                node.load(archive)
            self.kubectl("label", "--overwrite", "node", node.name, "gpu-hook.io/node=claims")
        self.install()

    def install(self) -> None:
        for node in self.nodes:  # in place of the driver that a real node has; an install keeps these settings
            node.machine.write("/opt/gpu-hook/etc/settings.yaml", f"driver_root: {SIMULATOR}/sim/root\n")
        self.kubectl("apply", "-k", str(BASE))
        lab.wait(240, "each node has its slice", lambda: len(self.objects("resourceslices")) == len(self.nodes))

    def objects(self, kind: str) -> list[Any]:
        return list(json.loads(self.kubectl("get", kind, "-o", "json"))["items"])

    def apply(self, *objects: Any) -> None:
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def log(self, pod: str) -> str:
        try:
            return self.kubectl("logs", pod)
        except RuntimeError:
            return ""

    def phase(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase}")

    def events(self, pod: str) -> str:
        select = f"--field-selector=involvedObject.name={pod}"
        return self.kubectl("get", "events", select, "-o", "jsonpath={.items[*].message}")

    def grants(self, node: lab.Node) -> list[Any]:
        return list(json.loads(node.machine.run(*CLI, "ps", "--json").stdout)["containers"])

    def sees(self, pod: str, mib: int) -> None:
        try:
            lab.wait(120, f"{pod} sees {mib} MiB", lambda: f" {mib} MiB total" in self.log(pod))
        except lab.CannotRun as e:
            raise AssertionError(f"{e}: {self.events(pod)}") from None

    def says(self, pod: str, code: str) -> None:
        lab.wait(120, f"{pod} has an event with {code}", lambda: code in self.events(pod))

    def clean(self) -> None:
        """All pods and claims go, and nothing of them is left on a node."""
        self.kubectl("delete", "pods,resourceclaims,resourceclaimtemplates", "--all", "--grace-period=1", timeout=240)
        for node in self.nodes:
            lab.wait(60, f"{node.name} has no grant", lambda node=node: not self.grants(node))  # type: ignore[misc]
            left = node.machine.run(
                "sh", "-c", "ls /var/run/cdi /run/gpu-hook/claims /run/gpu-hook/pages 2>/dev/null || true"
            ).stdout
            assert [line for line in left.split() if not line.endswith(":")] == []

    def pids(self, node: lab.Node, program: str) -> list[int]:
        """Of a node's program, or Python module, as this computer numbers them."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(OSError):  # it has ended
                own = program in (process.info["cmdline"] or ())[:3]
                if own and node.machine.cgroup in Path(f"/proc/{process.pid}/cgroup").read_text():
                    found.append(process.pid)
        return found

    def driver(self, node: lab.Node) -> list[int]:
        return self.pids(node, DRIVER)


def template(name: str, memory: str = "", compute: str = "", words: Any = None, **exactly: Any) -> Any:
    amounts = {k: v for k, v in (("memory", memory), ("compute", compute)) if v}
    request = {
        "deviceClassName": "gpu-share.gpu-hook.io",
        **({"capacity": {"requests": amounts}} if amounts else {}),
        **exactly,
    }
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": request}]}
    if words is not None:
        parameters = {"apiVersion": "gpu-hook.io/v1", "kind": "Share", **words}
        devices["config"] = [{"opaque": {"driver": "gpu-hook.io", "parameters": parameters}}]
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**head, "spec": {"spec": {"devices": devices}}}


def pod(name: str, claim: str = "", command: str = "gpu-probe info; exec sleep 100000", **spec: Any) -> Any:
    """claim: the template's name; "" for the pod's own."""
    main = {
        "name": "main",
        "image": lab.PROBE,
        "command": ["sh", "-c", command],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    claims = [{"name": "gpu", "resourceClaimTemplateName": claim or name}]
    body = {"terminationGracePeriodSeconds": 1, "resourceClaims": claims, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
