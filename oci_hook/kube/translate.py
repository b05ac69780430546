"""Rewrites manifests of other sharing systems: their resources and annotations become gpu-hook's annotations on the pod
template, and its runtime class is set.

The dialect tables that read containers' annotations also read the resources here, so a translated container requests
exactly what it requested before. A note names each part that has no equivalent.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from oci_hook.core import collect, dialects, validate
from oci_hook.core.collect import Wish
from oci_hook.core.layout import PREFIX_KEY
from oci_hook.core.request import Request, build, parse
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest
from oci_hook.core.units import show
from oci_hook.core.value_parsers import WITH_A_SHARE, Bounded
from oci_hook.errors import GhError, Problem, RequestError
from oci_hook.kube import place, yaml_edit
from oci_hook.kube.same import same_elsewhere
from oci_hook.kube.yaml_edit import Edit, get

MAX_SIZE = 4 << 20  # characters; etcd takes no object above 1.5 MiB
MAX_NAME = 63  # characters of an annotation key after the slash
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


class ManifestContainer:
    """One container of a template. wishes: from its resources and its pod's annotations. words: our annotations for it;
    None if it requests nothing. lost: some of these do not fit into annotation keys."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wishes: list[Wish] = []
        self.request: Request | None = None
        self.words: dict[str, str] | None = None
        self.lost = False


class Pod:
    """A pod template, for the report. annotations: those that were added."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.containers: list[ManifestContainer] = []
        self.annotations: dict[str, str] = {}
        self.notes: list[str] = []

    def __str__(self) -> str:
        return f"{self.kind} {self.name or '(no name)'}"


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
    keys = {key for name in rules.dialects for key in dialects.table(name).KEYS}
    if not same_elsewhere(old, new, keys):
        return False
    found = [node for document in yaml_edit.documents(new) for node in objects(document)]
    found = [node for node in found if yaml_edit.scalars(node).get("kind") in TEMPLATES]
    for pod, node in zip(pods, found, strict=True):
        if not pod.annotations:
            continue
        template = get(node, *TEMPLATES[pod.kind])
        annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
        left = [key for container in containers(template) for key in resources(container, dict.fromkeys(keys), [])]
        if left or not keys.isdisjoint(annotations) or not pod.annotations.items() <= annotations.items():
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
    rows = {key: (name, row) for name in rules.dialects for key, row in dialects.rows(name, rules).items()}
    nodes = containers(template)
    if not nodes:
        raise RequestError(Problem("GH-107", "its pods have no containers"))
    annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
    problems: list[Problem] = []
    for node in nodes:
        container = ManifestContainer(yaml_edit.scalars(node).get("name", ""))
        pod.containers.append(container)
        own: list[Problem] = []
        for key in annotations:
            if key in rows:
                read(rows[key], key, annotations[key], container.wishes, own)
        for key, text in resources(node, rows, own).items():
            read(rows[key], key, text, container.wishes, own)
        resolve(container, pod, own, rules)
        problems += [Problem(p.code, f"container {container.name}: {p.message}") for p in own]
    if problems:
        raise RequestError(*problems)
    leftovers(pod, template, nodes, annotations, rows)
    asking = [container for container in pod.containers if container.words is not None]
    if not asking:
        return
    pod.annotations = in_annotations(pod, asking)
    check(pod, annotations)
    for node in nodes:
        place.take_out(edit, node, set(rows))
    place.put_annotations(edit, template, pod.annotations, [key for key in annotations if key in rows])
    if before := place.put_runtime_class(edit, template):
        pod.notes.append(f"runtimeClassName was {before}")


def read(named: "tuple[str, Any]", key: str, text: str, found: list[Wish], problems: list[Problem]) -> None:
    dialect, row = named
    collect.read(row, key, text, False, dialect, found, problems)


def resources(container: yaml.Node, rows: dict[str, Any], problems: list[Problem]) -> dict[str, str]:
    """The container's resources that are in `rows`; a resource's request must equal its limit."""
    limits = yaml_edit.scalars(get(container, "resources", "limits"))
    requests = yaml_edit.scalars(get(container, "resources", "requests"))
    for key in limits:
        if key in rows and requests.get(key, limits[key]) != limits[key]:
            both = f"{key} is {show(limits[key])} in limits and {show(requests[key])} in requests"
            problems.append(Problem("GH-103", f"{both}; a share's request equals its limit, or is left out"))
    return {key: text for key, text in {**requests, **limits}.items() if key in rows}


def resolve(container: ManifestContainer, pod: Pod, problems: list[Problem], rules: Rules) -> None:
    """Set the container's request and words from its wishes."""
    names = {wish.name: wish for wish in container.wishes}
    whole, memory = names.get("exclusive"), names.get("memory")
    for wish in container.wishes:
        if wish.key.endswith("/qgpu-core-greedy"):
            share = "offline containers get idle compute in equal parts"
            pod.notes.append(f"container {container.name}: the number in {wish} has no equivalent; {share}")
    given = validate.Given(container.wishes, problems)
    if whole and memory and "memory" not in given:
        pod.notes.append(f"container {container.name}: {memory.key} has no effect beside {whole.key}={whole.text}")
    if problems or not validate.asks(given.wishes.values()):
        return
    asked = build(given, None, rules)
    if asked is not None:  # in our words, NVIDIA_VISIBLE_DEVICES has UUIDs
        container.request = asked.replace(terms=asked.terms.replace(visible="uuid"))
    if not problems:
        container.words = words(given)


