"""Reads a cluster's nodes and pods for commands, from its API server or from a dump."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from oci_hook.errors import GhError, refuse
from oci_hook.kube.controller import access
from oci_hook.kube.disruption import Budget, budget
from oci_hook.kube.state import ClusterState

MAX_DUMP = 2 << 30  # bytes
MAX_PAGE = 256 << 20
PAGE = 500  # objects
TIMEOUT = 30  # seconds

Objects = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # nodes, pods


def read(dump: str | None, kubeconfig: str | None) -> Objects:
    """Raises ClusterError GH-608."""
    if dump and kubeconfig:
        raise refuse("GH-608", "--dump and --kubeconfig are two places to read the cluster from; name one")
    return from_dump(dump) if dump else from_server(kubeconfig or default_kubeconfig())


def read_with_budgets(dump: str | None, kubeconfig: str | None) -> tuple[Objects, list[Budget] | None]:
    """The same, and the PodDisruptionBudgets; None where they cannot be known. Raises ClusterError GH-608."""
    if dump and not kubeconfig:
        items = _items(dump)
        objects = _nodes_and_pods(items)
    else:
        objects = read(dump, kubeconfig)
    try:
        if dump:
            found = [budget(item) for item in items if item.get("kind") == "PodDisruptionBudget"]
            return objects, found or None  # a dump without any may be one without the kind
        opener, there = _opener(kubeconfig or default_kubeconfig())
        return objects, budgets_of(opener, there)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise refuse(
            "GH-608", f"a PodDisruptionBudget is not as the API server has it: {type(e).__name__} {e}"
        ) from None


def budgets_of(opener: urllib.request.OpenerDirector, there: access.Access) -> list[Budget] | None:
    """policy/v1 is there from Kubernetes 1.21 on, policy/v1beta1 until 1.24."""
    for version in ("policy/v1", "policy/v1beta1"):
        try:
            return [budget(item, version) for item in listed(opener, there, f"/apis/{version}/poddisruptionbudgets")]
        except GhError:
            continue  # no right to list them, or not this version
    return None


def default_kubeconfig() -> str:
    """As kubectl has it; "" in a pod that has none, where its service account counts."""
    named = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    own = Path("~/.kube/config").expanduser()
    return named or (str(own) if own.exists() else "")


def from_server(kubeconfig: str) -> Objects:
    """Lists in pages. Raises ClusterError GH-608."""
    opener, there = _opener(kubeconfig)
    return listed(opener, there, "/api/v1/nodes"), listed(opener, there, "/api/v1/pods")


def _opener(kubeconfig: str) -> tuple[urllib.request.OpenerDirector, access.Access]:
    there = access.load(kubeconfig)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if there.tls:
        handlers.append(urllib.request.HTTPSHandler(context=there.tls))
    return urllib.request.build_opener(*handlers), there


def listed(opener: urllib.request.OpenerDirector, there: access.Access, path: str) -> list[dict[str, Any]]:
    kind = path.rpartition("/")[2]
    items: list[dict[str, Any]] = []
    more = ""
    while True:
        query = urllib.parse.urlencode({"limit": PAGE, **({"continue": more} if more else {})})
        asked = urllib.request.Request(f"{there.server}{path}?{query}")
        try:
            if token := there.token.get():
                asked.add_header("Authorization", f"Bearer {token}")
            with opener.open(asked, timeout=TIMEOUT) as answer:
                page = json.loads(answer.read(MAX_PAGE))
            items += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue") or ""
        except urllib.error.HTTPError as e:
            e.close()
            raise refuse("GH-608", f"{there.server} does not list {kind}: {e.code} {e.reason}") from None
        except (OSError, ValueError, AttributeError) as e:
            why = getattr(e, "reason", e)
            raise refuse("GH-608", f"{there.server} cannot be asked for {kind}: {why}") from None
        if not more:
            return items


def from_dump(path: str) -> Objects:
    """The output of `kubectl get nodes,pods,pdb -A -o json`. Raises ClusterError GH-608."""
    return _nodes_and_pods(_items(path))


def _nodes_and_pods(items: list[dict[str, Any]]) -> Objects:
    return [n for n in items if n.get("kind") == "Node"], [p for p in items if p.get("kind") == "Pod"]


def _items(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as f:
            data = json.loads(f.read(MAX_DUMP))
        items = data["items"]
        return [item for item in items if item["metadata"]["name"]]
    except OSError as e:
        raise refuse("GH-608", f"{path} cannot be read: {e.strerror or e}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_list(path) from None


def state_of(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> ClusterState:
    """Decisions count as they stand: only the controller can check their signatures."""
    state = ClusterState()
    try:
        for node in nodes:
            state.apply_node(node)
        for pod in pods:
            state.apply_pod(pod)
    except (KeyError, TypeError, AttributeError) as e:
        raise refuse("GH-608", f"a node or pod is not as the API server has it: {type(e).__name__} {e}") from None
    state.refresh()
    return state


def _no_list(path: str) -> GhError:
    how = "kubectl get nodes,pods,pdb -A -o json"
    return refuse("GH-608", f"{path} is no list of nodes and pods as `{how}` prints it")
