"""Rewrites manifests of other sharing systems: their resources and annotations become gpu-hook's annotations on the pod
template, with gpu-hook's runtime class.

The same dialect tables read annotations and resources, so a translated container's request stays the same. A note names each
part without an equivalent.
"""

import copy
from collections.abc import Collection, Iterable
from typing import Any

import yaml

from oci_hook.core.rules import Rules
from oci_hook.errors import GhError, Problem, RequestError
from oci_hook.kube.manifests import template_edit, yaml_edit
from oci_hook.kube.manifests.yaml_edit import Edit, get
from oci_hook.kube.pod.translate_pod import Container, Pod, Rows, read_pod, resources, rows_of

MAX_SIZE = 4 << 20  # characters; etcd takes no object above 1.5 MiB
TEMPLATES: dict[str, tuple[str, ...]] = {  # kind -> path of its pod template
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"), ("spec", "template")
    ),
}
# Prefixes of other systems' names. Each one left in a translated manifest gets a note.
THEIRS: tuple[str, ...] = (
    *("nvidia.com/", "hami.io/", "tencent.com/", "tke.cloud.tencent.com/", "tensorstack.dev/", "volcano.sh/vgpu"),
    *(
        "sched.tensorstack.dev/",
        "elasticgpu.",
        "aliyun.com/gpu",
        "gpu-fraction",
        "gpu-memory",
        "runai/gpu",
        "kai.scheduler/",
    ),
    *("qgpu-device-enable", "mixed-qgpu-enable", "nvidia-device-enable"),
)
SCHEDULERS = ("qgpu", "t9k", "hami", "gpu-admission", "vgpu", "volcano", "kai", "runai")


class Translation:
    """text: the new manifest. pods: every pod template; translated ones have annotations."""

    def __init__(self, text: str, pods: list[Pod]) -> None:
        self.text = text
        self.pods = pods


def translate(text: str, rules: Rules) -> Translation:
    """Translates a manifest. rules: its dialects, and the unit of qgpu-memory.

    Raises RequestError with every problem: GH-107 if the text is no manifest or cannot be edited in place, GH-101 to
    GH-106 for invalid requests in it.
    """
    if len(text) > MAX_SIZE:
        raise RequestError(
            Problem("GH-107", f"the manifest has {len(text)} characters, {MAX_SIZE} are allowed; translate it in parts")
        )
    edit = Edit(text)
    problems: list[Problem] = []
    pods = []
    for document in yaml_edit.documents(text):
        for node in objects(document):
            kind = yaml_edit.scalars(node).get("kind", "")
            if kind not in TEMPLATES:
                continue
            template = get(node, *TEMPLATES[kind])
            pod = Pod(kind, yaml_edit.scalars(get(node, "metadata")).get("name", ""))
            pods.append(pod)
            if template is None:
                problems.append(Problem("GH-107", f"{pod}: it has no {'.'.join(TEMPLATES[kind])}"))
                continue
            try:
                rewrite(pod, template, edit, rules)
            except GhError as e:
                problems += [Problem(p.code, f"{pod}: {p.message}") for p in e.problems]
    if problems:
        raise RequestError(*problems)
    if not pods:
        kinds = ", ".join(TEMPLATES)
        raise RequestError(Problem("GH-107", f"no object in it has a pod template; such kinds are {kinds}"))
    new = edit.result()
    if not verified(text, new, pods, rules):
        why = "it uses <<, aliases, tags or a key twice and cannot be edited in place; write these parts out"
        raise RequestError(Problem("GH-107", why))
    return Translation(new, pods)


def verified(old: str, new: str, pods: list[Pod], rules: Rules) -> bool:
    """True if the new text has the new annotations, no request in another dialect, and is otherwise the old text."""
    if not same_elsewhere(old, new, set(rows_of(rules))):
        return False
    found = [node for document in yaml_edit.documents(new) for node in objects(document)]
    found = [node for node in found if yaml_edit.scalars(node).get("kind") in TEMPLATES]
    for pod, node in zip(pods, found, strict=True):
        if not pod.annotations:
            continue
        template = get(node, *TEMPLATES[pod.kind])
        annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
        rows = rows_of(rules, annotations)
        left = [key for container in containers(template) for key in resources(plain(container), rows, [])]
        if left or not rows.keys().isdisjoint(annotations) or not pod.annotations.items() <= annotations.items():
            return False
        if yaml_edit.scalars(get(template, "spec")).get("runtimeClassName") != template_edit.RUNTIME_CLASS:
            return False
    return True


