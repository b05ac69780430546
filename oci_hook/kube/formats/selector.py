"""Label selectors, as Kubernetes reads them (its documentation, "Labels and Selectors")."""

import re
from collections.abc import Mapping

INTEGER = re.compile("[+-]?[0-9]{1,63}")


def holds(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    """True if labels satisfy one requirement of a label selector or node affinity. None satisfy an unknown operator."""
    said = labels.get(key)
    if operator == "In":
        return said in values
    if operator == "NotIn":
        return said not in values
    if operator in ("Exists", "DoesNotExist"):
        return (said is None) == (operator == "DoesNotExist")
    number, bound = _number(said), _number(values[0] if values else None)
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else operator == "Lt" and number < bound


def _number(text: str | None) -> int | None:
    """A 64-bit integer as Go's strconv.ParseInt reads it; None for anything else."""
    number = int(text) if text and INTEGER.fullmatch(text) else None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None
