"""Chooses the pods to evict so that a pod gets its GPUs on one node.

Kubernetes' own scheduler chooses victims by a node's sums, which do not tell which GPU gets room. So its victims may not help; and
if the sums have room, it proposes no victims (1.20) or leaves the node out (1.22 and newer).
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable

from oci_hook.core.terms import ONLINE
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.placing.choose import MOST_WORK, PLAIN, Question, unsuited, work_of
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit, as_grants, fit
from oci_hook.kube.placing.records import NodeRecord, PodRecord
from oci_hook.kube.preemption.disruption import Allowance, Budgets, violations

MAX_ASKED = 128  # pods of one node to consider; a kubelet usually allows 110, and a GPU 64
SPARED = ("kube-system",)  # namespaces whose pods are victims only if the scheduler proposes them
NO_BUDGETS = Budgets()


class PreemptionTerms(Value):
    """The settings of preemption. equal_offline: an online pod may preempt pods of class offline of the same priority. add: we may
    add victims to those that the scheduler proposed."""

    equal_offline: bool = True
    add: bool = True


USUAL = PreemptionTerms()


class EvictionPlan(Value):
    """victims: UIDs, the least important first. fit: the pod's GPUs once they have ended. cost: smaller is better, also between
    nodes."""

    node: str
    victims: tuple[str, ...]
    fit: Fit
    cost: tuple[tuple[bool, int], int, int, int]


class Kept(Value):
    """There are enough less important pods, but they may not be evicted: budgets protect them, or the API server refused."""


KEPT = Kept()


class Victims(Value):
    """The victims on one node, as the extender answers. violations: the number of `uids` that disruption budgets protect."""

    uids: tuple[str, ...]
    violations: int


def online(question: Question) -> bool:
    """True if all its GPU requests are of class online. Otherwise a small online container could preempt pods for an offline one."""
    found = question.under(PLAIN)
    return not isinstance(found, Problem) and {r.terms.priority_class for _, _, r in found[0]} == {ONLINE}


def yields(pod: PodRecord, question: Question, terms: PreemptionTerms = USUAL) -> bool:
    """True if this pod may be preempted for the asking one. Its owner does not matter, as in Kubernetes' own preemption: any user can
    claim a DaemonSet as the pod's owner. Static pods have no decision, so they are never victims."""
    if pod.namespace in SPARED or not question.pod.may_preempt:
        return False
    if pod.priority < question.pod.priority:
        return True
    return terms.equal_offline and pod.offline and pod.priority == question.pod.priority and online(question)


def rank(pod: PodRecord) -> tuple[bool, int]:
    """The pod with the smaller rank is evicted first: offline pods, then low priorities."""
    return not pod.offline, pod.priority


def ending(node: NodeRecord) -> frozenset[str]:
    """Pods that hold GPUs of the node and will end soon."""
    return frozenset(uid for uid, pod in node.pods.items() if pod.rows and pod.ends)


def awaited(state: ClusterState, question: Question, name: str) -> Fit | None:
    """The pod's GPUs on this node once its terminating pods have ended; None if these are not enough."""
    state.refresh()
    node = state.nodes.get(name)
    if node is None or name not in state.cut.rooms:
        return None
    gone = ending(node)
    return None if _blocked(state, question, node, gone) else _without(state, question, node, gone)


