"""Rewrites manifests of other sharing systems: their resources and annotations become gpu-hook's annotations on the pod
template, and its runtime class is set.

The dialect tables that read containers' annotations also read the resources here, so a translated container requests
exactly what it requested before. A note names each part that has no equivalent.
"""

from collections.abc import Iterable

import yaml

from oci_hook.core.rules import Rules
from oci_hook.errors import GhError, Problem, RequestError
from oci_hook.kube import place, yaml_edit
from oci_hook.kube.same import same_elsewhere
from oci_hook.kube.words import Container, Pod, Rows, read_pod, resources, rows_of
from oci_hook.kube.yaml_edit import Edit, get

MAX_SIZE = 4 << 20  # characters; etcd takes no object above 1.5 MiB
TEMPLATES: dict[str, tuple[str, ...]] = {  # where a kind has its pod template
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"), ("spec", "template")
    ),
}
# Prefixes of other systems' names. What remains of them in a translated manifest gets a note.
THEIRS: tuple[str, ...] = (
    *("nvidia.com/", "hami.io/", "tencent.com/", "tke.cloud.tencent.com/", "tensorstack.dev/", "volcano.sh/vgpu"),
    *("sched.tensorstack.dev/", "elasticgpu.", "aliyun.com/gpu", "gpu-fraction", "gpu-memory"),
    *("qgpu-device-enable", "mixed-qgpu-enable", "nvidia-device-enable"),
)
SCHEDULERS = ("qgpu", "t9k", "hami", "gpu-admission", "vgpu", "volcano", "kai")


class Translation:
    """text: the new manifest. pods: every pod template; those that were translated have annotations."""

    def __init__(self, text: str, pods: list[Pod]) -> None:
        self.text = text
        self.pods = pods


def translate(text: str, rules: Rules) -> Translation:
    """Translate a manifest. rules: which dialects are read, and the unit of qgpu-memory.

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
    """Whether the new text has the new annotations, requests nothing in other words, and is otherwise the old text."""
    rows = rows_of(rules)
    if not same_elsewhere(old, new, set(rows)):
        return False
    found = [node for document in yaml_edit.documents(new) for node in objects(document)]
    found = [node for node in found if yaml_edit.scalars(node).get("kind") in TEMPLATES]
    for pod, node in zip(pods, found, strict=True):
        if not pod.annotations:
            continue
        template = get(node, *TEMPLATES[pod.kind])
        annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
        left = [key for container in containers(template) for key in resources(plain(container), rows, [])]
        if left or not rows.keys().isdisjoint(annotations) or not pod.annotations.items() <= annotations.items():
            return False
        if yaml_edit.scalars(get(template, "spec")).get("runtimeClassName") != place.RUNTIME_CLASS:
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
    """Read one template; if it requests a GPU in another system's words, put its changes into `edit`."""
    rows = rows_of(rules)
    nodes = containers(template)
    if not nodes:
        raise RequestError(Problem("GH-107", "its pods have no containers"))
    annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
    read_pod(pod, [plain(node) for node in nodes], annotations, rows, rules)
    leftovers(pod, template, nodes, annotations, rows)
    if not pod.annotations:
        return
    for node in nodes:
        place.take_out(edit, node, set(rows))
    place.put_annotations(edit, template, pod.annotations, [key for key in annotations if key in rows])
    if before := place.put_runtime_class(edit, template):
        pod.notes.append(f"runtimeClassName was {before}")


def plain(container: yaml.Node) -> Container:
    return Container(
        yaml_edit.scalars(container).get("name", ""),
        yaml_edit.scalars(get(container, "resources", "limits")),
        yaml_edit.scalars(get(container, "resources", "requests")),
    )


def leftovers(pod: Pod, template: yaml.Node, nodes: list[yaml.Node], annotations: dict[str, str], rows: Rows) -> None:
    """Notes on the parts of other systems that stay in the manifest."""
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
