"""Chooses a node, and GPUs on it, for a pod: a first look at all nodes, then `allocate` on the best until one has room."""

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
from oci_hook.kube import calm
from oci_hook.kube.cut import BINPACK, KEYS, SPREAD_SHARES, SPREAD_WHOLE
from oci_hook.kube.fit import Fit, NoFit, fit, pinned
from oci_hook.kube.names import NODE_PLACEMENT
from oci_hook.kube.pods import Asked, PodWords, asked
from oci_hook.kube.records import Node
from oci_hook.kube.room import Need, Room, fits_each, may_fit, need_of
from oci_hook.kube.state import ClusterState

PLAIN = Rules()
BELOW_CONTEXT = "less memory than a program's context takes"
MOST_WORK = 5_000  # for one answer, of what work_of counts: some 0.1 ms each
MOST_COMPARED = 500  # of the same, for all nodes that are equal to the first choice
SMALL = 16  # GPUs: a node that has more costs one container something, too
KEPT_WORDS = 4096  # characters of a pod's words that may be remembered with what they mean
OPENING = 8  # nodes that are tried for room on GPUs in use, before a free GPU is taken


class Chosen(Value):
    node: str
    fit: Fit


class Refused(Value):
    """why: of one node, in few words that are the same for many nodes. final: whether the node could not have the pod even
    without any container on it."""

    problem: Problem
    notes: tuple[tuple[str, str], ...] = ()
    final: bool = False


TOO_MUCH = Refused(Problem("GH-607", "not looked at this time: the pod takes long to place; have fewer containers ask"))
OWNED = Refused(Problem("GH-609", "the node is another pod's own"))


class Question:
    """What a pod asks for, under the rules of each node that is looked at."""

    def __init__(self, pod: PodWords) -> None:
        self.pod = pod
        words = tuple(pod.annotations.items())
        size = sum(len(key) + len(value) for key, value in words) + 64 * len(pod.containers)
        self._words = words if size <= KEPT_WORDS else None
        self.work = 0  # how much was placed so far; see MOST_WORK
        self._under: dict[Rules, tuple[Asked, Need] | Problem] = {}
        self._last: tuple[Rules, tuple[Asked, Need] | Problem] | None = None
        self._kinds: tuple[object, tuple[set[bool], tuple[str, ...]]] | None = None

    def under(self, rules: Rules) -> "tuple[Asked, Need] | Problem":
        if self._last is not None and self._last[0] is rules:  # most nodes have the same; comparing them takes longer
            return self._last[1]
        found = self._under.get(rules)
        if found is None:
            words, containers = self._words, self.pod.containers
            found = _under(self.pod, rules) if words is None else _understood(words, containers, rules)
            self._under[rules] = found
        self._last = rules, found
        return found

    def kinds(self, found: "tuple[Asked, Need]") -> "tuple[set[bool], tuple[str, ...]]":
        """Whether it asks for whole GPUs, and whether for shares; and what a node must have in its inventory for the GPUs that
        are named. Once for all nodes: a pod may name two thousand. found: what `under` says."""
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
        """Whether the pod gets a decision. One that cannot be understood asks, and is refused on every node."""
        found = self.under(PLAIN)
        return isinstance(found, Problem) or bool(found[0])

    def need(self, rules: Rules) -> Need | None:
        found = self.under(rules)
        return None if isinstance(found, Problem) else found[1]

    @functools.cached_property
    def named(self) -> bool:
        """Whether it asks for some GPU by its name."""
        found = self.under(PLAIN)
        requests = () if isinstance(found, Problem) else found[0]
        return any(wish.device for _, _, request in requests for wish in request.gpus)

    @property
    def least_mib(self) -> int:
        """No node's rules make it less than this memory of one GPU; 0 for none that is known."""
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
    words: tuple[tuple[str, str], ...], containers: tuple[tuple[str, str], ...], rules: Rules
) -> "tuple[Asked, Need] | Problem":
    """A pod is asked about by the filter and again at its Binding, and its owner's other pods say the same."""
    return _under(PodWords("", "", "", containers, dict(words), False, 0), rules)


def _under(pod: PodWords, rules: Rules) -> "tuple[Asked, Need] | Problem":
    try:
        requests = asked(pod, rules)
        return requests, need_of(requests, rules)
    except RequestError as e:
        return e.problems[0]


