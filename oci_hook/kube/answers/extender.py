"""The scheduler's extender: chooses one node for a pod and reserves its room; and corrects preemption's victims.

The objects are those of k8s.io/kube-scheduler/extender/v1, whose JSON has the names of its Go fields.
"""

from collections.abc import Collection, Iterator
from typing import Any

from oci_hook.errors import Problem
from oci_hook.kube.placing.choose import OWNED, Chosen, NodeRefusal, Question, choose
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import PodWords, words
from oci_hook.kube.preemption.disruption import Budgets
from oci_hook.kube.preemption.preempt import NO_BUDGETS, USUAL, PreemptionTerms, victims


class NodeNames(Collection[str]):
    """Names in their order. Only after a few look-ups it builds a set, since hashing 5 000 names takes 0.3 ms."""

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


def filter(args: dict[str, Any], state: ClusterState, now: float, pod: PodWords | None = None) -> dict[str, Any]:
    """ExtenderArgs -> ExtenderFilterResult: one node, with a reservation. pod: replaces the one in args."""
    pod = pod or words(args["Pod"])
    objects, listed = nodes_of(args)
    question = Question(pod)
    if not question.asks:
        found, failed = bystander(state, pod, listed)
    else:
        found, failed = reserved(state, question, listed, now)
    return result(found, failed, objects)


def nowhere(args: dict[str, Any], why: Problem) -> dict[str, Any]:
    """ExtenderFilterResult: no node, for this reason."""
    objects, listed = nodes_of(args)
    return result([], dict.fromkeys(listed, NodeRefusal(why, final=True)), objects)


def nodes_of(args: dict[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """(the nodes' objects if the scheduler sent them, their names)"""
    listed = args.get("NodeNames")
    if listed is not None:
        if not (isinstance(listed, list) and _all_text(listed)):
            raise ValueError("NodeNames is no list of names")
        return None, listed
    objects = {node["metadata"]["name"]: node for node in (args.get("Nodes") or {}).get("items") or ()}
    return objects, list(objects)


def _all_text(names: list[Any]) -> bool:
    try:
        "".join(names)  # 0.025 ms for 5 000 names; checking each type takes 0.1
    except TypeError:
        return False
    return True


def reserved(
    state: ClusterState, question: Question, listed: list[str], now: float
) -> tuple[list[str], dict[str, NodeRefusal]]:
    """The chosen node, now reserved. The pod's earlier reservation does not count, since the scheduler asks again. A hold stays if
    there is no room yet."""
    uid, among = question.pod.uid, NodeNames(listed)
    with state.without(uid):
        found = choose(state, question, among)
        if not isinstance(found, Chosen):
            found = before_lesser_holds(state, question, among) or found
    if isinstance(found, Chosen):
        state.reserve(question.pod, found.node, found.fit, now)
        return [found.node], {}
    if uid in state.reservations and not state.reservations[uid].victims:
        state.release(uid)
    return [], found


def before_lesser_holds(state: ClusterState, question: Question, among: NodeNames) -> Chosen | None:
    """Chooses as if less important pods had no holds, nor reservations that repeatedly led to no Binding. They lose these on the
    chosen node."""
    pod = question.pod
    lesser = [
        one
        for one in state.reservations.values()
        if (one.victims and one.pod.priority < pod.priority) or one.yields_to(pod)
    ]
    if not lesser:
        return None
    with state.without(*(one.pod.uid for one in lesser)):
        found = choose(state, question, among)
    if not isinstance(found, Chosen):
        return None
    for one in lesser:
        if one.node == found.node:
            state.release(one.pod.uid)
    return found


def bystander(state: ClusterState, pod: PodWords, listed: list[str]) -> tuple[list[str], dict[str, NodeRefusal]]:
    """For a pod without GPUs: all nodes but those that other pods have to themselves."""
    taken = {
        name
        for name in listed
        if not pod.daemon and (node := state.nodes.get(name)) is not None and state.owner(node, pod.uid) is not None
    }
    return [name for name in listed if name not in taken], dict.fromkeys(taken, OWNED)


def result(found: list[str], failed: dict[str, NodeRefusal], objects: dict[str, Any] | None) -> dict[str, Any]:
    """ExtenderFilterResult. Schedulers from 1.22 on try no preemption on a node that is in both maps."""
    different = {id(why): why for why in failed.values()}  # thousands of nodes share a few reasons
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
    """The reason without per cent signs: Kubernetes 1.20's scheduler uses it as a format, and would print "75 % of" as
    "75 %!o(MISSING)f"."""
    return str(problem).replace("%", "per cent")


def preempt(
    args: dict[str, Any],
    state: ClusterState,
    pod: PodWords | None = None,
    budgets: Budgets = NO_BUDGETS,
    terms: PreemptionTerms = USUAL,
) -> dict[str, Any]:
    """ExtenderPreemptionArgs -> ExtenderPreemptionResult: the nodes on which victims give the pod its GPUs; none while it waits for
    terminating pods. pod: replaces the one in args."""
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
    """Node -> UIDs of the scheduler's victims."""
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
    """The nodes where the scheduler proposes a pod that terminates with too long a grace period. The scheduler's deletion does not
    shorten it, so `preempt` leaves these nodes out; our eviction does."""
    found = []
    for name, one in proposed(args).items():
        node = state.nodes.get(name)
        pods = [] if node is None else [node.pods[uid] for uid in uids_of(one) if uid in node.pods]
        if any(pod.may_be_hurried for pod in pods):
            found.append(name)
    return found
