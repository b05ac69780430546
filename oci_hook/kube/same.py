"""Checks after a text edit that the manifest is unchanged except for the parts that the edit was meant to change."""

import copy
from collections.abc import Collection
from typing import Any

import yaml


def same_elsewhere(old: str, new: str, keys: Collection[str]) -> bool:
    """Whether both are equal as data and in order, without annotations, runtimeClassName and the resources `keys`."""
    try:
        before, after = (list(yaml.safe_load_all(text)) for text in (old, new))
    except (yaml.YAMLError, RecursionError):
        return False
    # deepcopy keeps aliases shared, and strip visits each object once: nested aliases cannot make this grow.
    stripped = [strip(copy.deepcopy(documents), frozenset(keys), set()) for documents in (before, after)]
    return equal(stripped[0], stripped[1], set())


def strip(value: Any, keys: frozenset[str], seen: set[int]) -> Any:
    """Remove the edited parts from the data, in place; returns the data."""
    if id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, list):
        for item in value:
            strip(item, keys, seen)
    elif isinstance(value, dict):
        for item in value.values():
            strip(item, keys, seen)
        value.pop("runtimeClassName", None)
        value.pop("annotations", None)
        for section in ("limits", "requests", "resources", "metadata"):
            part = value.get(section)
            if isinstance(part, dict):
                for key in [key for key in part if key in keys]:
                    del part[key]
            if not part:
                value.pop(section, None)
    return value


def equal(one: Any, two: Any, seen: set[tuple[int, int]]) -> bool:
    """seen: pairs of objects that are compared already; data with aliases may refer to itself."""
    if (id(one), id(two)) in seen:
        return True
    if type(one) is not type(two):
        return False
    seen.add((id(one), id(two)))
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key], seen) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(equal(a, b, seen) for a, b in zip(one, two, strict=True))
    return bool(one == two) or repr(one) == repr(two)
