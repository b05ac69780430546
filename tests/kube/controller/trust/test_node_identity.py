"""The node of a reviewed token."""

from typing import Any

from oci_hook.kube.controller import options
from oci_hook.kube.controller.trust.node_identity import POD, UID, node_of_pod, pod_of
from oci_hook.kube.formats.names import CONTROLLER

OPTIONS = options.ControllerOptions("127.0.0.1", 8443, "gpu-hook", ("a",))


def status(**changed: Any) -> dict[str, Any]:
    extra = {POD: ["p"], UID: ["u"]}
    user = {"username": "system:serviceaccount:gpu-hook:gpu-hook-node", "extra": extra}
    return {"authenticated": True, "audiences": [CONTROLLER], "user": user, **changed}


def test_a_reviewed_token_names_a_pod_of_the_nodes_account() -> None:
    assert pod_of(status(), OPTIONS) == ("p", "u")
    for wrong in (
        status(authenticated=False),
        status(audiences=["https://kubernetes.default.svc"]),
        status(audiences=None),
        status(user={}),
        status(user={"username": "system:serviceaccount:other:gpu-hook-node", "extra": {POD: ["p"], UID: ["u"]}}),
        status(user={"username": "system:serviceaccount:gpu-hook:gpu-hook-node"}),  # not bound to a pod
        status(
            user={"username": "system:serviceaccount:gpu-hook:gpu-hook-node", "extra": {POD: ["p", "q"], UID: ["u"]}}
        ),
    ):
        assert pod_of(wrong, OPTIONS) is None


def test_the_node_of_a_pod_of_our_daemon_set() -> None:
    def made(kind: str = "DaemonSet", owner: str = "gpu-hook-node", **meta: Any) -> dict[str, Any]:
        owners = [{"kind": kind, "name": owner, "controller": True}]
        return {"metadata": {"uid": "u", "ownerReferences": owners, **meta}, "spec": {"nodeName": "n7"}}

    assert node_of_pod(made(), "u", OPTIONS) == "n7"
    assert node_of_pod(made(), "v", OPTIONS) is None
    assert node_of_pod(made(kind="ReplicaSet"), "u", OPTIONS) is None
    assert node_of_pod(made(owner="another"), "u", OPTIONS) is None
    assert node_of_pod(made(deletionTimestamp="now"), "u", OPTIONS) is None
    assert node_of_pod({**made(), "spec": {}}, "u", OPTIONS) is None
