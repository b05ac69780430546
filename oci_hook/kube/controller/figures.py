"""What metrics say about a node's GPUs: the page's figures (kube/overview.py)."""

from oci_hook.kube import overview
from oci_hook.kube.controller.metrics import GpuFigures, NodeFigures
from oci_hook.kube.state import ClusterState


def of_node(state: ClusterState, name: str) -> NodeFigures | None:
    """None for a node that is not shown: one without GPUs that is not to have gpu-hook."""
    node = state.nodes.get(name)
    if node is None or not overview.shown(node):
        return None
    kind = overview.kind_of(node)
    if not node.text:
        return NodeFigures(kind, 0, [], overview.Sums())
    taken, holders = overview.taken_on(state, node)
    gpus, sums = [], overview.Sums(holders=holders)
    for gpu in state.inventory(node).gpus:
        shown, more = overview.gpu_of(gpu, taken.get(gpu.uuid, []), node.rules)
        free_compute = max(0, 100 - shown.compute)
        gpus.append(GpuFigures(gpu.uuid, shown, more.free_mib, free_compute))
        sums = sums.plus(more)
    return NodeFigures(kind, len(state.grants(node)), gpus, sums)
