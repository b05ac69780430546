"""Of places that are equal by the placement order, the one where the neighbours disturb a new pod least."""

from collections.abc import Iterable, Iterator

from oci_hook.core.allocate import placement_of, usage
from oci_hook.core.rules import ORDERS
from oci_hook.core.terms import ONLINE
from oci_hook.kube.fit import Fit, fit
from oci_hook.kube.interference import UNKNOWN, Busy, cost
from oci_hook.kube.pods import Asked
from oci_hook.kube.records import Node
from oci_hook.kube.state import ClusterState

Option = tuple[str, Fit]
MOST = 16  # equal nodes that are compared
MOST_OF_NODE = 512  # GPUs that are looked at for the alternatives of one node: each alternative looks at all of them


def calmest(state: ClusterState, uid: str, options: Iterable[tuple[str, Fit, Asked]]) -> Option:
    """options: at least one; of equal ones the first is taken."""
    best: tuple[tuple[int, int], Option] | None = None
    for name, found, asked in options:
        node = state.nodes[name]
        busy = neighbours(state, node, uid)
        online = any(request.terms.priority_class == ONLINE for _, _, request in asked)
        for one in alternatives(state, node, uid, found, asked):
            expected = cost(online, [b for row in one.rows for b in busy.get(row.uuid, ())])
            if best is None or expected < best[0]:
                best = expected, (name, one)
    assert best is not None
    return best[1]


def neighbours(state: ClusterState, node: Node, uid: str) -> dict[str, list[Busy]]:
    """By GPU: the levels of the pods on it, and of those that will be. uid: a pod that does not count."""
    found: dict[str, list[Busy]] = {}
    for other, pod in node.pods.items():
        if other != uid and pod.counts(other in node.listed):
            for uuid in {row.uuid for row in pod.rows}:
                found.setdefault(uuid, []).append(node.busy.get(other, UNKNOWN))
    for other, one in node.reserved.items():
        if other != uid:
            for uuid in {row.uuid for row in one.fit.rows}:
                found.setdefault(uuid, []).append(UNKNOWN)
    for grant in node.local:
        for uuid in {share.uuid for share in grant.shares}:
            found.setdefault(uuid, []).append(node.busy.get(grant.who.pod_uid, UNKNOWN))
    return found


def alternatives(state: ClusterState, node: Node, uid: str, found: Fit, asked: Asked) -> Iterator[Fit]:
    """This choice, and where one container asks for one GPU the same on the GPUs that are its equals by the node's order."""
    yield found
    asks = [request for _, _, request in asked]
    if len(asks) != 1 or len(asks[0].gpus) != 1 or asks[0].gpus[0].device or asks[0].every_gpu or len(found.rows) != 1:
        return
    if asks[0].narrow_to is not None:
        return
    inventory, beside = state.inventory(node), state.grants(node, without=uid)
    key = ORDERS[placement_of(asks[0], node.rules)]
    uses = usage(inventory, beside, node.rules)
    chosen = next(key(use) for use in uses if use.gpu.uuid == found.rows[0].uuid)
    looked = 0
    for use in uses:
        if use.gpu.uuid != found.rows[0].uuid and key(use) == chosen:
            looked += len(uses)
            if looked > MOST_OF_NODE:
                return
            narrowed = tuple((name, kind, r.replace(narrow_to=(use.gpu.uuid,))) for name, kind, r in asked)
            other = fit(narrowed, inventory, beside, node.rules)
            if isinstance(other, Fit):
                yield other
