"""A cluster as people install it, with `kubectl apply -k`: every node requires decisions, the scheduler asks the extender.

Tests create pods as users do; what a pod holds is read from the pod, from the node's ledger and from its containers.
"""

import base64
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from oci_hook.core.layout import ALLOC
from testbed.cluster import lab
from tests.cluster.test_install import overlay, rolled_out

OURS = "gpu-hook"
CLI = ("/opt/gpu-hook-cli/gpu-hook",)  # that the DaemonSet brought
KEYS = "/opt/gpu-hook/etc/cluster.json"
SETTINGS = "dialects: [t9k, qgpu, gpu-manager, hami, nvidia]\nqgpu_memory_unit: GiB\n"


class Whole:
    def __init__(self, cluster: lab.Cluster) -> None:
        self.cluster, self.nodes = cluster, cluster.nodes
        self.kubectl = cluster.kubectl

    def up(self, archives: Sequence[Path], folder: Path) -> None:
        self.cluster.up(lab.NODES, installed=False)
        self.nodes = self.cluster.nodes
        self.kubectl("delete", "runtimeclass", "gpu-hook", "--ignore-not-found")
        for node in self.nodes:
            for archive in archives:
                node.load(archive)
        self.kubectl("label", "--overwrite", "nodes", "--all", "gpu-hook.io/node=true")
        self.kubectl("apply", "-k", str(with_controller_settings(folder, "--scheduler=default-scheduler")))
        lab.wait(300, "gpu-hook is Ready on every node, and both controllers are", lambda: rolled_out(self.cluster))
        for node in self.nodes:
            lab.wait(90, f"{node.name} has its keys", lambda node=node: node.machine.run("test", "-e", KEYS))  # type: ignore[misc]
        self.use_extender()

    def use_extender(self, profiles: Sequence[dict[str, Any]] = ({"schedulerName": "default-scheduler"},)) -> None:
        """Where our Service is, by HTTPS, with the extender's token."""
        secret = self.object("-n", OURS, "get", "secret", "gpu-hook-controller")["data"]
        authority = self.object("-n", OURS, "get", "configmap", "gpu-hook-ca")["data"]["ca.crt"]
        address = self.object("-n", OURS, "get", "service", "gpu-hook-controller")["spec"]["clusterIP"]
        extender = {
            "urlPrefix": f"https://{address}/extender/{base64.b64decode(secret['extender-token']).decode()}",
            "filterVerb": "filter",
            "preemptVerb": "preempt",
            "nodeCacheCapable": True,
            "enableHTTPS": True,
            "tlsConfig": {
                "serverName": f"gpu-hook-controller.{OURS}.svc",
                "caData": base64.b64encode(authority.encode()).decode(),
            },
            "managedResources": [{"name": "gpu-hook.io/gpus", "ignoredByScheduler": False}],
        }
        self.cluster.control.use_scheduler_config({"extenders": [extender], "profiles": list(profiles)})

    # ---- namespaces and pods ----------------------------------------------------------------------------------------

    def object(self, *arguments: str) -> Any:
        return json.loads(self.kubectl(*arguments, "-o", "json"))

    def new_namespace(self, opted_in: bool = True) -> "Namespace":
        made = Namespace(self, f"test-{uuid.uuid4().hex[:8]}")
        self.kubectl("create", "namespace", made.name)
        if opted_in:
            self.kubectl("label", "namespace", made.name, "gpu-hook.io/namespace=enabled")
        account = ("-n", made.name, "get", "serviceaccount", "default")
        lab.wait(60, f"{made.name} has its service account", lambda: self.kubectl(*account))
        return made

    def ledger(self, node: str) -> list[Any]:
        """The grants of a node."""
        said = self.cluster.node(node).machine.run(*CLI, "ps", "--json").stdout
        return list(json.loads(said)["containers"])

    def all_grants(self) -> list[tuple[str, Any]]:
        return [(node.name, grant) for node in self.nodes for grant in self.ledger(node.name)]


