"""PodDisruptionBudgets, as far as they say whether one pod may be ended now (Kubernetes' API reference, policy)."""

from collections.abc import Iterable
from typing import Any

from oci_hook.core.value import Value


class Budget(Value):
    """allowed: how many of its pods may be ended now. every: it is for all pods of its namespace."""

    namespace: str
    name: str
    allowed: int
    labels: dict[str, str]
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...]
    every: bool

    def covers(self, namespace: str, labels: dict[str, str]) -> bool:
        if namespace != self.namespace:
            return False
        if not self.labels and not self.expressions:
            return self.every
        return all(labels.get(key) == value for key, value in self.labels.items()) and all(
            holds(labels, *expression) for expression in self.expressions
        )


def budget(obj: dict[str, Any], version: str = "") -> Budget:
    """Of an API object. version: its apiVersion, where the object does not say it. An empty selector selects every pod, but
    none in policy/v1beta1 (Kubernetes before 1.25). Raises KeyError, TypeError or AttributeError for what is no budget."""
    meta, status, selector = obj["metadata"], obj.get("status") or {}, (obj.get("spec") or {}).get("selector")
    current = int(status.get("observedGeneration") or 0) >= int(meta.get("generation") or 0)
    beta = (obj.get("apiVersion") or version).endswith("beta1")
    return Budget(
        meta["namespace"],
        meta["name"],
        int(status.get("disruptionsAllowed") or 0) if current else 0,  # the API server evicts none before that
        dict((selector or {}).get("matchLabels") or {}),
        tuple(
            (e["key"], e["operator"], tuple(e.get("values") or ()))
            for e in (selector or {}).get("matchExpressions") or ()
        ),
        selector is not None and not beta,
    )


def in_the_way(budgets: Iterable[Budget], namespace: str, labels: dict[str, str]) -> str:
    """The name of the budget that does not let such a pod be ended now; "" where it may be. The API server evicts no pod with
    two budgets."""
    found = [one for one in budgets if one.covers(namespace, labels)]
    return next((one.name for one in found if one.allowed < 1 or len(found) > 1), "")


def holds(labels: dict[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    """One requirement of a label selector, or of a node's affinity. An unknown operator holds for nothing."""
    said = labels.get(key)
    if operator == "In":
        return said in values
    if operator == "NotIn":
        return said not in values
    if operator in ("Exists", "DoesNotExist"):
        return (said is None) == (operator == "DoesNotExist")
    try:
        number, bound = int(said or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else operator == "Lt" and number < bound
