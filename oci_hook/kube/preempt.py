"""Which pods of a lower priority must end so that a pod gets its GPUs on one node.

Kubernetes' own scheduler chose victims by the sums of a node, which do not say on which GPU something becomes free. So its
victims may not help, and others of the same size may.
"""

from collections.abc import Collection, Iterable

from oci_hook.kube.choose import MOST_WORK, Question, unsuited, work_of
from oci_hook.kube.fit import Fit, as_grants, fit
from oci_hook.kube.records import Node, Pod
from oci_hook.kube.state import ClusterState

MAX_ASKED = 64  # pods of one node that are looked at


def victims(state: ClusterState, question: Question, name: str, proposed: Collection[str]) -> list[str] | None:
    """UIDs of the pods to end; None where no choice among pods of a lower priority is enough.

    Pods that hold no GPU stay victims as proposed: they are ended for other resources. Of those that do, as many as possible
    are spared, but what the others give back is never less than what the proposed ones would.
    """
    state.refresh()
    node = state.nodes.get(name)
    if node is None or name not in state.cut.rooms:
        return None
    wanted = set(proposed)
    holders = [pod for pod in node.pods.values() if pod.rows and not pod.deleting and pod.gone is None]
    lower = [pod for pod in holders if pod.priority < question.pod.priority or pod.uid in wanted]
    lower = sorted(lower, key=lambda pod: (pod.uid not in wanted, pod.priority, pod.uid))[:MAX_ASKED]
    gone = {pod.uid: pod for pod in lower}
    if _blocked(state, question, node, wanted) or not _fits(state, question, node, gone):
        return None
    least = _freed(pod for pod in lower if pod.uid in wanted)
    # The highest priority is spared first; of equal ones, those that were not proposed.
    for pod in sorted(lower, key=lambda pod: (-pod.priority, pod.uid in wanted, pod.uid)):
        rest = {uid: other for uid, other in gone.items() if uid != pod.uid}
        enough = all(a >= b for a, b in zip(_freed(rest.values()), least, strict=True))
        if enough and _fits(state, question, node, rest):
            gone = rest
    others = [uid for uid in proposed if uid not in {pod.uid for pod in holders}]
    return [*others, *sorted(gone)]


def _blocked(state: ClusterState, question: Question, node: Node, wanted: set[str]) -> bool:
    """Whether something other than room keeps the pod off the node, when those that were proposed are gone."""
    owner = state.owner(node, question.pod.uid)
    if unsuited(question, node) is not None or (owner is not None and owner.uid not in wanted):
        return True
    stays = any(not (pod.daemon or pod.ended or pod.uid in wanted) for pod in node.pods.values())
    return question.pod.whole_node and (stays or bool(node.reserved or node.local))


def _fits(state: ClusterState, question: Question, node: Node, gone: dict[str, Pod]) -> bool:
    beside = list(node.local)
    for uid, pod in node.pods.items():
        if uid not in gone and pod.rows and pod.counts(uid in node.listed):
            beside += as_grants(uid, pod.rows)
    for uid, one in node.reserved.items():
        if uid != question.pod.uid:
            beside += as_grants(uid, one.fit.rows)
    requests = question.asked(node.rules)
    if question.work > MOST_WORK:
        return False
    question.work += work_of(requests) or 1
    found = fit(requests, state.inventory(node), tuple(beside), node.rules)
    return isinstance(found, Fit)


def _freed(pods: Iterable[Pod]) -> tuple[int, int, int]:
    """(GPUs, MiB, per cent of compute) that these hold, as the sums count them."""
    rows = [row for pod in pods for row in pod.rows]
    return len(rows), sum(r.memory_mib for r in rows if not r.whole), sum(100 if r.whole else r.compute for r in rows)