class Namespace:
    """A namespace of a test's own, and its pods."""

    def __init__(self, whole: Whole, name: str) -> None:
        self.whole, self.name = whole, name

    def kubectl(self, *arguments: str, input: str | None = None, timeout: float = 60) -> str:
        return self.whole.kubectl("-n", self.name, *arguments, input=input, timeout=timeout)

    def apply(self, *objects: Any, by: str = "apply") -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl(by, "-f", "-", input=json.dumps(listed), timeout=120)

    def refused(self, *objects: Any, by: str = "apply") -> str:
        """What kubectl says about objects that the API server refuses."""
        try:
            self.apply(*objects, by=by)
        except RuntimeError as e:
            return str(e)
        raise AssertionError("it was not refused")

    def pods(self) -> list[Any]:
        return list(self.whole.object("-n", self.name, "get", "pods")["items"])

    def get(self, name: str) -> Any:
        return self.whole.object("-n", self.name, "get", "pod", name)

    def runs(self, name: str, seconds: float = 180) -> Any:
        """The pod, as soon as all of its containers run."""
        found: list[Any] = []

        def running() -> bool:
            found[:] = [self.get(name)]
            states = found[0]["status"].get("containerStatuses") or ()
            return bool(states) and all("running" in each["state"] for each in states)

        try:
            lab.wait(seconds, f"{name} runs", running)
        except lab.CannotRun as e:
            raise AssertionError(f"{e}: {self.messages(name)}") from None
        return found[0]

    def messages(self, name: str) -> str:
        """Of the pod's events."""
        select = f"--field-selector=involvedObject.name={name}"
        return self.kubectl("get", "events", select, "-o", "jsonpath={.items[*].message}")

    def says(self, name: str, code: str, seconds: float = 180) -> None:
        lab.wait(seconds, f"{name} has an event with {code}", lambda: code in self.messages(name))

    def delete(self, *names: str) -> None:
        self.kubectl("delete", "pod", *names, "--grace-period=1", timeout=180)

    def grants(self) -> dict[str, tuple[str, dict[str, int]]]:
        """POD/CONTAINER -> (node, {UUID: MiB}), by the ledgers."""
        return {
            f"{grant['pod']}/{grant['name']}": (node, {d["uuid"]: d["memory_mib"] for d in grant["gpus"]})
            for node, grant in self.whole.all_grants()
            if grant["namespace"] == self.name
        }

    def decided(self) -> dict[str, tuple[str, dict[str, int]]]:
        """The same by the annotations of pods that have a node."""
        return {
            f"{pod['metadata']['name']}/{container}": (
                pod["spec"]["nodeName"],
                {share[0]: share[1] for share in shares},
            )
            for pod in self.pods()
            if pod["spec"].get("nodeName") and ALLOC in (pod["metadata"].get("annotations") or {})
            for container, shares in json.loads(pod["metadata"]["annotations"][ALLOC])["c"].items()
        }

    def clean(self) -> None:
        """Nothing is left, and nothing of it holds a grant."""
        self.kubectl("delete", "replicasets,jobs,pods", "--all", "--wait=false", "--grace-period=1", timeout=120)
        self.whole.kubectl("delete", "namespace", self.name, timeout=240)
        lab.wait(90, f"nothing of {self.name} holds a grant", lambda: not self.grants())


def pod(name: str, limits: dict[str, Any] | None = None, notes: dict[str, str] | None = None, **spec: Any) -> Any:
    """A pod of one container `main` that sleeps, as a user writes it."""
    command = ["sh", "-c", "gpu-probe info; exec sleep 100000"]
    container = {"name": "main", "image": lab.PROBE, "command": command, "resources": {"limits": limits or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes or {}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def with_controller_settings(folder: Path, *options: str) -> Path:
    """packaging/kubernetes, with cluster=required on the nodes, and a file of settings and more options for the controller."""
    base = overlay(folder / "nodes", cluster="required")
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpu-hook-settings", "namespace": OURS},
        "data": {"settings.yaml": SETTINGS},
    }
    container = {
        "name": "controller",
        "args": ["--address=0.0.0.0:8443", "--settings=/settings/settings.yaml", *options],
        "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "settings", "configMap": {"name": "gpu-hook-settings"}}],
    }
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "gpu-hook-controller", "namespace": OURS},
        "spec": {"template": {"spec": spec}},
    }
    made = folder / "controller"
    made.mkdir(parents=True, exist_ok=True)
    kustomization = {
        "bases": [os.path.relpath(base.resolve(), made.resolve())],
        "resources": ["settings.yaml"],
        "patchesStrategicMerge": ["patch.yaml"],
    }
    for name, document in (("settings", settings), ("patch", patch), ("kustomization", kustomization)):
        (made / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return made
