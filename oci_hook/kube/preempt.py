"""Which pods must end so that a pod gets its GPUs on one node.

Kubernetes' own scheduler chooses victims by the sums of a node, which do not say on which GPU something becomes free. So its
victims may not help, and where the sums have room it proposes nobody (1.20) or leaves the node out (1.22 and newer).
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable

from oci_hook.core.terms import ONLINE
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.choose import MOST_WORK, PLAIN, Question, unsuited, work_of
from oci_hook.kube.disruption import Allowance, Budgets, violations
from oci_hook.kube.fit import Fit, as_grants, fit
from oci_hook.kube.records import Node, Pod
from oci_hook.kube.state import ClusterState

MAX_ASKED = 128  # pods of one node that are looked at together; the usual kubelet has 110, and a GPU 64
SPARED = ("kube-system",)  # namespaces whose pods are nobody's victims, unless the scheduler itself proposes them
NO_BUDGETS = Budgets()


class Terms(Value):
    """Who ends for whom. equal_offline: pods of class offline end for an online pod of the same priority. add: pods that
    the scheduler did not propose may be added to its victims."""

    equal_offline: bool = True
    add: bool = True


USUAL = Terms()


class Plan(Value):
    """victims: UIDs, the least important first. fit: what the pod gets when they have ended. cost: the smaller, the better;
    comparable between nodes."""

    node: str
    victims: tuple[str, ...]
    fit: Fit
    cost: tuple[tuple[bool, int], int, int, int]


class Kept(Value):
    """Enough less important pods are there, but they may not end: budgets, or an API server that refused it, keep them."""


KEPT = Kept()


class Victims(Value):
    """For the extender. violations: how many of `uids` a disruption budget protects."""

    uids: tuple[str, ...]
    violations: int


def online(question: Question) -> bool:
    """Whether all that it asks for is of class online: else a small online container would end others' pods for an offline one."""
    found = question.under(PLAIN)
    return not isinstance(found, Problem) and {r.terms.priority_class for _, _, r in found[0]} == {ONLINE}


def yields(pod: Pod, question: Question, terms: Terms = USUAL) -> bool:
    """Whether this pod's importance is below the asking one's. Whose it is does not count, as with Kubernetes' own preemption: anybody
    may write that a DaemonSet owns his pod. A static pod has no decision, so it is nobody's victim."""
    if pod.namespace in SPARED or not question.pod.may_preempt:
        return False
    if pod.priority < question.pod.priority:
        return True
    return terms.equal_offline and pod.offline and pod.priority == question.pod.priority and online(question)


def rank(pod: Pod) -> tuple[bool, int]:
    """The smaller, the sooner it ends: offline first, then by priority."""
    return not pod.offline, pod.priority


def ending(node: Node) -> frozenset[str]:
    """Pods that hold GPUs of the node and will soon have ended."""
    return frozenset(uid for uid, pod in node.pods.items() if pod.rows and pod.ends)


def awaited(state: ClusterState, question: Question, name: str) -> Fit | None:
    """What the pod gets on this node as soon as those that end already have ended; None where that is not enough."""
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
    terms: Terms = USUAL,
    barred: Container[str] = (),
    patient: bool = True,
) -> Plan | Kept | None:
    """The cheapest victims on this node, of those whom no disruption budget protects; KEPT where they would be enough without
    budgets; None where they are not, or to find them takes too long.

    barred: UIDs of pods that may not be chosen. patient: pods that end already count as gone.
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
    if len(uuids) > 1:  # all of one GPU: where a whole one must become free
        sets += [[pod for pod in lower if any(row.uuid == uuid for row in pod.rows)] for uuid in uuids]
    found = []
    for some in sets:
        one = _cheapest(state, question, node, some, gone, budgets)
        if question.work > MOST_WORK:  # of the last set some may not be needed, and nobody looked
            break
        if one is not None:
            found.append(one)
    kept = False
    if not found and _if_gone(state, question, node, gone) is None:
        kept = _if_gone(state, question, node, gone | lesser) is not None
    if question.work > MOST_WORK and not found:
        return None
    return KEPT if kept else min(found, key=lambda one: (one.cost, one.victims), default=None)


def _of_each_gpu(pods: Iterable[Pod]) -> list[Pod]:
    """MAX_ASKED of them at most, in the order in which they end. The largest of each GPU come first, then the second largest, and so
    on: many small ones do not hide a large one, nor those on one GPU others'."""
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
    state: ClusterState, question: Question, node: Node, lower: list[Pod], gone: frozenset[str], budgets: Budgets
) -> Plan | None:
    """Spares the important ones first, and of equal ones the small ones, so that few end."""
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
        return None  # those that end already are enough
    pods = sorted(chosen.values(), key=lambda pod: (rank(pod), pod.uid))
    cost = max(map(rank, pods)), len(pods), sum(pod.priority for pod in pods), _freed(pods)[1]
    return Plan(node.name, tuple(pod.uid for pod in pods), last, cost)


