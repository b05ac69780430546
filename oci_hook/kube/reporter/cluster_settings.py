"""The cluster's settings for one node, from the node's labels and the ConfigMap gpu-hook-nodes. Pure.

A key of the ConfigMap is a node's name; or any name, with a line `nodes: LABEL=VALUE,...` for nodes that have all these labels. The
other lines are settings as in settings.yaml, of config/keys.py's OF_CLUSTER. Settings by a node's name override those by labels,
and these override the node's policy label.
"""

from collections.abc import Mapping

from oci_hook.config import flat_yaml, keys
from oci_hook.core.units import show
from oci_hook.kube.formats.names import POLICY_LABEL, QGPU_POLICY

CONFIG = "gpu-hook-nodes"
SELECTOR = "nodes"
HEAD = (
    f"# The cluster's settings for this node, from its labels and the ConfigMap {CONFIG}. The agent overwrites them.\n"
)
MAX_PROBLEMS = 5

Value = str | tuple[str, ...]  # of flat_yaml
Lines = dict[str, Value]


def wanted(node: str, labels: Mapping[str, str], config: Mapping[str, str]) -> tuple[Lines, list[str]]:
    """(value by setting, problems). An entry with a problem is ignored."""
    found: Lines = {}
    problems: list[str] = []
    for label in (*reversed(QGPU_POLICY), POLICY_LABEL):
        if label in labels:
            if why := _wrong("default_policy", labels[label]):
                problems.append(f"label {label} {why}")
            else:
                found["default_policy"] = labels[label]
    mine: Lines = {}
    for name in sorted(config):
        lines, selector, why = entry(config[name])
        if why:
            problems.append(f"ConfigMap {CONFIG}, {name}: {why}")
        elif selector is None:
            mine |= lines if name == node else {}
        elif all(labels.get(label) == value for label, value in selector.items()):
            found |= lines
    return {**found, **mine}, problems[:MAX_PROBLEMS]


def entry(text: str) -> tuple[Lines, dict[str, str] | None, str]:
    """(value by setting, labels of the nodes or None, the problem or "")"""
    lines: Lines = {}
    selector = None
    for number, key, value, problem in flat_yaml.lines(text.encode("utf-8", "surrogateescape")):
        if problem:
            return {}, None, f"line {number} {problem}"
        if key in lines or (key == SELECTOR and selector is not None):
            return {}, None, f"{key} is set twice"
        if key == SELECTOR:
            selector = labels_of(value)
            if not selector:
                return {}, None, f"{SELECTOR}: {show(value)} is no list of LABEL=VALUE with commas"
        elif key not in keys.OF_CLUSTER:
            return {}, None, f"{show(key)} is no setting that a cluster may set"
        elif why := _wrong(key, value):
            return {}, None, f"{key} {why}"
        else:
            lines[key] = value
    return lines, selector, ""


def labels_of(value: Value) -> dict[str, str]:
    """The labels of a selector; {} for an invalid one."""
    parts = [part.partition("=") for part in value.split(",")] if isinstance(value, str) else []
    return {label: text for label, _, text in parts} if all(label and sep for label, sep, _ in parts) else {}


def text(lines: Lines) -> str:
    """The file's text, "" for no lines."""
    return HEAD + "".join(f"{key}: {flat_yaml.quoted(lines[key])}\n" for key in sorted(lines)) if lines else ""


def _wrong(key: str, value: Value) -> str:
    try:
        keys.READERS[key](value)
        return ""
    except ValueError as e:
        return f"{show(value)} {e}"
