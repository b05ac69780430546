"""API objects as a cluster has them, for the benchmark `cluster`."""

import base64
import json

from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.kube.formats.node_info import Digest, NodeInventory, digest_text, inventory_text


def node(name, gpus, memory):
    found = Inventory(
        *("", "535.161.08", "", False),
        tuple(
            Gpu(
                *(f"GPU-{abs(hash((name, i))):016x}-4c5d-8e9f-0123456789ab", i, i, memory, "NVIDIA H100 80GB HBM3"),
                **{"numa": i // 4, "arch": "9.0", "brand": "nvidia", "context_mib": 540, "no_limits": "driver too old"},
            )
            for i in range(gpus)
        ),
        *((), (), "", ""),
        cuda_version="12.2",
    )
    uuids = [gpu.uuid for gpu in found.gpus]
    found = found.replace(links=tuple((a, b, 1) for n, a in enumerate(uuids) for b in uuids[:n]))
    annotations = {
        "gpu-hook.io/inventory": inventory_text(NodeInventory(found, Rules(), 1)),
        "gpu-hook.io/ledger": digest_text(Digest(), found),
    }
    labels = {"kubernetes.io/hostname": name, "gpu-hook.io/node": "true"}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": {}, "status": {}}


def pod(name, memory, compute, **annotations):
    words = {"gpu-hook.io/memory.main": str(memory), **annotations}
    if compute:
        words["gpu-hook.io/compute.main"] = str(compute)
    uid = f"{abs(hash(name)):016x}-aaaa-bbbb-cccc-000000000000"
    return {
        "metadata": {"namespace": "default", "name": name, "uid": uid, "annotations": words},
        "spec": {"containers": [{"name": "main"}, {"name": "sidecar"}]},
        "status": {"phase": "Pending"},
    }


def binding(obj, node_name):
    meta = {key: obj["metadata"][key] for key in ("namespace", "name", "uid")}
    target = {"kind": "Node", "name": node_name}
    request = {
        "uid": "r",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "object": {"metadata": meta, "target": target},
    }
    return {"request": request}


def bound(obj, node_name, answer):
    """The pod after the API server obeyed this answer; unchanged where the Binding was denied."""
    if "patch" not in answer["response"]:
        return obj
    added = json.loads(base64.b64decode(answer["response"]["patch"]))[0]["value"]
    meta = {**obj["metadata"], "annotations": {**obj["metadata"]["annotations"], **added}}
    return {**obj, "metadata": meta, "spec": {**obj["spec"], "nodeName": node_name}, "status": {"phase": "Running"}}