def _if_gone(state: ClusterState, question: Question, node: Node, gone: frozenset[str]) -> Fit | None:
    return None if _blocked(state, question, node, gone) else _without(state, question, node, gone)


def victims(
    state: ClusterState,
    question: Question,
    name: str,
    proposed: Collection[str],
    said: int = 0,
    budgets: Budgets = NO_BUDGETS,
    terms: Terms = USUAL,
) -> Victims | None:
    """The pods to end on a node for which the scheduler proposed some; None where no choice is enough.

    Pods that hold no GPU stay victims as proposed: they are ended for other resources. Of those that do, as many as possible
    are spared, but what the others give back is never less than what the proposed ones would. Nobody is added whom a
    disruption budget protects. said: how many of the proposed ones the scheduler found protected.
    """
    state.refresh()
    node = state.nodes.get(name)
    if node is None or name not in state.cut.rooms:
        return None
    wanted = set(proposed)
    if any(pod.told_to_end and not pod.ends and uid in wanted for uid, pod in node.pods.items()):
        return (
            None  # the scheduler's deletion does not shorten the time of one that ends already; see extender.to_hurry
        )
    gone = ending(node)
    holders = {uid: pod for uid, pod in node.pods.items() if pod.rows and not pod.told_to_end}
    ours = [pod for uid, pod in holders.items() if uid in wanted]
    lower = {pod.uid: pod for pod in [*ours, *_added(holders.values(), ours, wanted, question, budgets, terms)]}
    blocked = _blocked(state, question, node, wanted | gone)
    if blocked or _without(state, question, node, gone | lower.keys()) is None:
        return None
    least = _freed(ours)
    protected = {pod.uid for pod in ours if violations(budgets, [pod])}
    # The protected are spared first, then the highest; of equal ones, those that were not proposed.
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
    holders: Iterable[Pod],
    ours: Iterable[Pod],
    wanted: Container[str],
    question: Question,
    budgets: Budgets,
    terms: Terms,
) -> list[Pod]:
    """Those that may end besides the proposed ones."""
    if not (terms.add and budgets.known):
        return []
    allowance = Allowance(budgets)
    for pod in ours:
        allowance.take(pod)
    more = [pod for pod in holders if pod.uid not in wanted and not pod.ended and yields(pod, question, terms)]
    return [pod for pod in _of_each_gpu(more) if allowance.take(pod)]


def _blocked(state: ClusterState, question: Question, node: Node, gone: Collection[str]) -> bool:
    """Whether something other than room keeps the pod off the node, when these are gone."""
    owner = state.owner(node, question.pod.uid)
    if unsuited(question, node) is not None or (owner is not None and owner.uid not in gone):
        return True
    stays = any(not (pod.daemon or pod.ended or uid in gone) for uid, pod in node.pods.items())
    reserved = node.reserved.keys() - {question.pod.uid}
    return question.pod.whole_node and (stays or bool(reserved or node.local))


def _without(state: ClusterState, question: Question, node: Node, gone: Collection[str]) -> Fit | None:
    """What the pod gets when these are gone."""
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


def _freed(pods: Iterable[Pod]) -> tuple[int, int, int]:
    """(GPUs, MiB, per cent of compute) that these hold, as the sums count them."""
    rows = [row for pod in pods for row in pod.rows]
    return len(rows), sum(r.memory_mib for r in rows if not r.whole), sum(100 if r.whole else r.compute for r in rows)


def _minus(freed: tuple[int, int, int]) -> tuple[int, int, int]:
    return -freed[0], -freed[1], -freed[2]
