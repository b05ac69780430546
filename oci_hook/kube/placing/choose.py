"""Chooses a node and its GPUs for a pod: a first look at all nodes, then `allocate` on the best ones until one has room."""

import functools
from collections.abc import Collection, Iterable
from math import comb

from oci_hook.core.allocate import TOO_SMALL
from oci_hook.core.policy_page import MAX_GPUS
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules, order_of
from oci_hook.core.terms import ONLINE
from oci_hook.core.value import Value
from oci_hook.errors import Problem, RequestError
from oci_hook.kube.formats.names import APART_FROM, NODE_PLACEMENT
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit, NoFit, fit, pinned
from oci_hook.kube.placing.records import NodeRecord
from oci_hook.kube.placing.room import Need, Room, fits_each, may_fit, need_of
from oci_hook.kube.pod.asked import Asked, PodWords, asked
from oci_hook.kube.pod.node_orders import NODE_ORDERS, NodeOrder

PLAIN = Rules()
BELOW_CONTEXT = "less memory than a program's context takes"
MOST_WORK = 5_000  # for one answer, in units of work_of: about 0.1 ms each
SMALL = 16  # GPUs: on a larger node, one container counts as work too
KEPT_WORDS = 4096  # characters of a pod's annotations and containers, to be cached with their meaning
OPENING = 8  # nodes to try for room on GPUs in use, before a free GPU is taken


class Chosen(Value):
    node: str
    fit: Fit


class NodeRefusal(Value):
    """problem: short, and the same for many nodes. final: the node could not have the pod even if it were empty."""

    problem: Problem
    notes: tuple[tuple[str, str], ...] = ()
    final: bool = False


TOO_MUCH = NodeRefusal(Problem("GH-607", "not tried: the pod takes too long to place; have fewer containers ask"))
OWNED = NodeRefusal(Problem("GH-609", "another pod has the node to itself"))


class Question:
    """A pod's request, read under the rules of each node."""

    def __init__(self, pod: PodWords) -> None:
        self.pod = pod
        words = tuple(pod.annotations.items())
        size = sum(len(key) + len(value) for key, value in words) + 64 * len(pod.containers)
        self._words = words if size <= KEPT_WORDS else None
        self.work = 0  # spent so far; see MOST_WORK
        self._under: dict[Rules, tuple[Asked, Need] | Problem] = {}
        self._last: tuple[Rules, tuple[Asked, Need] | Problem] | None = None
        self._kinds: tuple[object, tuple[set[bool], tuple[str, ...]]] | None = None

    def under(self, rules: Rules) -> "tuple[Asked, Need] | Problem":
        if (
            self._last is not None and self._last[0] is rules
        ):  # most nodes share one object; comparing values takes longer
            return self._last[1]
        found = self._under.get(rules)
        if found is None:
            words, containers = self._words, self.pod.containers
            namespace = self.pod.namespace if any(key.startswith(APART_FROM) for key in self.pod.annotations) else ""
            found = _under(self.pod, rules) if words is None else _understood(namespace, words, containers, rules)
            self._under[rules] = found
        self._last = rules, found
        return found

    def kinds(self, found: "tuple[Asked, Need]") -> "tuple[set[bool], tuple[str, ...]]":
        """({whether a wish is for a whole GPU}, names that a node's inventory must contain). Computed once for all nodes, since a pod
        may name two thousand GPUs. found: from `under`."""
        if self._kinds is None or self._kinds[0] is not found:
            wishes = [(request, wish) for _, _, request in found[0] for wish in request.gpus]
            kinds = {bool(request.exclusive or wish.whole) for request, wish in wishes}
            devices = dict.fromkeys(
                wish.device for _, wish in wishes if (wish.device or "").startswith(("GPU-", "MIG-"))
            )
            names = dict.fromkeys(str(name).split("/")[0].removeprefix("MIG-GPU") for name in devices)
            self._kinds = found, (kinds, tuple(names))
        return self._kinds[1]

    @property
    def asks(self) -> bool:
        """True if the pod needs a decision. An invalid request counts too, and is refused on every node."""
        found = self.under(PLAIN)
        return isinstance(found, Problem) or bool(found[0])

    def need(self, rules: Rules) -> Need | None:
        found = self.under(rules)
        return None if isinstance(found, Problem) else found[1]

    @functools.cached_property
    def named(self) -> bool:
        """True if the pod names a GPU."""
        found = self.under(PLAIN)
        requests = () if isinstance(found, Problem) else found[0]
        return any(wish.device for _, _, request in requests for wish in request.gpus)

    @property
    def least_mib(self) -> int:
        """The least memory that the pod needs of one GPU under any node's rules; 0 if unknown."""
        found = self.under(PLAIN)
        return 0 if isinstance(found, Problem) else found[1].mib

    def asked(self, rules: Rules) -> Asked:
        """Raises RequestError."""
        found = self.under(rules)
        if isinstance(found, Problem):
            raise RequestError(found)
        return found[0]


