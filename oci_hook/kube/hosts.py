"""Which nodes may have a pod, GPUs aside: cordons, taints, node selectors, node affinity, and what else the pod requests.

Rules about other pods (affinity among pods, spread constraints) are not judged here; `rules_about_others` finds them.
"""

from collections.abc import Iterable
from typing import Any

from oci_hook.kube.names import SUMS
from oci_hook.kube.pods import ENDED
from oci_hook.kube.quantity import milli
from oci_hook.kube.selector import holds

Amounts = dict[str, int]  # resource -> thousandths
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Hosts:
    """free: by node, what its pods leave of what it says that it has; resources that it does not say are not judged."""

    def __init__(self, nodes: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]]) -> None:
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._allowed: dict[str, frozenset[str]] = {}
        self.free: dict[str, Amounts] = {name: _allocatable(node) for name, node in self._nodes.items()}
        for pod in pods:
            at = self.free.get((pod.get("spec") or {}).get("nodeName") or "")
            if at and (pod.get("status") or {}).get("phase") not in ENDED:
                for name, amount in requests(pod).items():
                    if name in at:
                        at[name] -= amount

    def allowed(self, pod: dict[str, Any]) -> frozenset[str]:
        """The nodes that are for such a pod."""
        spec = pod.get("spec") or {}
        affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
        key = repr((spec.get("nodeSelector"), affinity, spec.get("tolerations")))
        if key not in self._allowed:
            self._allowed[key] = frozenset(
                name for name, node in self._nodes.items() if _takes(node, spec, affinity or {})
            )
        return self._allowed[key]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def rules_about_others(pod: dict[str, Any]) -> bool:
    """Whether the pod must, or must not, stand beside some other pods."""
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    among = any((affinity.get(kind) or {}).get(REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))
    spread = spec.get("topologySpreadConstraints") or ()
    return among or any(one.get("whenUnsatisfiable") in (None, "DoNotSchedule") for one in spread)


def requests(pod: dict[str, Any]) -> Amounts:
    """What the scheduler counts for the pod, but for our own sums, which the GPUs answer for."""
    spec = pod.get("spec") or {}
    total: Amounts = {"pods": 1000}
    for container in spec.get("containers") or ():
        _add(total, _requests(container))
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
        else:
            peak = {name: max(peak.get(name, 0), own.get(name, 0)) for name in {*peak, *own}}
    total |= {name: amount for name, amount in peak.items() if amount > total.get(name, 0)}
    _add(total, _amounts(spec.get("overhead")))
    return total


def _requests(container: dict[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _amounts(said: dict[str, Any] | None) -> Amounts:
    found = {}
    for name, text in (said or {}).items():
        if name not in SUMS:
            try:
                found[name] = milli(str(text))
            except ValueError:
                continue
    return found


def _allocatable(node: dict[str, Any]) -> Amounts:
    return _amounts((node.get("status") or {}).get("allocatable"))


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _takes(node: dict[str, Any], spec: dict[str, Any], affinity: dict[str, Any]) -> bool:
    labels, said = node["metadata"].get("labels") or {}, node.get("spec") or {}
    taints = [*(said.get("taints") or ()), *((UNSCHEDULABLE,) if said.get("unschedulable") else ())]
    hard = [taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute")]
    if any(not any(_tolerates(one, taint) for one in spec.get("tolerations") or ()) for taint in hard):
        return False
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = affinity.get("nodeSelectorTerms")
    return terms is None or any(_matches(term, labels, node["metadata"]["name"]) for term in terms)


def _tolerates(toleration: dict[str, Any], taint: dict[str, Any]) -> bool:
    if (toleration.get("effect") or taint["effect"]) != taint["effect"]:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    same = toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(same)


def _matches(term: dict[str, Any], labels: dict[str, str], name: str) -> bool:
    """A term without any requirement matches nothing."""
    by_label, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
    fields = {"metadata.name": name}
    return bool(by_label or by_field) and all(
        holds(known, one["key"], one["operator"], tuple(one.get("values") or ()))
        for known, wanted in ((labels, by_label), (fields, by_field))
        for one in wanted
    )
