"""The bind webhook: adds the decision about a pod's GPUs to its Binding, or denies the Binding.

The API server writes the decision into the pod together with the node name, whichever scheduler made the Binding.
"""

from collections.abc import Callable
from typing import Any

from oci_hook.core import decision as decisions
from oci_hook.core.decision import Decision
from oci_hook.core.value import Value
from oci_hook.errors import Problem
from oci_hook.kube.formats import names
from oci_hook.kube.formats.review import add_annotations, allowed, denied
from oci_hook.kube.placing.choose import NodeRefusal, Question, judge, stays
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit
from oci_hook.kube.pod.asked import PodWords

CONFLICT = 409
Sign = Callable[[Decision, int], Decision]  # (unsigned, generation of the key that the node reports) -> signed


class UnknownPod(Value):
    """The state has no such pod without a node. The caller gets it from the API server, passes it to apply_pod, and calls `bind`
    again with last=True."""

    namespace: str
    name: str


def bind(
    review: dict[str, Any], state: ClusterState, now: float, sign: Sign, last: bool = False
) -> "dict[str, Any] | UnknownPod":
    """The answer to an AdmissionReview of a Binding. now: as in ClusterState.remove_pod."""
    request = review["request"]
    binding = request.get("object") or {}
    meta = binding.get("metadata") or {}
    namespace, name = request.get("namespace") or "", meta.get("name") or request.get("name") or ""
    target = (binding.get("target") or {}).get("name") or ""
    pod = pod_of(state, namespace, name, meta.get("uid") or "")
    if pod is None:
        if not last:
            return UnknownPod(namespace, name)
        what = f"pod {namespace}/{name} with this UID and without a node is not known"
        return denied(request, [Problem("GH-603", f"{what}; the scheduler tries again")], CONFLICT)
    question = Question(pod)
    notes = meta.get("annotations") or {}  # the API server writes them into the pod
    foreign = sorted(k for k, v in notes.items() if k.startswith(names.PREFIX_KEY) and pod.annotations.get(k) != v)
    if question.asks and names.ALLOC in foreign:
        foreign.remove(names.ALLOC)  # replaced
    if foreign:
        return denied(request, [Problem("GH-605", f"{foreign[0][:80]} is in the Binding; only gpu-hook may write it")])
    if not question.asks:
        return _bystander(request, state, pod, target)
    found = decide(state, question, target)
    if isinstance(found, NodeRefusal):
        at = f"node {target}: {found.problem.message}"
        return denied(request, [Problem(found.problem.code, at)], CONFLICT)
    signed = sign(unsigned(pod, target, found), state.nodes[target].key)
    text = decisions.text(signed)
    if len(text) > decisions.MAX_TEXT or len(found.shares) > decisions.MAX_CONTAINERS:
        what = f"the decision has {len(found.shares)} containers and {len(text)} characters"
        most = f"{decisions.MAX_CONTAINERS} and {decisions.MAX_TEXT} are allowed; have fewer containers ask"
        return denied(request, [Problem("GH-602", f"{what}; {most}")])
    if not request.get("dryRun"):
        state.reserve(pod, target, found, now, bound=True)
    return allowed(request, add_annotations(meta, {names.ALLOC: text}))


def decide(state: ClusterState, question: Question, node: str) -> Fit | NodeRefusal:
    """The pod's GPUs on this node: the reserved ones if it can still have them, else others."""
    uid = question.pod.uid
    held = state.reservations.get(uid)
    if held is not None and held.node == node and stays(state, question, node, held.fit):
        return held.fit
    with state.without(uid):
        return judge(state, question, node)


def pod_of(state: ClusterState, namespace: str, name: str, uid: str) -> PodWords | None:
    """The pod of a Binding: it has this name, no node, and this UID if the Binding has one."""
    pod = state.pending(namespace, name)
    if pod is None and uid in state.reservations:  # the filter saw it sooner than the watch
        pod = state.reservations[uid].pod
    if pod is None or (pod.namespace, pod.name) != (namespace, name) or uid not in ("", pod.uid):
        return None
    return pod


def unsigned(pod: PodWords, node: str, found: Fit) -> Decision:
    return Decision(pod.uid, node, 0, found.shares, found.terms)


def _bystander(request: dict[str, Any], state: ClusterState, pod: PodWords, target: str) -> dict[str, Any]:
    """Admits a pod without GPUs, unless another pod has the node to itself."""
    node = state.nodes.get(target)
    owner = state.owner(node, pod.uid) if node is not None and not pod.daemon else None
    if owner is not None:
        whose = f"pod {owner.namespace}/{owner.name} has node {target} to itself until it ends"
        return denied(request, [Problem("GH-609", whose)], CONFLICT)
    return allowed(request)
