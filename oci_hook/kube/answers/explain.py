"""Explains a pod's place, or why it waits: every node and GPU with figures, by the code that chooses; and lists all holders."""

from collections.abc import Callable, Iterable
from typing import Any

from oci_hook.core import suggest
from oci_hook.core.inventory import Inventory
from oci_hook.core.units import MAX_MEMORY_MIB
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.placing.choose import NodeRefusal, Question, choose, judge, summary
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit, as_grants, fit
from oci_hook.kube.placing.records import NodeRecord, PodRecord
from oci_hook.kube.pod.asked import INIT, PodWords, words
from oci_hook.kube.pod.hosts import Hosts
from oci_hook.kube.preemption.disruption import Budgets
from oci_hook.kube.preemption.preempt import EvictionPlan, plan

UNKNOWN = Budgets(known=False)
MAX_SUGGESTING = 40  # nodes on which to try smaller requests


class GpuView(Value):
    """One GPU without the pod. given: the pod's share of it, one text for each container."""

    index: int
    address: str
    uuid: str
    name: str
    memory_mib: int
    free_mib: int
    free_compute: int
    free_offline_compute: int
    containers: int
    note: str
    given: tuple[str, ...] = ()


class NodeView(Value):
    """fits: the filter's answer for this node alone, if the node lets in the pod. why: the reason if not."""

    name: str
    fits: bool
    why: Problem | None
    gpus: tuple[GpuView, ...]


class Explanation(Value):
    """node: the pod's node, or the one that it would get, "" for none. bound: it is on that node. victims: NAMESPACE/NAME of the pods
    that it would preempt on `victims_node`. protected: disruption budgets forbid this preemption. budgets_known: budgets were read;
    otherwise they are ignored."""

    pod: PodWords
    asks: bool
    node: str
    bound: bool
    nodes: tuple[NodeView, ...]
    suggestions: tuple[str, ...]
    problem: Problem | None = None
    victims: tuple[str, ...] = ()
    victims_node: str = ""
    protected: bool = False
    budgets_known: bool = False


def explain(
    state: ClusterState,
    obj: dict[str, Any],
    hosts: Hosts | None = None,
    budgets: Budgets = UNKNOWN,
) -> Explanation:
    """obj: the pod's API object. The state may know the pod; its own reservation does not count against it. hosts: the same nodes and
    pods; None to look at GPUs only."""
    pod = words(obj)
    at = (obj.get("spec") or {}).get("nodeName") or ""
    with state.without(pod.uid):
        question = Question(pod)
        if at or not question.asks:
            return Explanation(pod, question.asks, at, bool(at), (), ())
        state.refresh()
        shut = {name: _shut(why) for name, why in (hosts.shut(obj) if hosts is not None else {}).items()}
        views, refused = [], {}
        for name in sorted(state.nodes):
            found = judge(state, question, name)
            view = node_view(state, question, name, found)
            if isinstance(found, NodeRefusal):
                refused[name] = found
            if name in shut and isinstance(found, Fit):
                view = kept_off(view, shut[name])
            views.append(view)
        best = choose(state, question, state.nodes.keys() - shut)
        if not isinstance(best, dict):
            return Explanation(pod, True, best.node, False, tuple(views), ())
        changes = suggestions(state, question, {name: one for name, one in refused.items() if name not in shut})
        there = state.nodes.keys() if hosts is None else hosts.allowed(obj) & state.nodes.keys()
        may = [name for name in sorted(there) if name not in refused or not refused[name].final]
        refused = {**shut, **refused}

        def lets_in(plan: EvictionPlan) -> bool:
            return hosts is None or not hosts.keeps_off(obj, plan.node, plan.victims)

        victims, at = preemption(state, pod, may, budgets, lets_in)
        protected = not victims
        if protected:
            victims, at = preemption(state, pod, may, UNKNOWN, lets_in)
        ends = victims, at, protected and bool(victims), budgets.known
        return Explanation(pod, True, "", False, tuple(views), changes, summary(refused.values()), *ends)


def preemption(
    state: ClusterState, pod: PodWords, names: Iterable[str], budgets: Budgets, lets_in: Callable[[EvictionPlan], bool]
) -> tuple[tuple[str, ...], str]:
    """(victims, their node), as the controller would choose them."""
    plans = [one for name in names if isinstance(one := plan(state, Question(pod), name, budgets), EvictionPlan)]
    best = min(filter(lets_in, plans), key=lambda one: (one.cost, one.node), default=None)
    if best is None:
        return (), ""
    return tuple(f"{state.pods[uid].namespace}/{state.pods[uid].name}" for uid in best.victims), best.node


def _shut(why: str) -> NodeRefusal:
    return NodeRefusal(Problem("GH-607", why), final=True)


def kept_off(view: NodeView, why: NodeRefusal) -> NodeView:
    """The view of a node whose GPUs have room, but which does not let in the pod."""
    return view.replace(fits=False, why=why.problem, gpus=tuple(gpu.replace(given=()) for gpu in view.gpus))


