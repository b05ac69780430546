"""API objects of a cluster with gpu-hook at work (managed.py)."""

from typing import Any

import yaml

from testbed import REPO
from testbed.cluster import programs
from testbed.cluster.api import Api, Refused
from testbed.cluster.controllers import OWN
from testbed.cluster.images import PROBE
from testbed.cluster.pki import API

PACKAGING = REPO / "packaging/kubernetes"
NODES = "gpu-hook-node"  # service account and DaemonSet


SERVICE = "gpu-hook-controller"


def put_endpoints(api: Api, ports: list[int]) -> None:
    """These ports of the control machine are behind the controller's Service, which has no selector: in Endpoints before Kubernetes
    1.33, then in EndpointSlices. Raises Refused."""
    if programs.minor() < 33:
        subsets = [{"addresses": [{"ip": API}], "ports": [{"name": "https", "port": port}]} for port in ports]
        _put(api, f"/api/v1/namespaces/{OWN}/endpoints", {"metadata": {"name": SERVICE}, "subsets": subsets})
        return
    folder = f"/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices"
    for port in behind(api):
        if port not in ports:
            api("DELETE", f"{folder}/{SERVICE}-{port}")
    for port in ports:
        metadata = {"name": f"{SERVICE}-{port}", "labels": {"kubernetes.io/service-name": SERVICE}}
        slice = {
            "metadata": metadata,
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [API], "conditions": {"ready": True}}],
        }
        _put(api, folder, slice)


def behind(api: Api) -> list[int]:
    """The ports that put_endpoints has put there."""
    if programs.minor() < 33:
        listed = api.get(f"/api/v1/namespaces/{OWN}/endpoints")["items"]
        subsets = [
            subset for one in listed if one["metadata"]["name"] == SERVICE for subset in one.get("subsets") or ()
        ]
        return sorted(port["port"] for subset in subsets for port in subset["ports"])
    listed = api.get(f"/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices")["items"]
    return sorted(one["ports"][0]["port"] for one in listed if one["metadata"]["name"].startswith(SERVICE))


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
