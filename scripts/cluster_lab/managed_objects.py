"""API objects of a cluster with gpu-hook at work (managed.py)."""

from typing import Any

import yaml

from scripts.cluster_lab import programs
from scripts.cluster_lab.api import Api, Refused
from scripts.cluster_lab.controllers import OWN
from scripts.cluster_lab.images import PROBE
from scripts.cluster_lab.pki import API
from scripts.cluster_lab.programs import REPO

PACKAGING = REPO / "packaging/kubernetes"
NODES = "gpu-hook-node"  # service account and DaemonSet


SERVICE = "gpu-hook-controller"


def put_endpoints(api: Api, ports: list[int]) -> None:
    """These ports of the control machine are behind the controller's Service, which has no selector. API servers since 1.33 find
    webhooks by EndpointSlices alone, and nobody mirrors Endpoints with two ports of one name into slices. Raises Refused."""
    made = {"name": SERVICE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}
    subsets = [{"addresses": [{"ip": API}], "ports": [{"name": "https", "port": port}]} for port in ports]
    _put(api, f"/api/v1/namespaces/{OWN}/endpoints", {"metadata": made, "subsets": subsets})
    if programs.minor() < 21:
        return
    folder = f"/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices"
    for one in api.get(folder)["items"]:
        if one["metadata"]["name"].startswith(SERVICE) and one["ports"][0]["port"] not in ports:
            api("DELETE", f"{folder}/{one['metadata']['name']}")
    for port in ports:
        metadata = {"name": f"{SERVICE}-{port}", "labels": {"kubernetes.io/service-name": SERVICE}}
        slice = {
            "metadata": metadata,
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [API], "conditions": {"ready": True}}],
        }
        _put(api, folder, slice)


def _put(api: Api, folder: str, made: dict[str, Any]) -> None:
    try:
        api("POST", folder, made)
    except Refused as e:
        if e.status != 409:
            raise
        api.merge(f"{folder}/{made['metadata']['name']}", made)


def probe_period() -> float:
    """The period of the installed controller's readiness probe, in seconds."""
    documents = yaml.safe_load_all((PACKAGING / "controller.yaml").read_text())
    deployment = next(one for one in documents if one["kind"] == "Deployment")
    return float(deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSeconds"])


def daemon_set() -> dict[str, Any]:
    """One idle pod on each node: the node's token is made for it, and it names the ConfigMaps that the node's credential may
    read."""
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