def words(given: validate.Given) -> dict[str, str]:
    """The wishes as values of our annotations, in the order of our table."""
    found = {}
    for key in dialects.table(dialects.NATIVE).KEYS:
        value = given.value(key)
        if isinstance(value, Bounded) and given.partial:
            value = tuple(name for name in value if name in WITH_A_SHARE)
        if value is None or value is False:
            continue
        if key == "memory":
            kind, amount = value
            mib = f"{amount // 1024}Gi" if amount % 1024 == 0 else f"{amount}Mi"
            found[key] = f"{amount}%" if kind == "percent" else mib
        elif value is True:
            found[key] = "true"
        else:
            found[key] = ",".join(value) if isinstance(value, tuple) else str(value)
    return found


def in_annotations(pod: Pod, asking: Sequence[ManifestContainer]) -> dict[str, str]:
    """Keys without a suffix if every container requests the same; else keys with the name of each that requests."""
    first = asking[0].words or {}
    if len(asking) == len(pod.containers) and all(container.words == first for container in asking):
        return {PREFIX_KEY + key: value for key, value in first.items()}
    found = {}
    listed: dict[str, Any] = {}
    for container in asking:
        values = dict(container.words or {})
        if any(not fits(key, container) for key in values):
            listed[container.name] = in_request(container)
            values = {key: value for key, value in values.items() if key not in validate.INSTEAD}
        for key, value in values.items():
            if fits(key, container):
                found[f"{PREFIX_KEY}{key}.{container.name}"] = value
            else:
                container.lost = True
                why = f"does not fit into {MAX_NAME} characters with that name; shorten the name, or annotate the whole pod"
                pod.notes.append(f"container {container.name}: {key}: {value} {why}")
    if listed:
        found[collect.REQUEST] = json.dumps(listed)
    return found


def fits(key: str, container: ManifestContainer) -> bool:
    return len(f"{key}.{container.name}") <= MAX_NAME


def in_request(container: ManifestContainer) -> list[dict[str, Any]]:
    """A container's GPUs in the form of the annotation `request`, for names that are too long for a key."""
    request, values = container.request, container.words or {}
    if request is None or request.every_gpu or not request.gpus:
        why = "its name is too long for an annotation key, and the annotation request cannot express `all` or `none`"
        shorter = f"shorten it to {MAX_NAME - len('exclusive.')} characters"
        raise RequestError(Problem("GH-107", f"container {container.name}: {why}; {shorter}"))
    return [as_entry(gpu, values) for gpu in request.gpus]


def as_entry(gpu: GpuRequest, values: dict[str, str]) -> dict[str, Any]:
    parts: dict[str, Any] = {key: values[key] for key in ("memory", "compute") if key in values}
    if gpu.device is not None:
        parts["device"] = gpu.device
    return parts


def check(pod: Pod, annotations: dict[str, str]) -> None:
    """Check that the new annotations, with ours from before, request what the old words requested. Raises otherwise."""
    ours = {key: text for key, text in annotations.items() if key.startswith(PREFIX_KEY)}
    problems = []
    for key, value in pod.annotations.items():
        if ours.get(key, value) != value:
            problems.append(
                Problem(
                    "GH-103",
                    f"{key}={show(ours[key])} is there already, and the resources mean {show(value)}; remove one",
                )
            )
    for container in pod.containers:
        try:
            request = parse({**ours, **pod.annotations}, {}, container.name, Rules(dialects=()), decode=json.loads)
        except RequestError as e:
            problems += [Problem(p.code, f"container {container.name}: {p.message}") for p in e.problems]
            continue
        if not ours and not container.lost and request != container.request:
            why = "its request cannot be expressed in annotations; write them by hand"
            problems.append(Problem("GH-107", f"container {container.name}: {why}"))
    if problems:
        raise RequestError(*problems)


def leftovers(
    pod: Pod, template: yaml.Node, nodes: list[yaml.Node], annotations: dict[str, str], rows: dict[str, Any]
) -> None:
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