@functools.lru_cache(512)
def _understood(
    namespace: str, words: tuple[tuple[str, str], ...], containers: tuple[tuple[str, str], ...], rules: Rules
) -> "tuple[Asked, Need] | Problem":
    """Cached, since the filter and the Binding ask about the same pod, and its owner's other pods have the same text."""
    return _under(PodWords("", namespace, "", containers, dict(words), False, 0), rules)


def _under(pod: PodWords, rules: Rules) -> "tuple[Asked, Need] | Problem":
    try:
        requests = asked(pod, rules)
        return requests, need_of(requests, rules)
    except RequestError as e:
        return e.problems[0]


def choose(
    state: ClusterState, question: Question, among: Collection[str] | None = None
) -> "Chosen | dict[str, NodeRefusal]":
    """The best node with room among these (None: all); if there is none, the reason for each."""
    state.refresh()
    tried: dict[str, NodeRefusal] = {}
    known: dict[object, NodeRefusal] = {}  # by rules and GPU figures: the reason for all nodes alike
    order, whole = order_for(state, question), whole_gpus(question)
    if order.fills and not whole:
        opening = 0
        for name, room in state.cut.in_use(among, question.need, question.least_mib):
            found = _try(state, question, name, room, tried, known)
            if isinstance(found, Fit):
                if not opens(found, state, name, room):
                    return Chosen(name, found)
                opening += 1
                if opening == OPENING:
                    break
    for name, room in state.cut.walk(order.whole if whole else order.shares, among, question.need):
        found = _try(state, question, name, room, tried, known)
        if isinstance(found, Fit):
            return Chosen(name, found)
    names = state.nodes if among is None else among
    return {name: tried[name] if name in tried else _no_look(state, question, name) for name in names}


def judge(state: ClusterState, question: Question, name: str) -> Fit | NodeRefusal:
    """The answer of `choose` for this node alone."""
    state.refresh()
    room = state.cut.rooms.get(name)
    need = question.need(room.rules) if room is not None else None
    if room is None or need is None or not may_fit(room, need):
        return _no_look(state, question, name)
    return _try(state, question, name, room, {}, {})


def stays(state: ClusterState, question: Question, name: str, found: Fit) -> bool:
    """True if the pod can still have this choice, beside the node's present grants."""
    node = state.nodes.get(name)
    if node is None or not (node.present and node.text) or node.problem or state.unsure(node):
        return False
    if forbidden(state, question, node):
        return False
    requests = pinned(question.asked(node.rules), found.shares)
    if requests is None:
        return False
    beside = state.grants(node, without=question.pod.uid)
    same = fit(requests, state.inventory(node), beside, node.rules)
    return isinstance(same, Fit) and (same.shares, same.terms) == (found.shares, found.terms)


