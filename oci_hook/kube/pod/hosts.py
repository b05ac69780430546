"""The nodes that may have a pod, GPUs aside: cordons, taints, node selectors, node affinity, and the pod's other requests.

All callers judge by these rules, those of kube-scheduler's filters NodeUnschedulable, TaintToleration, NodeAffinity, NodeName and
NodeResourcesFit.
Rules about other pods (affinity among pods, spread constraints) are not judged here; `rules_about_others` finds them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

from oci_hook.kube.formats.names import SUMS
from oci_hook.kube.formats.selector import holds
from oci_hook.kube.formats.sums import Amounts as Amounts
from oci_hook.kube.formats.sums import amounts, of_object
from oci_hook.kube.pod.asked import ENDED

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
KEEPS_OFF = ("NoSchedule", "NoExecute")
KEPT_OFF = "a cordon, a taint, or the pod's node selector or affinity keeps it off the node"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
# Of names with a slash, those that are no extended resources (Kubernetes 1.36, component-helpers: IsExtendedResourceName).
NATIVE = "kubernetes.io/"
HUGE = "hugepages-"


class Hosts:
    """free: by node, its allocatable resources less its pods' requests. by_class: the extended resources that DeviceClasses give
    (KEP 5004), asked for once, and only if a pod requests what a node does not list."""

    def __init__(
        self,
        nodes: Iterable[dict[str, Any]],
        pods: Iterable[dict[str, Any]],
        by_class: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._read_classes = by_class
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._allowed: dict[str, frozenset[str]] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self.free: dict[str, Amounts] = {name: _allocatable(node) for name, node in self._nodes.items()}
        for pod in pods:
            node = (pod.get("spec") or {}).get("nodeName")
            if node in self.free and (pod.get("status") or {}).get("phase") not in ENDED:
                self._pods[pod["metadata"]["uid"]] = pod
                self.take(node, requests(pod))

    @cached_property
    def _by_class(self) -> frozenset[str]:
        return self._read_classes()

    def _lacks(self, pod: dict[str, Any], name: str) -> str:
        """A resource of the pod's that only a node with another device plugin has; "" for none."""
        lacking = unlisted(self._nodes[name], pod)
        return next((resource for resource in lacking if resource not in self._by_class), "") if lacking else ""

    def take(self, name: str, needs: Amounts, times: int = 1) -> None:
        """times: -1 gives them back."""
        at = self.free[name]
        at.update({resource: at[resource] - times * amount for resource, amount in needs.items() if resource in at})

    def keeps_off(self, pod: dict[str, Any], name: str, gone: Iterable[str] = ()) -> str:
        """The reason why the pod may not be on the node, "" if it may. gone: UIDs of pods to count as ended."""
        if name not in self.allowed(pod):
            lacking = self._lacks(pod, name)
            return f"the node has no {lacking}" if lacking and lets_in(self._nodes[name], pod) else KEPT_OFF
        free = self.free[name]
        short = {resource: amount - free[resource] for resource, amount in requests(pod).items() if resource in free}
        for uid in gone:
            for resource, amount in requests(self._pods[uid]).items() if uid in self._pods else ():
                short[resource] = short.get(resource, 0) - amount
        return next((f"the node has too little {resource} left" for resource, more in short.items() if more > 0), "")

    def shut(self, pod: dict[str, Any]) -> dict[str, str]:
        """The nodes that may not have the pod, and why."""
        return {name: why for name in self._nodes if (why := self.keeps_off(pod, name))}

    def allowed(self, pod: dict[str, Any]) -> frozenset[str]:
        """The nodes that let in such a pod, whatever their other pods request."""
        spec = pod.get("spec") or {}
        affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
        plugins = sorted(name for name, amount in requests(pod).items() if amount and is_listed(name))
        key = repr((spec.get("nodeSelector"), affinity, spec.get("tolerations"), spec.get("nodeName"), plugins))
        if key not in self._allowed:
            self._allowed[key] = frozenset(
                name for name, node in self._nodes.items() if lets_in(node, pod) and not self._lacks(pod, name)
            )
        return self._allowed[key]


def rules_about_others(pod: dict[str, Any]) -> bool:
    """True if the pod has required rules about other pods: affinity, anti-affinity or spread constraints."""
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    among = any((affinity.get(kind) or {}).get(REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))
    spread = spec.get("topologySpreadConstraints") or ()
    return among or any(one.get("whenUnsatisfiable") in (None, "DoNotSchedule") for one in spread)


def requests(pod: dict[str, Any]) -> Amounts:
    """The pod's requests as the scheduler counts them, without our sums, since `allocate` judges GPUs."""
    return {"pods": 1000, **{name: amount for name, amount in of_object(pod).items() if name not in SUMS}}


def is_listed(resource: str) -> bool:
    """True for a resource of which a node has none if it does not list it: extended ones and huge pages."""
    return resource.startswith(HUGE) or ("/" in resource and NATIVE not in resource)


def unlisted(node: Mapping[str, Any], pod: dict[str, Any]) -> list[str]:
    """The extended resources that the pod requests and the node does not list, or not one of. Nothing is said of a node that lists
    nothing at all."""
    has = amounts((node.get("status") or {}).get("allocatable"))
    return [name for name, amount in requests(pod).items() if has and amount and is_listed(name) and not has.get(name)]


def lets_in(node: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """True if the node's name, labels, taints and cordon let in the pod. Both are API objects."""
    name, labels = node["metadata"].get("name") or "", node["metadata"].get("labels") or {}
    said, spec = node.get("spec") or {}, pod.get("spec") or {}
    if spec.get("nodeName") not in (None, "", name):
        return False
    taints = [*(said.get("taints") or ()), *((UNSCHEDULABLE,) if said.get("unschedulable") else ())]
    hard = [taint for taint in taints if taint.get("effect") in KEEPS_OFF]
    if not tolerated(hard, spec.get("tolerations") or ()):
        return False
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return affinity is None or any(_matches(term, labels, name) for term in affinity.get("nodeSelectorTerms") or ())


def tolerated(taints: Iterable[Mapping[str, Any]], tolerations: Collection[Mapping[str, Any]]) -> bool:
    """True if none of the taints keeps off. tolerations: of a pod, or of a claim's request."""
    return all(any(_tolerates(one, taint) for one in tolerations) for taint in taints)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """An empty effect or key matches any. Lt and Gt: since Kubernetes 1.35."""
    key, value = taint.get("key"), taint.get("value") or ""
    if (toleration.get("effect") or taint["effect"]) != taint["effect"] or (toleration.get("key") or key) != key:
        return False
    operator, own = toleration.get("operator") or "Equal", toleration.get("value") or ""
    if operator in ("Lt", "Gt"):
        return holds({"value": value}, "value", operator, (own,))
    return bool(operator == "Exists" or (operator == "Equal" and value == own))


def _matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """A term without requirements matches nothing."""
    by_label, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    fields = {"metadata.name": name}
    return bool(by_label or by_field) and all(
        holds(known, one["key"], one["operator"], tuple(one.get("values") or ()))
        for known, wanted in ((labels, by_label), (fields, by_field))
        for one in wanted
    )


def _allocatable(node: dict[str, Any]) -> Amounts:
    said = amounts((node.get("status") or {}).get("allocatable"))
    return {name: amount for name, amount in said.items() if name not in SUMS and (amount or not is_listed(name))}
