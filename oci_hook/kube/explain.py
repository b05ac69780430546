"""Why a pod waits, or where it could go: every node and GPU with numbers, by the code that would choose; and what is taken."""

from collections.abc import Callable, Iterable
from typing import Any

from oci_hook.core import suggest
from oci_hook.core.inventory import Inventory
from oci_hook.core.units import MAX_MEMORY_MIB
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.choose import Question, Refused, choose, judge, summary
from oci_hook.kube.disruption import Budgets
from oci_hook.kube.fit import Fit, as_grants, fit
from oci_hook.kube.pods import INIT, PodWords, words
from oci_hook.kube.preempt import Plan, plan
from oci_hook.kube.records import Node, Pod
from oci_hook.kube.state import ClusterState

UNKNOWN = Budgets(known=False)
MAX_SUGGESTING = 40  # nodes for which smaller requests are tried


class GpuView(Value):
    """One GPU as the pod would find it. given: what the pod would get of it, one text for each container."""

    index: int
    address: str
    uuid: str
    name: str
    memory_mib: int
    free_mib: int
    free_compute: int
    containers: int
    note: str
    given: tuple[str, ...] = ()


class NodeView(Value):
    """fits: as the filter would say of this node alone, if the node lets the pod in. why: the reason where it does not."""

    name: str
    fits: bool
    why: Problem | None
    gpus: tuple[GpuView, ...]


KEPT_OFF = Refused(Problem("GH-607", "a cordon, a taint or the pod's node selector keeps it off the node"), final=True)


class Explanation(Value):
    """node: where the pod is, or else where it would go, "" for nowhere. bound: whether it is there. victims: NAMESPACE/NAME
    of the pods that would end on `victims_node` so that it gets room. protected: but for disruption budgets. budgets_known: these
    were read; else they are left aside."""

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
    lets_in: Callable[[str], bool] = lambda name: True,
    budgets: Budgets = UNKNOWN,
) -> Explanation:
    """obj: the pod's API object. The state may know the pod; what it holds itself does not count against it. lets_in: whether
    a node's cordon, labels and taints let the pod in."""
    pod = words(obj)
    at = (obj.get("spec") or {}).get("nodeName") or ""
    held = state.reservations.get(pod.uid)
    state.release(pod.uid)
    try:
        question = Question(pod)
        if at or not question.asks:
            return Explanation(pod, question.asks, at, bool(at), (), ())
        state.refresh()
        views, refused, shut = [], {}, set()
        for name in sorted(state.nodes):
            found = judge(state, question, name)
            view = node_view(state, question, name, found)
            if isinstance(found, Refused):
                refused[name] = found
            if not lets_in(name):
                shut.add(name)
                if isinstance(found, Fit):
                    view = kept_off(view)
            views.append(view)
        best = choose(state, question, state.nodes.keys() - shut)
        if not isinstance(best, dict):
            return Explanation(pod, True, best.node, False, tuple(views), ())
        changes = suggestions(state, question, {name: one for name, one in refused.items() if name not in shut})
        may = [name for name in sorted(refused) if not refused[name].final and name not in shut]
        refused |= {name: KEPT_OFF for name in shut - refused.keys()}
        victims, at = preemption(state, pod, may, budgets)
        protected = not victims
        if protected:
            victims, at = preemption(state, pod, may, UNKNOWN)
        ends = victims, at, protected and bool(victims), budgets.known
        return Explanation(pod, True, "", False, tuple(views), changes, summary(refused.values()), *ends)
    finally:
        if held is not None:
            state.restore(held)


def preemption(
    state: ClusterState, pod: PodWords, names: Iterable[str], budgets: Budgets
) -> tuple[tuple[str, ...], str]:
    """(pods that would end, on which node): the controller's choice."""
    plans = [one for name in names if isinstance(one := plan(state, Question(pod), name, budgets), Plan)]
    best = min(plans, key=lambda one: (one.cost, one.node), default=None)
    if best is None:
        return (), ""
    return tuple(f"{state.pods[uid].namespace}/{state.pods[uid].name}" for uid in best.victims), best.node