def forbidden(state: ClusterState, question: Question, node: NodeRecord) -> NodeRefusal | None:
    """The reason why the pod may not be on the node, regardless of room."""
    pod = question.pod
    if state.owner(node, pod.uid) is not None:
        return OWNED
    if pod.whole_node and state.others(node, pod.uid):
        return NodeRefusal(Problem("GH-609", "the pod needs a node of its own, and the node has other pods"))
    return unsuited(question, node)


def unsuited(question: Question, node: NodeRecord) -> NodeRefusal | None:
    """The reason why the node cannot take such a pod, even if it were empty."""
    found = question.under(node.rules)
    if isinstance(found, Problem):
        return NodeRefusal(found, final=True)
    if not node.mode and not question.named:
        return None
    kinds, names = question.kinds(found)
    for whole in kinds:
        if node.mode == ("shared" if whole else "whole"):
            takes = "shares" if whole else "whole GPUs"
            return NodeRefusal(Problem("GH-607", f"the node's label admits {takes} only"), final=True)
    if not all(name in node.text for name in names):
        return NodeRefusal(Problem("GH-202", "the node does not have the named GPU"), final=True)
    return None


def opens(found: Fit, state: ClusterState, name: str, room: Room) -> bool:
    """True if the choice takes a free GPU."""
    gpus = state.inventory(state.nodes[name]).gpus
    free = {gpu.uuid for gpu, spot in zip(gpus, room.spots, strict=True) if not spot.containers}
    return any(row.uuid in free for row in found.rows)


def order_for(state: ClusterState, question: Question) -> NodeOrder:
    """The order of the nodes: the pod's, or the cluster's setting if the pod names none that there is."""
    word = question.pod.annotations.get(NODE_PLACEMENT)
    said = word if word in NODE_ORDERS else state.placement
    found = question.under(PLAIN)
    requests = () if isinstance(found, Problem) else found[0]
    classes = {request.terms.priority_class for _, _, request in requests}
    return NODE_ORDERS[order_of(said, ONLINE if ONLINE in classes else "default")]


def whole_gpus(question: Question) -> bool:
    found = question.under(PLAIN)
    return not isinstance(found, Problem) and any(
        request.exclusive or wish.whole for _, _, request in found[0] for wish in request.gpus
    )


def _try(
    state: ClusterState,
    question: Question,
    name: str,
    room: Room,
    tried: dict[str, NodeRefusal],
    known: dict[object, NodeRefusal],
) -> Fit | NodeRefusal:
    """Asks `allocate`, unless a cheaper check already refuses."""
    if name in tried:
        return tried[name]
    node = state.nodes[name]
    why = forbidden(state, question, node)
    if why is None:
        requests = question.asked(node.rules)
        work = work_of(requests, len(room.spots))
        if question.work + work > MOST_WORK:
            tried[name] = TOO_MUCH
            return TOO_MUCH
        question.work += work // 8
        if not fits_each(room, requests, node.rules):
            why = _words(room, question)
        elif (alike := (node.rules, room.spots)) in known:
            why = known[alike]
    if why is None:
        question.work += work
        beside = state.grants(node, without=question.pod.uid)
        found = fit(requests, state.inventory(node), beside, node.rules)
        if isinstance(found, Fit):
            return found
        why = _refused(found)
        if not any(map(_by_node, (request for _, _, request in requests))):
            known[alike] = why
    tried[name] = why
    return why


def _by_node(request: Request) -> bool:
    """True if the answer depends on more than the GPUs' figures: named GPUs, IMEX channels, other requirements, apart-from."""
    terms = request.terms
    return bool(
        request.required or terms.imex_channels or terms.apart_from or any(wish.device for wish in request.gpus)
    )


