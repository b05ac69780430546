"""What metrics say about a node's GPUs."""

from oci_hook.core.allocate import usage
from oci_hook.kube.controller.metrics import Figures, GpuFigures
from oci_hook.kube.state import ClusterState


def of_node(state: ClusterState, name: str) -> Figures | None:
    """None for a node without GPUs."""
    node = state.nodes.get(name)
    if node is None or not node.text:
        return None
    grants = state.grants(node)
    gpus = [
        GpuFigures(use.gpu.uuid, use.gpu.memory_mib, max(0, use.free_mib), max(0, use.free_compute), use.containers)
        for use in usage(state.inventory(node), grants, node.rules)
    ]
    return len(grants), gpus
