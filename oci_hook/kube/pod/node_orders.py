"""The orders of nodes, for a pod (`gpu-hook.io/node-placement`) or the cluster (`--place`)."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class NodeFigures(Protocol):
    """A node's figures for its sort key, as placing/room.py counts them."""

    sum_mib: int  # free memory of all its GPUs
    free_gpus: int
    containers: int


Key = Callable[[NodeFigures], tuple[int, int, int]]


class NodeOrder(NamedTuple):
    """The node with the smallest key comes first; equal ones by name. shares, whole: the keys for pods that ask for shares, and for
    whole GPUs. fills: a share first tries the fullest GPUs in use, on any node, before a free GPU."""

    shares: Key
    whole: Key
    fills: bool = False


def _packed(node: NodeFigures) -> tuple[int, int, int]:
    """Nodes in use before free ones, then those with fewer free GPUs, so that others keep many."""
    return int(not node.containers), node.free_gpus, node.sum_mib


# To add an order: a row here, and one in docs/guide/kubernetes.md.
NODE_ORDERS: dict[str, NodeOrder] = {
    "binpack": NodeOrder(_packed, _packed, fills=True),
    "spread": NodeOrder(
        lambda node: (-node.sum_mib, node.containers, 0),
        lambda node: (-node.free_gpus, -node.sum_mib, node.containers),
    ),
}