def containers(template: yaml.Node | None) -> list[yaml.Node]:
    """The containers of a template, in the order in which they start."""
    spec = get(template, "spec")
    both = (get(spec, section) for section in ("initContainers", "containers"))
    return [node for part in both for node in getattr(part, "value", ()) if isinstance(node, yaml.MappingNode)]


def objects(document: yaml.Node) -> Iterable[yaml.Node]:
    """The object of a document, or the objects of a List."""
    items = get(document, "items")
    if yaml_edit.scalars(document).get("kind", "").endswith("List") and isinstance(items, yaml.SequenceNode):
        return list(items.value)
    return [document]


def rewrite(pod: Pod, template: yaml.Node, edit: Edit, rules: Rules) -> None:
    """Reads one template; if it requests a GPU in another dialect, adds its changes to `edit`."""
    nodes = containers(template)
    if not nodes:
        raise RequestError(Problem("GH-107", "its pods have no containers"))
    annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
    rows = rows_of(rules, annotations)
    running = getattr(get(template, "spec", "containers"), "value", [])
    read_pod(pod, [plain(node) for node in nodes], annotations, rows, rules, plain(running[0]).name if running else "")
    leftovers(pod, template, nodes, annotations, rows)
    if not pod.annotations:
        return
    for node in nodes:
        template_edit.take_out(edit, node, set(rows))
    template_edit.put_annotations(edit, template, pod.annotations, [key for key in annotations if key in rows])
    if before := template_edit.put_runtime_class(edit, template):
        pod.notes.append(f"runtimeClassName was {before}")


def plain(container: yaml.Node) -> Container:
    return Container(
        yaml_edit.scalars(container).get("name", ""),
        yaml_edit.scalars(get(container, "resources", "limits")),
        yaml_edit.scalars(get(container, "resources", "requests")),
    )


def leftovers(pod: Pod, template: yaml.Node, nodes: list[yaml.Node], annotations: dict[str, str], rows: Rows) -> None:
    """Adds notes on other systems' parts that stay in the manifest."""
    for key in annotations:
        if key.startswith(THEIRS) and key not in rows:
            pod.notes.append(f"annotation {key} has no equivalent and stays")
    for node in nodes:
        name = yaml_edit.scalars(node).get("name", "")
        for section in ("limits", "requests"):
            for key in yaml_edit.scalars(get(node, "resources", section)):
                if key.startswith(THEIRS) and key not in rows:
                    pod.notes.append(f"container {name}: resource {key} has no equivalent and stays")
    for key in yaml_edit.scalars(get(template, "spec", "nodeSelector")):
        if key.startswith(THEIRS):
            pod.notes.append(f"nodeSelector {key} stays; remove it if the nodes have no such label")
    scheduler = yaml_edit.scalars(get(template, "spec")).get("schedulerName", "")
    if scheduler.startswith(SCHEDULERS):
        pod.notes.append(f"schedulerName {scheduler} stays; gpu-hook needs no special scheduler")
    pod.notes[:] = dict.fromkeys(pod.notes)


# --- the check after the edit


def same_elsewhere(old: str, new: str, keys: Collection[str]) -> bool:
    """True if both are equal, as data and in order, except for annotations, runtimeClassName and the resources `keys`."""
    try:
        before, after = (list(yaml.safe_load_all(text)) for text in (old, new))
    except (yaml.YAMLError, RecursionError):
        return False
    # deepcopy keeps aliases shared, and strip visits each object once, so nested aliases do not expand.
    stripped = [strip(copy.deepcopy(documents), frozenset(keys), set()) for documents in (before, after)]
    return equal(stripped[0], stripped[1], set())


def strip(value: Any, keys: frozenset[str], seen: set[int]) -> Any:
    """Removes the edited parts from the data, in place; returns the data."""
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
    """seen: pairs already compared, since data with aliases may refer to itself."""
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