def plan(
    state: ClusterState,
    question: Question,
    name: str,
    budgets: Budgets = NO_BUDGETS,
    terms: PreemptionTerms = USUAL,
    barred: Container[str] = (),
    patient: bool = True,
) -> EvictionPlan | Kept | None:
    """The cheapest victims on this node that no disruption budget protects. KEPT if victims exist only without budgets and `barred`;
    None if there are none at all, or the search takes too long.

    barred: UIDs of pods that may not be chosen. patient: terminating pods count as gone.
    """
    state.refresh()
    node = state.nodes.get(name)
    if node is None or name not in state.cut.rooms or not question.pod.may_preempt:
        return None
    gone = ending(node) if patient else frozenset()
    lower = [
        pod
        for uid, pod in node.pods.items()
        if pod.rows and not (pod.ended or (pod.told_to_end and not pod.may_be_hurried)) and yields(pod, question, terms)
    ]
    lower.sort(key=lambda pod: (rank(pod), pod.uid))
    if not lower or _without(state, question, node, gone | {pod.uid for pod in lower}) is None:
        return None
    lesser = frozenset(pod.uid for pod in lower)
    lower = [pod for pod in lower if pod.uid not in barred]
    sets = [_of_each_gpu(lower)]
    uuids = dict.fromkeys(row.uuid for pod in lower for row in pod.rows)
    if len(uuids) > 1:  # also all pods of one GPU, if the pod needs a whole one
        sets += [[pod for pod in lower if any(row.uuid == uuid for row in pod.rows)] for uuid in uuids]
    found = []
    for some in sets:
        one = _cheapest(state, question, node, some, gone, budgets)
        if question.work > MOST_WORK:  # the last set is not minimal, so drop it
            break
        if one is not None:
            found.append(one)
    if found:
        return min(found, key=lambda one: (one.cost, one.victims))
    comes = _if_gone(state, question, node, gone) is not None
    kept = not comes and _if_gone(state, question, node, gone | lesser) is not None
    return KEPT if kept and question.work <= MOST_WORK else None


def _of_each_gpu(pods: Iterable[PodRecord]) -> list[PodRecord]:
    """At most MAX_ASKED of the pods, in order of eviction. The largest pod of each GPU is kept first, then the second largest, and so
    on, so that many small pods, or those on one GPU, do not crowd out the others."""
    found = sorted(pods, key=lambda pod: (*_minus(_freed([pod])), pod.uid))
    if len(found) > MAX_ASKED:
        count: Counter[str] = Counter()
        turns = []
        for pod in found:
            uuids = {row.uuid for row in pod.rows}
            turns.append(min(count[uuid] for uuid in uuids))
            count.update(uuids)
        found = [pod for _, pod in sorted(zip(turns, found, strict=True), key=lambda turn: turn[0])[:MAX_ASKED]]
    return sorted(found, key=lambda pod: (rank(pod), pod.uid))


def _cheapest(
    state: ClusterState,
    question: Question,
    node: NodeRecord,
    lower: list[PodRecord],
    gone: frozenset[str],
    budgets: Budgets,
) -> EvictionPlan | None:
    """Spares the most important pods first; of equal ones the smaller, so that few are evicted."""
    allowance = Allowance(budgets)
    chosen = {pod.uid: pod for pod in lower if allowance.take(pod)}
    last = _if_gone(state, question, node, gone | chosen.keys())
    if last is None:
        return None
    for pod in sorted(chosen.values(), key=lambda pod: (rank(pod), *_minus(_freed([pod])), pod.uid), reverse=True):
        rest = _if_gone(state, question, node, gone | (chosen.keys() - {pod.uid}))
        if rest is not None:
            last = rest
            del chosen[pod.uid]
    if not chosen:
        return None  # the terminating pods are enough
    pods = sorted(chosen.values(), key=lambda pod: (rank(pod), pod.uid))
    cost = max(map(rank, pods)), len(pods), sum(pod.priority for pod in pods), _freed(pods)[1]
    return EvictionPlan(node.name, tuple(pod.uid for pod in pods), last, cost)


def _if_gone(state: ClusterState, question: Question, node: NodeRecord, gone: frozenset[str]) -> Fit | None:
    return None if _blocked(state, question, node, gone) else _without(state, question, node, gone)


