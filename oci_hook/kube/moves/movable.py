"""The pods that may be deleted since their owner recreates them, and the reasons why others may not."""

from collections.abc import Iterable
from typing import Any

from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.records import PodRecord
from oci_hook.kube.pod.hosts import Amounts, Hosts, requests, rules_about_others
from oci_hook.kube.pod.peaks import Row
from oci_hook.kube.preemption.disruption import Budget, in_the_way
from oci_hook.kube.preemption.in_tree import plain


class Mover:
    """A pod that may be moved. obj: its API object."""

    __slots__ = ("uid", "namespace", "name", "node", "rows", "obj", "_hosts")

    def __init__(self, pod: PodRecord, obj: dict[str, Any], hosts: Hosts) -> None:
        self.uid, self.namespace, self.name = pod.uid, pod.namespace, pod.name
        self.node: str = pod.node
        self.rows: tuple[Row, ...] = pod.rows
        self.obj = obj
        self._hosts = hosts

    # Computed on demand: few pods of many need these.

    @property
    def owner(self) -> str:
        return owner_of(self.obj)

    @property
    def needs(self) -> Amounts:
        """Its requests besides GPUs."""
        return requests(self.obj)

    @property
    def allowed(self) -> frozenset[str]:
        """The nodes that let in its successor."""
        return self._hosts.allowed({"spec": {**self.obj["spec"], "nodeName": ""}})


def movers(
    state: ClusterState, pods: Iterable[dict[str, Any]], hosts: Hosts, budgets: Iterable[Budget]
) -> tuple[dict[str, Mover], dict[str, int]]:
    """(movable pods on GPUs, by UID; reason -> number of the others)"""
    found: dict[str, Mover] = {}
    fixed: dict[str, int] = {}
    known = tuple(budgets)
    for obj in pods:
        pod = state.pods.get(obj["metadata"]["uid"])
        if pod is None or not pod.rows or not pod.node:
            continue
        if why := why_fixed(pod, obj, known):
            fixed[why] = fixed.get(why, 0) + 1
        else:
            found[pod.uid] = Mover(pod, obj, hosts)
    return found, fixed


def why_fixed(pod: PodRecord, obj: dict[str, Any], budgets: Iterable[Budget]) -> str:
    """The reason why the pod must stay; "" if it may be moved."""
    if pod.ended or pod.deleting:
        return "terminating or ended"
    if pod.daemon:
        return "of a DaemonSet or a static manifest"
    if not owner_of(obj):
        return "without an owner that recreates it"
    if pod.unproven is not None:
        return "with a decision that cannot be verified"
    if pod.whole_node:
        return "with a node of its own"
    if any(row.whole or row.alone for row in pod.rows):
        return "with whole GPUs"
    if rules_about_others(obj):
        return "with required rules about other pods"
    if not plain(obj["spec"]):
        return "with ResourceClaims, host ports, or volumes that may be bound to nodes"
    if in_the_way(budgets, pod.namespace, obj["metadata"].get("labels") or {}):
        return "protected by a PodDisruptionBudget"
    return ""


def owner_of(obj: dict[str, Any]) -> str:
    """KIND/NAME of the controller that recreates the pod; "" for none."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") not in ("DaemonSet", "Node"):
            return f"{owner.get('kind')}/{owner.get('name')}"
    return ""