def choose(
    state: ClusterState, question: Question, among: Collection[str] | None = None
) -> "Chosen | dict[str, Refused]":
    """The best node among these (None: all) that has room; else why not, for each of them."""
    state.refresh()
    tried: dict[str, Refused] = {}
    known: dict[
        object, Refused
    ] = {}  # (rules, what is on the GPUs) -> why there is no room, also on the next such node
    order = order_for(state, question)
    if order == BINPACK and not whole_gpus(question):
        opening = 0
        rest = state.cut.in_use(among, question.need, question.least_mib)
        for name, room in rest:
            found = _try(state, question, name, room, tried, known)
            if isinstance(found, Fit):
                if not opens(found, state, name, room):
                    return _of_equals(state, question, "", Chosen(name, found), rest, tried, known)
                opening += 1
                if opening == OPENING:
                    break
    walk = state.cut.walk(order, among, question.need)
    for name, room in walk:
        found = _try(state, question, name, room, tried, known)
        if isinstance(found, Fit):
            return _of_equals(state, question, order, Chosen(name, found), walk, tried, known)
    names = state.nodes if among is None else among
    return {name: tried[name] if name in tried else _no_look(state, question, name) for name in names}


def _of_equals(
    state: ClusterState,
    question: Question,
    order: str,
    first: Chosen,
    rest: Iterable[tuple[str, Room]],
    tried: dict[str, Refused],
    known: dict[object, Refused],
) -> Chosen:
    """The first choice, which is the answer but for ClusterState.interference: then the calmest of those that the order puts level
    with it. order: of the rest; "" where it is by the GPUs in use."""
    if not state.interference:
        return first
    options = [first]
    level = _level(state, order, first)
    spent = 0
    for name, room in rest:
        if len(options) == calm.MOST or (order and KEYS[order](room) != level):
            break
        spent += cost_of(question.asked(room.rules), len(room.spots))
        if spent > MOST_COMPARED:
            break
        found = _try(state, question, name, room, tried, known)
        if isinstance(found, Fit):
            if not order and (opens(found, state, name, room) or _level(state, order, Chosen(name, found)) != level):
                break
            options.append(Chosen(name, found))
    asked = [(one.node, one.fit, question.asked(state.nodes[one.node].rules)) for one in options]
    return Chosen(*calm.calmest(state, question.pod.uid, asked))


def _level(state: ClusterState, order: str, chosen: Chosen) -> object:
    """What is equal for choices that the order puts level."""
    room = state.cut.rooms[chosen.node]
    if order:
        return KEYS[order](room)
    taken = {row.uuid for row in chosen.fit.rows}
    gpus = state.inventory(state.nodes[chosen.node]).gpus
    return sorted((s.free_mib, s.free_compute) for gpu, s in zip(gpus, room.spots, strict=True) if gpu.uuid in taken)


def judge(state: ClusterState, question: Question, name: str) -> Fit | Refused:
    """Whether this node has room: what `choose` would say of it alone."""
    return judge_all(state, question, (name,))[name]


def judge_all(state: ClusterState, question: Question, names: Iterable[str]) -> dict[str, Fit | Refused]:
    """The same of each of these nodes. The work for all of them together is bounded as `choose`'s is."""
    state.refresh()
    tried: dict[str, Refused] = {}
    known: dict[object, Refused] = {}
    return {name: _judged(state, question, name, tried, known) for name in names}


def _judged(
    state: ClusterState, question: Question, name: str, tried: dict[str, Refused], known: dict[object, Refused]
) -> Fit | Refused:
    room = state.cut.rooms.get(name)
    need = question.need(room.rules) if room is not None else None
    if room is None or need is None or not may_fit(room, need):
        return _no_look(state, question, name)
    return _try(state, question, name, room, tried, known)


def stays(state: ClusterState, question: Question, name: str, found: Fit) -> bool:
    """Whether this choice can still be the pod's, beside all that is on the node now."""
    node = state.nodes.get(name)
    if node is None or not (node.present and node.text) or node.problem or forbidden(state, question, node):
        return False
    requests = pinned(question.asked(node.rules), found.shares)
    if requests is None:
        return False
    beside = state.grants(node, without=question.pod.uid)
    same = fit(requests, state.inventory(node), beside, node.rules)
    return isinstance(same, Fit) and (same.shares, same.terms) == (found.shares, found.terms)


def forbidden(state: ClusterState, question: Question, node: Node) -> Refused | None:
    """Why the pod may not be on the node, whatever room that has."""
    pod = question.pod
    if state.owner(node, pod.uid) is not None:
        return OWNED
    if pod.whole_node and state.others(node, pod.uid):
        return Refused(Problem("GH-609", "the pod needs a node of its own, and the node has other pods"))
    return unsuited(question, node)


def unsuited(question: Question, node: Node) -> Refused | None:
    """Why the node is not for such a pod, whatever is on it."""
    found = question.under(node.rules)
    if isinstance(found, Problem):
        return Refused(found, final=True)
    if not node.mode and not question.named:
        return None
    kinds, names = question.kinds(found)
    for whole in kinds:
        if node.mode == ("shared" if whole else "whole"):
            takes = "shares" if whole else "whole GPUs"
            return Refused(Problem("GH-607", f"the node takes {takes} only, by its label"), final=True)
    if not all(name in node.text for name in names):
        return Refused(Problem("GH-202", "the node does not have the GPU that is named"), final=True)
    return None