def kept_off(view: NodeView) -> NodeView:
    """Of a node that has room, and does not let the pod in."""
    return view.replace(fits=False, why=KEPT_OFF.problem, gpus=tuple(gpu.replace(given=()) for gpu in view.gpus))


def node_view(state: ClusterState, question: Question, name: str, found: Fit | Refused) -> NodeView:
    room, node = state.cut.rooms.get(name), state.nodes[name]
    why = found.problem if isinstance(found, Refused) else None
    if room is None:
        return NodeView(name, False, why, ())
    inventory = state.inventory(node)
    notes = dict(found.notes or reasons(state, question, node, inventory)) if isinstance(found, Refused) else {}
    given = shares_of(found) if isinstance(found, Fit) else {}
    gpus = tuple(
        GpuView(
            *(gpu.index, gpu.address, gpu.uuid, gpu.name, gpu.memory_mib),
            *(spot.free_mib, spot.free_compute, spot.containers, notes.get(gpu.uuid, "")),
            given.get(gpu.uuid, ()),
        )
        for gpu, spot in zip(inventory.gpus, room.spots, strict=True)
    )
    return NodeView(name, isinstance(found, Fit), why, gpus)


def reasons(state: ClusterState, question: Question, node: Node, inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """What `allocate` says of each GPU where the first look was enough to refuse."""
    if isinstance(question.under(node.rules), Problem):
        return ()
    found = fit(question.asked(node.rules), inventory, state.grants(node), node.rules)
    return () if isinstance(found, Fit) else found.notes


def shares_of(found: Fit) -> dict[str, tuple[str, ...]]:
    """GPU's UUID -> what each container gets of it."""
    given: dict[str, tuple[str, ...]] = {}
    for name, shares in found.shares:
        for share in shares:
            size = f"{share.memory_mib} MiB" if share.memory_mib else "the whole GPU"
            compute = f", {share.compute} %" if share.compute else ""
            given[share.uuid] = (*given.get(share.uuid, ()), f"{name}: {size}{compute}")
    return given


def suggestions(state: ClusterState, question: Question, refused: dict[str, Refused]) -> tuple[str, ...]:
    """The smallest change of each kind that gives the container that has no room some, on the node where it is smallest."""
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
    """How much a change takes away: the larger, the worse. Comparable within one kind."""
    if change.kind == "wait":
        return len(change.gone)
    gpus = change.request.gpus
    amounts = [
        (g.compute or 0) if change.kind == "compute" else (g.memory or ("", 0))[1] for g in gpus if g is not None
    ]
    return -len(gpus) if change.kind == "gpus" else -max(amounts, default=0)


class Held(Value):
    """A pod's hold on one GPU. ledger: what its node's ledger says of the pod."""

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
    """Who holds what, node by node: pods by their decisions, and grants that no decision made. classes: UID -> class."""
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
                    *(pod.namespace, pod.name, name, addresses.get(row.uuid, ""), row.uuid),
                    *(row.memory_mib, row.whole, row.compute, classes.get(pod.uid, ""), said),
                )
                for row in pod.rows
            ]
        for grant in node.local:
            found += [
                Held(
                    *("", grant.who.id, name, addresses.get(share.uuid, ""), share.uuid),
                    *(share.memory_mib, share.whole, share.compute, grant.terms.priority_class, "no decision"),
                )
                for share in grant.shares
            ]
    return tuple(found)


def ledger_words(pod: Pod, node: Node) -> str:
    if pod.uid in node.refused:
        return f"refused {node.refused[pod.uid]}"
    if pod.uid in node.listed:
        return "ending" if pod.deleting or pod.ended else "granted"
    if not pod.counts(False):
        return "free"
    return "between starts" if pod.was_listed else "not yet"
