"""Rewrites ResourceQuotas and LimitRanges: the create webhook takes other systems' resources out of pods, so such a quota counts nothing
then, and such a maximum refuses every pod. A pod's sums (kube/formats/sums.py) stand in their place.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from oci_hook.core.value_parsers import ZERO
from oci_hook.kube.formats import names, quantity
from oci_hook.kube.manifests import yaml_edit
from oci_hook.kube.manifests.yaml_edit import Edit, get
from oci_hook.kube.pod.translate_pod import Rows, TranslatedPod, is_unread

KINDS = (("ResourceQuota", "v1"), ("LimitRange", "v1"))
COUNTED = ("requests.", "limits.")  # of a quota's keys; of extended resources Kubernetes counts requests alone
BOUNDS = ("max", "min")  # of a LimitRange's items
# These write the resource into each container, once more after the webhook, since the API server runs LimitRanger again then.
DEFAULTS = ("default", "defaultRequest")
QUOTES = ("'", '"')
SUM_OF = {"gpus": names.GPUS, "memory": names.MEMORY, "compute": names.COMPUTE}


class Quota(TranslatedPod):
    """A ResourceQuota or LimitRange, for the report. made: of each of its mappings, in order, the new entries."""

    def __init__(self, kind: str, name: str, namespace: str = "") -> None:
        super().__init__(kind, name, namespace)
        self.made: list[dict[str, str]] = []


def rewrite(quota: Quota, node: yaml.Node, edit: Edit, rows: Rows) -> None:
    """Adds the changes to `edit`, and notes to the quota."""
    for mapping, type_of in sections(node, quota.kind):
        made: dict[str, str] = {}
        quota.made.append(made)
        there = yaml_edit.scalars(mapping)
        for key, value in sorted(yaml_edit.entries(mapping), key=lambda entry: entry[0].value.startswith(COUNTED[1])):
            prefix, resource = split(key.value, quota.kind)
            if resource not in rows and not is_unread(resource):
                continue
            new = to_sum(resource, there.get(key.value, ""), rows)
            if new is None:
                quota.notes.append(f"{key.value} has no equivalent and stays; gpu-hook's pods do not request it")
                continue
            name = f"requests.{new[0]}" if prefix else new[0]
            if name in there or name in made:
                quota.notes.append(f"{key.value} stays without effect: {name} is there already")
                continue
            made[name] = new[1]
            edit.replace(key, _as_before(key, name))
            if new[1] != value.value:
                edit.replace(value, _as_before(value, new[1]))
            if type_of == "Container":
                quota.notes.append(f"{name}: the pod's sum is on its first container; others lack it, so use type: Pod")
    for item in _items(node) if quota.kind == "LimitRange" else ():
        for part in DEFAULTS:
            quota.notes += [
                f"{part} {key} stays: remove it, since each container gets it again after gpu-hook's webhook"
                for key in yaml_edit.scalars(get(item, part))
                if key in rows or is_unread(key)
            ]


def sections(node: yaml.Node, kind: str) -> Iterator[tuple[yaml.Node, str]]:
    """The mappings with resources, each with the type of a LimitRange's item."""
    if kind == "ResourceQuota" and (hard := get(node, "spec", "hard")) is not None:
        yield hard, ""
    for item in _items(node) if kind == "LimitRange" else ():
        for part in BOUNDS:
            if (bounds := get(item, part)) is not None:
                yield bounds, yaml_edit.scalars(item).get("type", "")


def _items(node: yaml.Node) -> list[yaml.Node]:
    found = get(node, "spec", "limits")
    return list(found.value) if isinstance(found, yaml.SequenceNode) else []


def split(key: str, kind: str) -> tuple[str, str]:
    """(requests. or limits. of a quota, or ""; the resource)"""
    prefix = next((one for one in COUNTED if key.startswith(one)), "") if kind == "ResourceQuota" else ""
    return prefix, key[len(prefix) :]


def to_sum(resource: str, amount: str, rows: Rows) -> tuple[str, str] | None:
    """(the sum that counts the same, its amount); None if none does, as for a percentage of memory."""
    wish, parse, implied = rows[resource][1] if resource in rows else ("", None, {})
    if wish not in SUM_OF or "node" in implied:
        return None
    try:
        number, one = quantity.whole(amount), parse("1")
    except ValueError:
        return None
    if wish == "memory":
        return (SUM_OF[wish], str(number * one[1])) if one[0] == "mib" else None
    return None if one == ZERO else (SUM_OF[wish], str(number))


def _as_before(node: yaml.Node, new: str) -> str:
    style = getattr(node, "style", None) or ""
    return f"{style}{new}{style}" if style in QUOTES else new


def kept(quotas: list[Quota], nodes: list[yaml.Node]) -> bool:
    """True if the edited objects have what was made."""
    return all(
        made.items() <= yaml_edit.scalars(mapping).items()
        for quota, node in zip(quotas, nodes, strict=True)
        for made, (mapping, _) in zip(quota.made, sections(node, quota.kind), strict=True)
    )


def strip(value: dict[str, Any], keys: frozenset[str]) -> None:
    """Removes from an object's data what may change: the resources `keys`, and our sums."""
    spec = value.get("spec")
    if (value.get("kind"), value.get("apiVersion")) not in KINDS or not isinstance(spec, dict):
        return
    kind = str(value["kind"])
    parts = [spec.get("hard")] if kind == "ResourceQuota" else []
    listed = spec.get("limits") if kind == "LimitRange" else None
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    parts += [item.get(part) for item in items for part in BOUNDS]
    for part in parts:
        if isinstance(part, dict):
            for key in [key for key in part if (found := split(str(key), kind)[1]) in keys or found in names.SUMS]:
                del part[key]