def victims(
    state: ClusterState,
    question: Question,
    name: str,
    proposed: Collection[str],
    said: int = 0,
    budgets: Budgets = NO_BUDGETS,
    terms: PreemptionTerms = USUAL,
) -> Victims | None:
    """The victims on a node for which the scheduler proposed some; None if no choice is enough.

    Proposed victims without a GPU stay, since they free other resources. Of those with GPUs, as many as possible are spared, but
    the rest frees at least the sums that the proposed ones would. No added victim is protected by a disruption budget. said: the
    number of proposed victims that the scheduler found protected.
    """
    state.refresh()
    node = state.nodes.get(name)
    if node is None or name not in state.cut.rooms:
        return None
    wanted = set(proposed)
    if any(pod.told_to_end and not pod.ends and uid in wanted for uid, pod in node.pods.items()):
        return None  # the scheduler's deletion does not shorten a grace period; see extender.to_hurry
    gone = ending(node)
    holders = {uid: pod for uid, pod in node.pods.items() if pod.rows and not pod.told_to_end}
    ours = [pod for uid, pod in holders.items() if uid in wanted]
    lower = {pod.uid: pod for pod in [*ours, *_added(holders.values(), ours, wanted, question, budgets, terms)]}
    blocked = _blocked(state, question, node, wanted | gone)
    if blocked or _without(state, question, node, gone | lower.keys()) is None:
        return None
    least = _freed(ours)
    protected = {pod.uid for pod in ours if violations(budgets, [pod])}
    # Spared first: protected pods, then important ones, then those that were not proposed.
    order = sorted(
        lower.values(), key=lambda pod: (pod.uid in protected, rank(pod), pod.uid not in wanted, pod.uid), reverse=True
    )
    for pod in order:
        rest = [other for uid, other in lower.items() if uid != pod.uid]
        enough = all(a >= b for a, b in zip(_freed(rest), least, strict=True))
        if enough and _without(state, question, node, gone | {other.uid for other in rest}) is not None:
            del lower[pod.uid]
    if question.work > MOST_WORK:
        return None
    others = [uid for uid in proposed if uid not in holders and uid not in gone]
    count = max(0, said - violations(budgets, ours)) + violations(budgets, lower.values())
    return Victims((*others, *sorted(lower)), min(count, len(others) + len(lower)))


def _added(
    holders: Iterable[PodRecord],
    ours: Iterable[PodRecord],
    wanted: Container[str],
    question: Question,
    budgets: Budgets,
    terms: PreemptionTerms,
) -> list[PodRecord]:
    """The possible victims besides the proposed ones."""
    if not (terms.add and budgets.known):
        return []
    allowance = Allowance(budgets)
    for pod in ours:
        allowance.take(pod)
    more = [pod for pod in holders if pod.uid not in wanted and not pod.ended and yields(pod, question, terms)]
    return [pod for pod in _of_each_gpu(more) if allowance.take(pod)]


def _blocked(state: ClusterState, question: Question, node: NodeRecord, gone: Collection[str]) -> bool:
    """True if something other than room keeps the pod off the node once these pods are gone."""
    owner = state.owner(node, question.pod.uid)
    if unsuited(question, node) is not None or (owner is not None and owner.uid not in gone):
        return True
    stays = any(not (pod.daemon or pod.ended or uid in gone) for uid, pod in node.pods.items())
    reserved = node.reserved.keys() - {question.pod.uid}
    return question.pod.whole_node and (stays or bool(reserved or node.local))


def _without(state: ClusterState, question: Question, node: NodeRecord, gone: Collection[str]) -> Fit | None:
    """The pod's GPUs once these pods are gone; None if it has no room."""
    beside = list(node.local)
    for uid, pod in node.pods.items():
        if uid not in gone and pod.rows and pod.counts(uid in node.listed):
            beside += as_grants(uid, pod.rows)
    for uid, one in node.reserved.items():
        if uid != question.pod.uid and not one.yields_to(question.pod):
            beside += as_grants(uid, one.fit.rows)
    if isinstance(question.under(node.rules), Problem):
        return None
    requests = question.asked(node.rules)
    inventory = state.inventory(node)
    work = work_of(requests, len(inventory.gpus)) or max(1, len(inventory.gpus) // 16)
    if max(question.work, work) > MOST_WORK:
        return None
    question.work += work
    found = fit(requests, inventory, tuple(beside), node.rules)
    return found if isinstance(found, Fit) else None


def _freed(pods: Iterable[PodRecord]) -> tuple[int, ...]:
    """(GPUs, MiB, per cent of compute, per cent of offline compute) of these pods, as the sums count them."""
    rows = [row for pod in pods for row in pod.rows]
    compute = [0, 0]
    for r in rows:
        compute[r.offline] += 100 if r.whole else r.compute
    return len(rows), sum(r.memory_mib for r in rows if not r.whole), *compute


def _minus(freed: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-amount for amount in freed)
