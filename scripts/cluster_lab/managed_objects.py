"""API objects of a cluster with gpu-hook at work (managed.py)."""

from typing import Any

import yaml

from scripts.cluster_lab.images import PROBE
from scripts.cluster_lab.pki import API
from scripts.cluster_lab.programs import REPO

PACKAGING = REPO / "packaging/kubernetes"
NODES = "gpu-hook-node"  # service account and DaemonSet


def endpoints(ports: list[int]) -> dict[str, Any]:
    subsets = [{"addresses": [{"ip": API}], "ports": [{"name": "https", "port": port}]} for port in ports]
    return {"subsets": subsets}


def probe_period() -> float:
    """Of the controller's readiness probe, as it is installed."""
    documents = yaml.safe_load_all((PACKAGING / "controller.yaml").read_text())
    deployment = next(one for one in documents if one["kind"] == "Deployment")
    return float(deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSeconds"])


def daemon_set() -> dict[str, Any]:
    """One pod on each node, that does nothing but be the one for which the node's token is made, and name the ConfigMaps that
    the node's credential may then read."""
    labels = {"app": NODES}
    volumes = [{"name": n, "configMap": {"name": n, "optional": True}} for n in ("gpu-hook-nodes", "gpu-hook-ca")]
    spec = {
        "serviceAccountName": NODES,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": PROBE}],
        "volumes": volumes,
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"metadata": {"name": NODES}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


def scheduler(extender_port: int) -> dict[str, Any]:
    extender = {
        "urlPrefix": f"http://127.0.0.1:{extender_port}",
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "nodeCacheCapable": True,
        "managedResources": [{"name": "gpu-hook.io/gpus", "ignoredByScheduler": False}],
    }
    return {"extenders": [extender], "profiles": [{"schedulerName": "default-scheduler"}]}
