"""PodDisruptionBudgets: the number of pods that may be disrupted now, counted as the eviction API does.

Kubernetes 1.20 has policy/v1beta1, 1.21 and newer policy/v1; 1.25 dropped v1beta1. An empty selector matches every pod of the
namespace in v1 and none in v1beta1; without a selector a budget matches none.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from oci_hook.core.value import Value
from oci_hook.kube.formats.selector import holds
from oci_hook.kube.placing.records import PodRecord

BETA = "policy/v1beta1"


class Expression(Value):
    """One of matchExpressions; an entry of matchLabels is In with one value."""

    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        return holds(labels, self.key, self.operator, self.values)


class Budget(Value):
    """selector: None matches no pod. allowed: the number of pods that may be disrupted now. disrupted: names of evicted pods that
    `allowed` already takes into account."""

    uid: str
    namespace: str
    name: str
    selector: tuple[Expression, ...] | None
    allowed: int
    disrupted: frozenset[str]

    @property
    def words(self) -> int:
        """The cost of a comparison."""
        return 1 + sum(1 + len(expression.values) for expression in self.selector or ())

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.selector is None or namespace != self.namespace:
            return False
        return all(expression.holds(labels) for expression in self.selector)


def budget(obj: Mapping[str, Any], version: str = "") -> Budget:
    """Reads an API object. version: its apiVersion if the object lacks it, as in a list. Raises KeyError, TypeError, ValueError or
    AttributeError for an invalid one."""
    meta, status = obj["metadata"], obj.get("status") or {}
    beta = (obj.get("apiVersion") or version) == BETA
    said = (obj.get("spec") or {}).get("selector")
    selector = None if said is None else _expressions(said)
    if beta and not selector:
        selector = None
    allowed = int(status.get("disruptionsAllowed") or 0)
    if int(status.get("observedGeneration") or 0) < int(meta.get("generation") or 0):
        allowed = 0  # the API server refuses evictions until the status matches the newest spec
    return Budget(
        meta.get("uid") or "",
        meta["namespace"],
        meta["name"],
        selector,
        allowed,
        frozenset(status.get("disruptedPods") or ()),
    )


def _expressions(said: Mapping[str, Any]) -> tuple[Expression, ...]:
    found = [Expression(key, "In", (value,)) for key, value in (said.get("matchLabels") or {}).items()]
    for one in said.get("matchExpressions") or ():
        found.append(Expression(one["key"], one["operator"], tuple(one.get("values") or ())))
    return tuple(found)


def in_the_way(budgets: Iterable[Budget], namespace: str, labels: Mapping[str, str]) -> str:
    """The name of a budget that forbids the eviction of such a pod now; "" for none. The API server evicts no pod with two
    budgets."""
    found = [one for one in budgets if one.covers(namespace, labels)]
    return next((one.name for one in found if one.allowed < 1 or len(found) > 1), "")


# Bound of all budgets of a namespace. Beyond it, comparing takes too long, so all pods of the namespace count as protected.
MOST_WORDS = 1000
MOST_LABELS = 1024  # different sets of a namespace to remember
TOO_MANY = Budget("", "", "", (), 0, frozenset())


class Budgets:
    """The cluster's budgets, by namespace. known: all were read, so a pod without one here has none."""

    def __init__(self, budgets: Iterable[Budget] = (), known: bool = True) -> None:
        self.known = known
        self._of: dict[str, dict[str, Budget]] = {}
        self._words: dict[str, int] = {}
        self._over: dict[str, dict[tuple[tuple[str, str], ...], tuple[Budget, ...]]] = {}
        for one in budgets:
            self.put(one)

    def put(self, one: Budget) -> None:
        self._leave(one.namespace, one.uid)
        self._of.setdefault(one.namespace, {})[one.uid] = one
        self._words[one.namespace] = self._words.get(one.namespace, 0) + one.words

    def drop(self, uid: str) -> None:
        for namespace in [name for name, budgets in self._of.items() if uid in budgets]:
            self._leave(namespace, uid)

    def _leave(self, namespace: str, uid: str) -> None:
        self._over.pop(namespace, None)
        before = self._of.get(namespace, {}).pop(uid, None)
        if before is not None:
            self._words[namespace] -= before.words

    def over(self, pod: PodRecord) -> tuple[Budget, ...]:
        """The budgets that protect the pod."""
        budgets = self._of.get(pod.namespace)
        if not budgets:
            return ()
        if self._words[pod.namespace] > MOST_WORDS:
            return (TOO_MANY,)
        known = self._over.setdefault(pod.namespace, {})
        found = known.get(pod.labels)
        if found is None:
            if len(known) >= MOST_LABELS:
                known.clear()
            labels = dict(pod.labels)
            found = known[pod.labels] = tuple(one for one in budgets.values() if one.covers(pod.namespace, labels))
        return found


class Allowance:
    """The budgets' remaining allowance while victims are chosen for one pod."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._left: dict[str, int] = {}

    def take(self, pod: PodRecord) -> bool:
        """True if this pod may be disrupted too. It counts against its budgets even if not."""
        over = [one for one in self._budgets.over(pod) if pod.name not in one.disrupted]
        may = len(over) < 2  # the eviction API refuses a pod of two budgets
        for one in over:
            left = self._left.get(one.uid, one.allowed) - 1
            self._left[one.uid] = left
            may &= left >= 0
        return may


def violations(budgets: Budgets, pods: Iterable[PodRecord]) -> int:
    """The number of these pods that a budget forbids, if they are evicted in turn."""
    allowance = Allowance(budgets)
    return sum(not allowance.take(pod) for pod in pods)