def opens(found: Fit, state: ClusterState, name: str, room: Room) -> bool:
    """Whether the choice takes a GPU that nobody is on."""
    gpus = state.inventory(state.nodes[name]).gpus
    free = {gpu.uuid for gpu, spot in zip(gpus, room.spots, strict=True) if not spot.containers}
    return any(row.uuid in free for row in found.rows)


def order_for(state: ClusterState, question: Question) -> str:
    """The order of the nodes, by the pod's wish, or the cluster's setting."""
    said = question.pod.annotations.get(NODE_PLACEMENT, state.placement)
    found = question.under(PLAIN)
    requests = () if isinstance(found, Problem) else found[0]
    classes = {request.terms.priority_class for _, _, request in requests}
    if order_of(said, ONLINE if ONLINE in classes else "default") == "binpack":
        return BINPACK
    return SPREAD_WHOLE if whole_gpus(question) else SPREAD_SHARES


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
    tried: dict[str, Refused],
    known: dict[object, Refused],
) -> Fit | Refused:
    """Asks `allocate`, where nothing says before that it will refuse."""
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
    """Whether it asks for something that a node has or has not, whatever is free on its GPUs."""
    return bool(request.required or request.terms.imex_channels or any(wish.device for wish in request.gpus))


def work_of(requests: Asked, gpus: int) -> int:
    """How long `fit` takes on a node with so many GPUs. 0 for one container on a usual node: the first look answers it nearly
    always."""
    return cost_of(requests, gpus) if len(requests) > 1 or gpus > SMALL else 0


def cost_of(requests: Asked, gpus: int) -> int:
    """`allocate` looks at each GPU for each wish; for several wishes of one container, also at each pair of GPUs and at some sets."""
    total = 0
    for _, _, request in requests:
        wishes = min(gpus, MAX_GPUS) if request.every_gpu else len(request.gpus)
        total += -(-wishes * max(gpus, 8) // 8)
        if wishes > 1:
            total += gpus * gpus // 400 + min(50, comb(gpus, wishes) // 256)
    return total


def _refused(found: NoFit) -> Refused:
    first = found.problems[0]
    words = {
        "GH-202": "the node does not have the GPU or the IMEX channels that are asked for",
        "GH-203": "the node has fewer GPUs than asked for",
        "GH-204": "no GPU with room can have the driver's limit",
    }.get(first.code, "no GPU has room for all that the containers ask for")
    if TOO_SMALL in first.message:
        words = BELOW_CONTEXT
    if first.code == "GH-602":
        return Refused(first, found.notes, final=True)
    return Refused(Problem(first.code, words), found.notes)


def _no_look(state: ClusterState, question: Question, name: str) -> Refused:
    """Why the node's largest figures already rule it out."""
    room, node = state.cut.rooms.get(name), state.nodes.get(name)
    if node is None or room is None:
        why = (node.problem if node is not None else "") or "does not say which GPUs it has"
        return Refused(Problem("GH-606", f"the node {why}"), final=True)
    # Looking through the pods of thousands of nodes takes long; a node that some pod has for itself has no memory free.
    look = not room.most_mib or node.mode or question.named or question.pod.whole_node
    return (forbidden(state, question, node) if look else None) or _words(room, question)


def _words(room: Room, question: Question) -> Refused:
    """What is missing, in words that are the same for many nodes. final: an empty node would not do either."""
    found = question.under(room.rules)
    if isinstance(found, Problem):
        return Refused(found, final=True)
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
    return _no("GH-201", f"{_too_few(need.gpus, 'has', 'have')} enough memory and compute free")


@functools.lru_cache(256)
def _no(code: str, words: str, final: bool = False) -> Refused:
    """The same object for each of thousands of nodes."""
    return Refused(Problem(code, words), final=final)


def _too_few(count: int, one: str, several: str) -> str:
    return f"no GPU {one}" if count == 1 else f"fewer than {count} GPUs {several}"


def summary(refused: Iterable[Refused]) -> Problem:
    """One line for the pod: how many nodes say what, as the scheduler has it."""
    counts: dict[str, int] = {}
    for one in refused:
        counts[str(one.problem)] = counts.get(str(one.problem), 0) + 1
    said = [f"{n} {text}" for text, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    total = sum(counts.values())
    return Problem(
        "GH-607", f"0 of {total} node{'s' if total != 1 else ''} have room: {'; '.join(said) or 'none known'}"
    )
