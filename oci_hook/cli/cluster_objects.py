"""Reads a cluster's nodes and pods for commands, from its API server or from a dump."""

import shutil
import subprocess
from typing import Any

from oci_hook.errors import GhError, refuse
from oci_hook.kube.answers.claims import ClaimObjects
from oci_hook.kube.formats import shallow
from oci_hook.kube.formats.claim_words import GROUP
from oci_hook.kube.link import kubeconfig as kube_config
from oci_hook.kube.link.api import FAILURES, Api, ApiError
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.preemption.disruption import Budget, budget

MAX_DUMP = 2 << 30  # bytes
TIMEOUT = 30  # seconds
NOT_FOUND = 404

Objects = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # nodes, pods


def read(dump: str | None, kubeconfig: str | None) -> Objects:
    """Raises ClusterError GH-608."""
    if dump and kubeconfig:
        raise refuse("GH-608", "--dump and --kubeconfig both say where to read the cluster; give only one")
    if dump:
        return _nodes_and_pods(_items(dump))
    return listed(kubeconfig, "/api/v1/nodes"), listed(kubeconfig, "/api/v1/pods")


def read_with_budgets(dump: str | None, kubeconfig: str | None) -> tuple[Objects, list[Budget] | None]:
    """Nodes and pods, and the PodDisruptionBudgets; None if these cannot be read. Raises ClusterError GH-608."""
    if dump and not kubeconfig:
        items = _items(dump)
        objects = _nodes_and_pods(items)
    else:
        objects = read(dump, kubeconfig)
    try:
        if dump:
            found = [budget(item) for item in items if item.get("kind") == "PodDisruptionBudget"]
            return objects, found or None  # a dump without budgets may lack the whole kind
        return objects, budgets_of(kubeconfig)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise refuse(
            "GH-608", f"a PodDisruptionBudget is not as Kubernetes writes it: {type(e).__name__} {e}; report it"
        ) from None


def budgets_of(kubeconfig: str | None) -> list[Budget] | None:
    """Kubernetes has policy/v1 since 1.21, and policy/v1beta1 until 1.24. None if neither can be listed."""
    for version in ("policy/v1", "policy/v1beta1"):
        try:
            return [budget(item, version) for item in listed(kubeconfig, f"/apis/{version}/poddisruptionbudgets")]
        except GhError:
            continue  # without the right to list them, or without this version
    return None


def claims(dump: str | None, kubeconfig: str | None) -> ClaimObjects:
    """None where the API server, older than 1.34, does not have them. Raises ClusterError GH-608."""
    kinds = ("ResourceClaim", "ResourceSlice", "DeviceClass")
    if dump:
        items = _items(dump)
        return ClaimObjects(*(tuple(item for item in items if item.get("kind") == kind) for kind in kinds))
    paths = ("resourceclaims", "resourceslices", "deviceclasses")
    return ClaimObjects(*(tuple(listed(kubeconfig, f"/apis/{GROUP}/{path}", optional=True)) for path in paths))


def kinds(kubeconfig: str | None, paths: dict[str, str]) -> dict[str, list[dict[str, Any]] | GhError]:
    """Each of the lists, or why it cannot be read; nothing of a kind that the API server does not have."""
    found: dict[str, list[dict[str, Any]] | GhError] = {}
    for name, path in paths.items():
        try:
            found[name] = listed(kubeconfig, path, optional=True)
        except GhError as e:
            found[name] = e
    return found


def listed(kubeconfig: str | None, path: str, optional: bool = False) -> list[dict[str, Any]]:
    """Lists in pages. kubeconfig: None for kubectl's files, or the pod's service account without them. optional: the server may not
    have this kind. Raises ClusterError GH-608."""
    kind = path.rpartition("/")[2]
    try:
        there = kube_config.load([kubeconfig] if kubeconfig else kube_config.files())
    except GhError as e:
        if not any(why in str(e) for why in kube_config.KUBECTLS) or not (kubectl := shutil.which("kubectl")):
            raise
        return _by_kubectl([kubectl, *([f"--kubeconfig={kubeconfig}"] if kubeconfig else [])], path, optional)
    api = Api(there, TIMEOUT)
    try:
        return [item for page in api.pages(path, {}) for item in page.get("items") or ()]
    except ApiError as e:
        if optional and e.status == NOT_FOUND:
            return []
        raise refuse("GH-608", f"{there.server} does not list {kind}: {e}") from None
    except (*FAILURES, AttributeError) as e:
        raise refuse("GH-608", f"{kind} cannot be read from {there.server}: {e}") from None
    finally:
        api.close()


def _by_kubectl(kubectl: list[str], path: str, optional: bool) -> list[dict[str, Any]]:
    """Where the kubeconfig logs in by a plug-in, as in most clouds, through a proxy, or as somebody else."""
    try:
        done = subprocess.run([*kubectl, "get", "--raw", path], capture_output=True, timeout=4 * TIMEOUT)
        if done.returncode and optional and b"could not find the requested resource" in done.stderr:
            return []
        if done.returncode:
            raise OSError(done.stderr.decode(errors="replace").strip()[-200:])
        return shallow.loads(done.stdout)["items"] or []
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as e:
        raise refuse("GH-608", f"{path.rpartition('/')[2]} cannot be read by kubectl: {e}") from None


def _nodes_and_pods(items: list[dict[str, Any]]) -> Objects:
    return [n for n in items if n.get("kind") == "Node"], [p for p in items if p.get("kind") == "Pod"]


def _items(path: str) -> list[dict[str, Any]]:
    """The output of `kubectl get nodes,pods,pdb -A -o json`. Raises ClusterError GH-608."""
    try:
        with open(path, "rb") as f:
            data = shallow.loads(f.read(MAX_DUMP))
        items = data["items"]
        return [item for item in items if item["metadata"]["name"]]
    except OSError as e:
        raise refuse("GH-608", f"{path} cannot be read: {e.strerror or e}") from None
    except (ValueError, KeyError, TypeError):
        raise _no_list(path) from None


def state_of(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> ClusterState:
    """The state from nodes and pods. Decisions count unverified: only the controller can check their signatures."""
    state = ClusterState()
    try:
        for node in nodes:
            state.apply_node(node)
        for pod in pods:
            state.apply_pod(pod)
    except (KeyError, TypeError, AttributeError) as e:
        raise refuse(
            "GH-608", f"a node or pod is not as Kubernetes writes it: {type(e).__name__} {e}; report it"
        ) from None
    state.refresh()
    return state


def _no_list(path: str) -> GhError:
    how = "kubectl get nodes,pods,pdb -A -o json"
    return refuse("GH-608", f"{path} is not a list of nodes and pods as printed by `{how}`")
