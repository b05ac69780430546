"""Of places that are equal by the placement order, the one where the neighbours disturb a new pod least."""

from collections.abc import Iterable

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
TRIES = 8  # calmer GPUs that `allocate` is asked about; it takes the first nearly always


def calmest(state: ClusterState, uid: str, options: Iterable[tuple[str, Fit, Asked]]) -> Option:
    """options: at least one; of equal ones the first is taken."""
    places: list[tuple[tuple[int, int], str, Fit, Asked, str]] = []
    for name, found, asked in options:
        node = state.nodes[name]
        busy = neighbours(state, node, uid)
        online = any(request.terms.priority_class == ONLINE for _, _, request in asked)
        expected = cost(online, [b for row in found.rows for b in busy.get(row.uuid, ())])
        places.append((expected, name, found, asked, ""))
        for uuid in equals(state, node, uid, found, asked):
            places.append((cost(online, busy.get(uuid, ())), name, found, asked, uuid))
    places.sort(key=lambda place: place[0])
    tries = 0
    for _, name, found, asked, uuid in places:
        if not uuid:
            return name, found
        if tries < TRIES:
            tries += 1
            other = moved(state, state.nodes[name], uid, asked, uuid)
            if other is not None:
                return name, other
    raise AssertionError("no option")


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


def equals(state: ClusterState, node: Node, uid: str, found: Fit, asked: Asked) -> list[str]:
    """Where one container asks for one GPU: the GPUs that are this choice's equals by the node's order."""
    asks = [request for _, _, request in asked]
    if len(asks) != 1 or len(asks[0].gpus) != 1 or asks[0].gpus[0].device or asks[0].every_gpu or len(found.rows) != 1:
        return []
    if asks[0].narrow_to is not None:
        return []
    key = ORDERS[placement_of(asks[0], node.rules)]
    uses = usage(state.inventory(node), state.grants(node, without=uid), node.rules)
    chosen = next(key(use) for use in uses if use.gpu.uuid == found.rows[0].uuid)
    return [use.gpu.uuid for use in uses if use.gpu.uuid != found.rows[0].uuid and key(use) == chosen]


def moved(state: ClusterState, node: Node, uid: str, asked: Asked, uuid: str) -> Fit | None:
    """What the pod gets on this GPU of the node alone."""
    narrowed = tuple((name, kind, request.replace(narrow_to=(uuid,))) for name, kind, request in asked)
    found = fit(narrowed, state.inventory(node), state.grants(node, without=uid), node.rules)
    return found if isinstance(found, Fit) else None
