"""API objects for tests of the cluster's pure parts: nodes, pods, Bindings."""

import base64
import json

from oci_hook.core.inventory import Gpu, Inventory
from oci_hook.core.rules import Rules
from oci_hook.kube.formats.node_info import Digest, NodeInventory, digest_text, inventory_text
from oci_hook.kube.formats.signing import Signer
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import words

SIGNER = Signer({1: b"\x01" * 32})


def inventory(name, sizes, **more):
    gpus = tuple(
        Gpu(
            f"GPU-{name}-{i}",
            *(i, i, size),
            name="T4",
            no_limits=more.get("no_limits", "no"),
            context_mib=more.get("context_mib", 0),
        )
        for i, size in enumerate(sizes)
    )
    links = tuple((f"GPU-{name}-{a}", f"GPU-{name}-{b}", far) for a, b, far in more.get("links", ()))
    major = more.get("imex_major", -1)
    return Inventory("", "535.1", "", True, gpus, (), (), "", "", links=links, imex_major=major, cuda_version="12.2")


def node(name, *sizes, labels=None, rules=None, digest=None, **more):
    """A Node whose reporter wrote its annotations. sizes: MiB of each GPU. gpus: a part of their UUIDs."""
    found = inventory(more.pop("gpus", name), sizes, **more)
    annotations = {"gpu-hook.io/inventory": inventory_text(NodeInventory(found, rules or Rules(), 1))}
    if digest is not None:
        annotations["gpu-hook.io/ledger"] = digest_text(digest, found)
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations},
        "spec": {},
        "status": {},
    }


def listing(*uids):
    """A digest that lists these pods."""
    return Digest(tuple((uid, ("main",)) for uid in uids))


def pod(name, *, uid=None, containers=("main",), init=(), owner=None, priority=0, node_name="", phase="", **words):
    """A Pod. words: our annotations, with _ for - and . for __; a container's own as memory__main."""
    annotations = {f"gpu-hook.io/{k.replace('__', '.').replace('_', '-')}": str(v) for k, v in words.items()}
    spec = {
        "containers": [{"name": c} for c in containers],
        "initContainers": [{"name": c} if isinstance(c, str) else c for c in init],
        "priority": priority,
    }
    if node_name:
        spec["nodeName"] = node_name
    version = "v1" if owner == "Node" else "apps/v1"
    owners = [{"apiVersion": version, "kind": owner, "name": "x", "controller": True}] if owner else []
    meta = {"namespace": "default", "name": name, "uid": uid or f"u-{name}", "annotations": annotations}
    return {
        "kind": "Pod",
        "metadata": {**meta, "ownerReferences": owners},
        "spec": spec,
        "status": {"phase": phase or "Pending"},
    }


def binding(of, node_name, *, uid=None, annotations=None, dry_run=False):
    """The AdmissionReview of a Binding of this pod."""
    meta = {
        "name": of["metadata"]["name"],
        "namespace": "default",
        "uid": of["metadata"]["uid"] if uid is None else uid,
    }
    if annotations is not None:
        meta["annotations"] = annotations
    return {
        "request": {
            "uid": "r1",
            "namespace": "default",
            "name": of["metadata"]["name"],
            "dryRun": dry_run,
            "object": {"kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": node_name}},
        }
    }


def patch_of(answer):
    response = answer["response"]
    assert response["allowed"], response
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def alloc_of(answer):
    """The decision that a bind's answer adds."""
    for op in patch_of(answer):
        if op["path"] == "/metadata/annotations":
            return op["value"]["gpu-hook.io/alloc"]
        if op["path"] == "/metadata/annotations/gpu-hook.io~1alloc":
            return op["value"]
    return None


def bound(of, node_name, alloc, phase="Running", deleting=False):
    """The pod after its Binding."""
    meta = {**of["metadata"], "annotations": {**of["metadata"]["annotations"]}}
    if alloc is not None:
        meta["annotations"]["gpu-hook.io/alloc"] = alloc
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {**of, "metadata": meta, "spec": {**of["spec"], "nodeName": node_name}, "status": {"phase": phase}}


def cluster(*nodes):
    """A state with these nodes, which believes only decisions of SIGNER."""
    state = ClusterState(verify=SIGNER.holds)
    for one in nodes:
        state.apply_node(one)
    return state


def asked(obj):
    """The question of a pod, an API object."""
    return Question(words(obj))