def work_of(requests: Asked, gpus: int) -> int:
    """The cost of `fit` on a node with this many GPUs. `allocate` looks at each GPU for each wish; for several wishes of one
    container also at each pair of GPUs and at some sets. 0 for one container on a usual node, which the first look nearly
    always answers."""
    if len(requests) <= 1 and gpus <= SMALL:
        return 0
    total = 0
    for _, _, request in requests:
        wishes = min(gpus, MAX_GPUS) if request.every_gpu else len(request.gpus)
        total += -(-wishes * max(gpus, 8) // 8)
        if wishes > 1:
            total += gpus * gpus // 400 + min(50, comb(gpus, wishes) // 256)
    return total


def _refused(found: NoFit) -> NodeRefusal:
    first = found.problems[0]
    words = {
        "GH-202": "the node does not have the requested GPU or IMEX channels",
        "GH-203": "the node has fewer GPUs than asked for",
        "GH-204": "no GPU with room supports the driver's memory limit",
    }.get(first.code, "the node's GPUs do not have room for the whole request")
    if TOO_SMALL in first.message:
        words = BELOW_CONTEXT
    if first.code == "GH-602":
        return NodeRefusal(first, found.notes, final=True)
    return NodeRefusal(Problem(first.code, words), found.notes)


def _no_look(state: ClusterState, question: Question, name: str) -> NodeRefusal:
    """The reason for a node whose largest figures already rule it out."""
    room, node = state.cut.rooms.get(name), state.nodes.get(name)
    if node is not None and state.unsure(node):
        return _no("GH-201", "containers of a deleted pod still run on the node, and their share is not known yet")
    if node is None or room is None:
        why = (node.problem if node is not None else "") or "has not reported its GPUs"
        return NodeRefusal(Problem("GH-606", f"the node {why}"), final=True)
    # Looking at the pods of thousands of nodes takes long. A node that a pod has to itself has no free memory.
    look = not room.most_mib or node.mode or question.named or question.pod.whole_node
    return (forbidden(state, question, node) if look else None) or _words(room, question)


def _words(room: Room, question: Question) -> NodeRefusal:
    """The missing amount, in a text that is the same for many nodes. final: an empty node has too little as well."""
    found = question.under(room.rules)
    if isinstance(found, Problem):
        return NodeRefusal(found, final=True)
    need = found[1]
    if len(room.spots) < max(need.gpus, need.free_gpus):
        return _no("GH-203", "the node has fewer GPUs than asked for", final=True)
    if need.mib > room.most_grantable:
        return _no("GH-201", f"no GPU has {need.mib} MiB to grant", final=True)
    if 0 < need.mib < room.least_context:
        return _no("GH-201", BELOW_CONTEXT, final=True)
    if room.free_gpus < need.free_gpus:
        return _no("GH-201", f"{_too_few(need.free_gpus, 'is', 'are')} free")
    if room.most_mib < need.mib:
        return _no("GH-201", f"no GPU has {need.mib} MiB free")
    if room.most_percent < need.percent:
        return _no("GH-201", f"no GPU has {need.percent} % of its memory free")
    if room.most_compute < need.compute:
        return _no("GH-201", f"no GPU has {need.compute} % compute free")
    if room.most_offline < need.offline:
        return _no("GH-201", f"no GPU has {need.offline} % offline compute free")
    return _no("GH-201", f"{_too_few(need.gpus, 'has', 'have')} enough memory and compute free")


@functools.lru_cache(256)
def _no(code: str, words: str, final: bool = False) -> NodeRefusal:
    """Cached: one object for thousands of nodes."""
    return NodeRefusal(Problem(code, words), final=final)


def _too_few(count: int, one: str, several: str) -> str:
    return f"no GPU {one}" if count == 1 else f"fewer than {count} GPUs {several}"


def summary(refused: Iterable[NodeRefusal]) -> Problem:
    """One line for the pod, in the scheduler's form: each reason with its number of nodes."""
    counts: dict[str, int] = {}
    for one in refused:
        counts[str(one.problem)] = counts.get(str(one.problem), 0) + 1
    said = [f"{n} {text}" for text, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    total = sum(counts.values())
    return Problem(
        "GH-607", f"0 of {total} node{'s' if total != 1 else ''} have room: {'; '.join(said) or 'none known'}"
    )
