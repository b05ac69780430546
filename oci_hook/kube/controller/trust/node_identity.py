"""Finds the node of a bearer token: the token is bound to a pod of our DaemonSet, and the pod runs on the node."""

from typing import Any
from urllib.parse import quote

from oci_hook.kube.controller.api.client import ApiError, Client
from oci_hook.kube.controller.options import ControllerOptions
from oci_hook.kube.formats.names import CONTROLLER

POD, UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


async def node_of(client: Client, options: ControllerOptions, token: str) -> str | None:
    """Returns the token's node; None if the token does not entitle to a node's key. Raises ApiError."""
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [CONTROLLER]},
    }
    status = (await client.post("/apis/authentication.k8s.io/v1/tokenreviews", review)).get("status") or {}
    named = pod_of(status, options)
    if named is None:
        return None
    name, uid = named
    try:
        pod = await client.get(f"/api/v1/namespaces/{options.namespace}/pods/{quote(name, safe='')}")
    except ApiError as e:
        if e.status == 404:
            return None
        raise
    return node_of_pod(pod, uid, options)


def pod_of(status: dict[str, Any], options: ControllerOptions) -> tuple[str, str] | None:
    """Returns (name, UID) of the pod in a TokenReview's status."""
    user = status.get("user") or {}
    account = f"system:serviceaccount:{options.namespace}:{options.node_account}"
    if not (status.get("authenticated") is True and CONTROLLER in (status.get("audiences") or ())):
        return None
    if user.get("username") != account:
        return None
    extra = user.get("extra") or {}
    names, uids = list(extra.get(POD) or ()), list(extra.get(UID) or ())
    return (str(names[0]), str(uids[0])) if len(names) == len(uids) == 1 else None


def node_of_pod(pod: dict[str, Any], uid: str, options: ControllerOptions) -> str | None:
    metadata = pod.get("metadata") or {}
    ours = any(
        owner.get("controller") and owner.get("kind") == "DaemonSet" and owner.get("name") == options.node_daemon_set
        for owner in metadata.get("ownerReferences") or ()
    )
    if metadata.get("uid") != uid or metadata.get("deletionTimestamp") or not ours:
        return None
    return (pod.get("spec") or {}).get("nodeName") or None
