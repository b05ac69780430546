"""Reads a cluster's nodes and pods for commands, from a dump."""

import json
from typing import Any

from oci_hook.errors import GhError, refuse
from oci_hook.kube.state import ClusterState

MAX_DUMP = 2 << 30  # bytes

Objects = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # nodes, pods


def read(dump: str | None) -> Objects:
    """Raises ClusterError GH-608."""
    if not dump:
        raise refuse(
            "GH-608", "no dump is named; write `kubectl get nodes,pods -A -o json` to a file and add --dump FILE"
        )
    return from_dump(dump)


def from_dump(path: str) -> Objects:
    """The output of `kubectl get nodes,pods -A -o json`. Raises ClusterError GH-608."""
    try:
        with open(path, "rb") as f:
            data = json.loads(f.read(MAX_DUMP))
        items = data["items"]
        named = [item for item in items if item["metadata"]["name"]]
    except OSError as e:
        raise refuse("GH-608", f"{path} cannot be read: {e.strerror or e}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_list(path) from None
    return [n for n in named if n.get("kind") == "Node"], [p for p in named if p.get("kind") == "Pod"]


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
    how = "kubectl get nodes,pods -A -o json"
    return refuse("GH-608", f"{path} is no list of nodes and pods as `{how}` prints it")