def node_view(state: ClusterState, question: Question, name: str, found: Fit | NodeRefusal) -> NodeView:
    room, node = state.cut.rooms.get(name), state.nodes[name]
    why = found.problem if isinstance(found, NodeRefusal) else None
    if room is None:
        return NodeView(name, False, why, ())
    inventory = state.inventory(node)
    notes = dict(found.notes or reasons(state, question, node, inventory)) if isinstance(found, NodeRefusal) else {}
    given = shares_of(found) if isinstance(found, Fit) else {}
    gpus = tuple(
        GpuView(
            index=gpu.index,
            address=gpu.address,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_mib=gpu.memory_mib,
            free_mib=spot.free_mib,
            free_compute=spot.free_compute,
            free_offline_compute=spot.free_offline,
            containers=spot.containers,
            note=notes.get(gpu.uuid, ""),
            given=given.get(gpu.uuid, ()),
        )
        for gpu, spot in zip(inventory.gpus, room.spots, strict=True)
    )
    return NodeView(name, isinstance(found, Fit), why, gpus)


def reasons(
    state: ClusterState, question: Question, node: NodeRecord, inventory: Inventory
) -> tuple[tuple[str, str], ...]:
    """The reason of `allocate` for each GPU, if only the first look refused so far."""
    if isinstance(question.under(node.rules), Problem):
        return ()
    found = fit(question.asked(node.rules), inventory, state.grants(node), node.rules)
    return () if isinstance(found, Fit) else found.notes


def shares_of(found: Fit) -> dict[str, tuple[str, ...]]:
    """GPU's UUID -> the containers' shares of it, as text."""
    given: dict[str, tuple[str, ...]] = {}
    for name, shares in found.shares:
        for share in shares:
            size = f"{share.memory_mib} MiB" if share.memory_mib else "the whole GPU"
            compute = f", {share.compute} %" if share.compute else ""
            given[share.uuid] = (*given.get(share.uuid, ()), f"{name}: {size}{compute}")
    return given


def suggestions(state: ClusterState, question: Question, refused: dict[str, NodeRefusal]) -> tuple[str, ...]:
    """The smallest change of each kind that gives room to the container without room, on the best node for it."""
    best: dict[str, tuple[int, str]] = {}
    rooms = state.cut.rooms
    names = [name for name in refused if name in rooms and refused[name].problem.code.startswith("GH-20")]
    for name in sorted(names, key=lambda name: (-rooms[name].sum_mib, name))[:MAX_SUGGESTING]:
        node = state.nodes[name]
        asked = question.asked(node.rules)
        inventory, grants = state.inventory(node), state.grants(node, named=True)
        found = fit(asked, inventory, grants, node.rules)
        if isinstance(found, Fit):
            continue
        before = [part for part in asked if part[1] != INIT]
        at = next((i for i, part in enumerate(before) if part[0] == found.container), len(before))
        ahead = fit(tuple(before[:at]), inventory, grants, node.rules)
        beside = (*grants, *(as_grants("", ahead.rows) if isinstance(ahead, Fit) else ()))
        request = next(request for part, _, request in asked if part == found.container)
        container = f"container {found.container}: " if len(asked) > 1 else ""
        for change in suggest.changes(request, inventory, beside, node.rules):
            text = f"{container}{change.text} (node {name})"
            best[change.kind] = min(best.get(change.kind, (MAX_MEMORY_MIB, "")), (cost(change), text))
    return tuple(text for _, text in best.values())


def cost(change: suggest.Suggestion) -> int:
    """The size of the loss, comparable within one kind: larger is worse."""
    if change.kind == "wait":
        return len(change.gone)
    gpus = change.request.gpus
    amounts = [
        (g.compute or 0) if change.kind == "compute" else (g.memory or ("", 0))[1] for g in gpus if g is not None
    ]
    return -len(gpus) if change.kind == "gpus" else -max(amounts, default=0)


class Held(Value):
    """A pod's share of one GPU. ledger: the pod's state in its node's ledger."""

    namespace: str
    pod: str
    node: str
    address: str
    uuid: str
    memory_mib: int
    whole: bool
    compute: int
    priority_class: str
    ledger: str


def holders(state: ClusterState, classes: dict[str, str]) -> tuple[Held, ...]:
    """All shares, node by node: of pods by their decisions, and grants without a decision. classes: UID -> class."""
    found = []
    for name in sorted(state.nodes):
        node = state.nodes[name]
        try:
            addresses = {gpu.uuid: gpu.address for gpu in state.inventory(node).gpus}
        except (KeyError, ValueError):
            addresses = {}
        for pod in sorted(node.pods.values(), key=lambda pod: (pod.namespace, pod.name)):
            said = ledger_words(pod, node)
            found += [
                Held(
                    namespace=pod.namespace,
                    pod=pod.name,
                    node=name,
                    address=addresses.get(row.uuid, ""),
                    uuid=row.uuid,
                    memory_mib=row.memory_mib,
                    whole=row.whole,
                    compute=row.compute,
                    priority_class=classes.get(pod.uid, ""),
                    ledger=said,
                )
                for row in pod.rows
            ]
        for grant in node.local:
            found += [
                Held(
                    namespace="",
                    pod=grant.who.id,
                    node=name,
                    address=addresses.get(share.uuid, ""),
                    uuid=share.uuid,
                    memory_mib=share.memory_mib,
                    whole=share.whole,
                    compute=share.compute,
                    priority_class=grant.terms.priority_class,
                    ledger="no decision",
                )
                for share in grant.shares
            ]
    return tuple(found)


def ledger_words(pod: PodRecord, node: NodeRecord) -> str:
    if pod.uid in node.refused:
        return f"refused {node.refused[pod.uid]}"
    if pod.uid in node.listed:
        return "ending" if pod.deleting or pod.ended else "granted"
    if not pod.counts(False):
        return "free"
    return "between starts" if pod.was_listed else "not yet"
