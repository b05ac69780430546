"""Label selectors, as Kubernetes reads them (its documentation, "Labels and Selectors")."""

from collections.abc import Mapping


def holds(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
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
