"""The scheduler's extender: which one node a pod goes to, with a reservation; and what preemption would really free.

The objects are those of k8s.io/kube-scheduler/extender/v1, whose JSON has the names of its Go fields.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from oci_hook.errors import Problem
from oci_hook.kube.choose import OWNED, Chosen, Question, Refused, choose, judge_all
from oci_hook.kube.disruption import Budgets
from oci_hook.kube.fit import Fit
from oci_hook.kube.pods import PodWords, words
from oci_hook.kube.preempt import NO_BUDGETS, USUAL, Terms, victims
from oci_hook.kube.state import ClusterState


class Names(Collection[str]):
    """Names in their order. A set is made of them when more than a few were looked for: hashing 5 000 takes 0.3 ms."""

    FEW = 3

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._asked = 0
        self._set: frozenset[str] | None = None

    def __contains__(self, name: object) -> bool:
        self._asked += 1
        if self._asked <= self.FEW:
            return name in self._names
        if self._set is None:
            self._set = frozenset(self._names)
        return name in self._set

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


NO_VICTIMS: dict[str, Any] = {"NodeNameToMetaVictims": {}}


def filter(
    args: dict[str, Any], state: ClusterState, now: float, dry_run: bool = False, pod: PodWords | None = None
) -> dict[str, Any]:
    """ExtenderArgs -> ExtenderFilterResult: one node, and the room on it is reserved.

    dry_run: for an autoscaler. Every node that has room, no reservation; full Node objects need not be known to the state.
    pod: counts instead of the one in args.
    """
    pod = pod or words(args["Pod"])
    objects, listed = nodes_of(args)
    question = Question(pod)
    if not question.asks:
        found, failed = bystander(state, pod, listed)
    elif dry_run:
        found, failed = everywhere(with_templates(state, objects or {}), question, listed)
    else:
        found, failed = reserved(state, question, listed, now)
    return result(found, failed, objects)


def nowhere(args: dict[str, Any], why: Problem) -> dict[str, Any]:
    """ExtenderFilterResult: no node, for this reason."""
    objects, listed = nodes_of(args)
    return result([], dict.fromkeys(listed, Refused(why, final=True)), objects)


def nodes_of(args: dict[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """(the nodes' objects, if the scheduler sends these; their names)"""
    listed = args.get("NodeNames")
    if listed is not None:
        if not (isinstance(listed, list) and _all_text(listed)):
            raise ValueError("NodeNames is no list of names")
        return None, listed
    objects = {node["metadata"]["name"]: node for node in (args.get("Nodes") or {}).get("items") or ()}
    return objects, list(objects)


def _all_text(names: list[Any]) -> bool:
    try:
        "".join(names)  # of 5 000 in 0.025 ms; to look at each one's type takes 0.1
    except TypeError:
        return False
    return True


def reserved(
    state: ClusterState, question: Question, listed: list[str], now: float
) -> tuple[list[str], dict[str, Refused]]:
    """The chosen node. A reservation that the pod has is dropped before, since the scheduler asks anew; a hold stays where
    there is no room yet."""
    held = state.reservations.get(question.pod.uid)
    state.release(question.pod.uid)
    among = Names(listed)
    found = choose(state, question, among)
    if not isinstance(found, Chosen):
        found = before_lesser_holds(state, question, among) or found
    if isinstance(found, Chosen):
        state.reserve(question.pod, found.node, found.fit, now)
        return [found.node], {}
    if held is not None and held.victims:
        state.restore(held)
    return [], found


def before_lesser_holds(state: ClusterState, question: Question, among: Names) -> Chosen | None:
    """Room that is held for less important pods, or reserved for them again and again in vain. They lose it on the chosen node."""
    pod = question.pod
    lesser = [
        one
        for one in state.reservations.values()
        if (one.victims and one.pod.priority < pod.priority) or one.yields_to(pod)
    ]
    if not lesser:
        return None
    for one in lesser:
        state.release(one.pod.uid)
    found = choose(state, question, among)
    for one in lesser:
        if not (isinstance(found, Chosen) and one.node == found.node):
            state.restore(one)
    return found if isinstance(found, Chosen) else None


def everywhere(state: ClusterState, question: Question, listed: Iterable[str]) -> tuple[list[str], dict[str, Refused]]:
    """Every node with room for the pod, were it asked now; nothing is reserved."""
    uid = question.pod.uid
    held = state.reservations.get(uid)
    state.release(uid)
    try:
        judged = judge_all(state, question, listed)
    finally:
        if held is not None:
            state.restore(held)
    failed = {name: found for name, found in judged.items() if isinstance(found, Refused)}
    return [name for name, found in judged.items() if isinstance(found, Fit)], failed


def bystander(state: ClusterState, pod: PodWords, listed: list[str]) -> tuple[list[str], dict[str, Refused]]:
    """A pod that asks for no GPU may go anywhere but onto nodes that other pods have for themselves."""
    taken = {
        name
        for name in listed
        if not pod.daemon and (node := state.nodes.get(name)) is not None and state.owner(node, pod.uid) is not None
    }
    return [name for name in listed if name not in taken], dict.fromkeys(taken, OWNED)


def with_templates(state: ClusterState, objects: dict[str, Any]) -> ClusterState:
    """The state; or one of these nodes alone, where it does not know them all: an autoscaler's templates."""
    if all(name in state.nodes for name in objects):
        return state
    own = ClusterState(state.placement)
    for node in objects.values():
        own.apply_node(node)
    return own


def result(found: list[str], failed: dict[str, Refused], objects: dict[str, Any] | None) -> dict[str, Any]:
    """ExtenderFilterResult. Where a node is in both maps, schedulers from 1.22 on do not try preemption there."""
    different = {id(why): why for why in failed.values()}  # thousands of nodes say the same few words
    texts = {key: in_words(why.problem) for key, why in different.items()}
    said = {name: texts[id(why)] for name, why in failed.items()}
    final = {name: said[name] for name, why in failed.items() if why.final}
    return {
        "Nodes": None if objects is None else {"items": [objects[name] for name in found]},
        "NodeNames": found if objects is None else None,
        "FailedNodes": said,
        "FailedAndUnresolvableNodes": final,
        "Error": "",
    }


def in_words(problem: Problem) -> str:
    """A reason as the scheduler may have it: Kubernetes 1.20's takes its message for a format, so that "75 % of" would come
    out as "75 %!o(MISSING)f"."""
    return str(problem).replace("%", "per cent")


def preempt(
    args: dict[str, Any],
    state: ClusterState,
    pod: PodWords | None = None,
    budgets: Budgets = NO_BUDGETS,
    terms: Terms = USUAL,
) -> dict[str, Any]:
    """ExtenderPreemptionArgs -> ExtenderPreemptionResult: the nodes where the end of some pods gives this one its GPUs; none
    while it waits for others that end already. pod: counts instead of the one in args."""
    given = proposed(args)
    question = Question(pod or words(args["Pod"]))
    if not question.asks:
        return {"NodeNameToMetaVictims": given}
    held = state.reservations.get(question.pod.uid)
    if held is not None and held.victims:
        return NO_VICTIMS
    answer = {}
    for name, one in given.items():
        found = victims(state, question, name, uids_of(one), one.get("NumPDBViolations") or 0, budgets, terms)
        if found is not None and not found.uids:
            return NO_VICTIMS
        if found is not None:
            pods = [{"UID": uid} for uid in found.uids]
            answer[name] = {"Pods": pods, "NumPDBViolations": found.violations}
    return {"NodeNameToMetaVictims": answer}


def proposed(args: dict[str, Any]) -> dict[str, Any]:
    """The scheduler's victims by node, each by its UID."""
    given = args.get("NodeNameToMetaVictims")
    if given is not None:
        return dict(given)
    return {
        name: {
            "Pods": [{"UID": p["metadata"]["uid"]} for p in one.get("Pods") or ()],
            "NumPDBViolations": one.get("NumPDBViolations", 0),
        }
        for name, one in (args.get("NodeNameToVictims") or {}).items()
    }


def uids_of(one: dict[str, Any]) -> list[str]:
    return [p["UID"] for p in one.get("Pods") or ()]


def to_hurry(args: dict[str, Any], state: ClusterState) -> list[str]:
    """The nodes where the scheduler proposes a pod that ends already and has too long for that. Its deletion would not shorten
    the time, so `preempt` leaves these nodes out; only an eviction of ours does."""
    found = []
    for name, one in proposed(args).items():
        node = state.nodes.get(name)
        pods = [] if node is None else [node.pods[uid] for uid in uids_of(one) if uid in node.pods]
        if any(pod.may_be_hurried for pod in pods):
            found.append(name)
    return found
