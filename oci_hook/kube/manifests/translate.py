"""Rewrites manifests of other sharing systems: their resources and annotations become gpu-hook's annotations on the pod
template, with gpu-hook's runtime class; or ResourceClaimTemplates, as do gpu-hook's own annotations.

The same dialect tables read annotations and resources, so a translated container's request stays the same. A note names each
part without an equivalent.
"""

import copy
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import yaml

from oci_hook.core.request import parse
from oci_hook.core.rules import Rules
from oci_hook.errors import GhError, Problem, RequestError
from oci_hook.kube.formats.names import NODE_PLACEMENT, PREFIX_KEY
from oci_hook.kube.manifests import kinds, quotas, template_edit, to_claim, yaml_edit
from oci_hook.kube.manifests.quotas import Quota
from oci_hook.kube.manifests.yaml_edit import Edit, get
from oci_hook.kube.pod import runtime_classes
from oci_hook.kube.pod.asked import each
from oci_hook.kube.pod.translate_pod import PodContainer, Rows, TranslatedPod, is_unread, read_pod, resources, rows_of

MAX_SIZE = 4 << 20  # characters; etcd takes no object above 1.5 MiB
HELM = re.compile(r"\{\{-? *(?:[.$(]|/\*|(?:include|template|if|range|with|end|define|tpl|toYaml|default|quote)\b)")
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
OURS = {  # annotations of others that stay, and what says the same
    "nvidia.com/use-gpuuuid": "devices",
}
SCHEDULERS = ("qgpu", "t9k", "hami", "gpu-admission", "vgpu", "volcano", "kai", "runai")


class Translation:
    """text: the new manifest. pods: every pod template; translated ones have annotations. notes: of objects that are not read.
    quotas: what bounds pods."""

    def __init__(self, text: str, pods: list[TranslatedPod], notes: list[str], quotas: Sequence[Quota] = ()) -> None:
        self.text = text
        self.pods = pods
        self.notes = notes
        self.quotas = quotas


def translate(text: str, rules: Rules, to_claims: bool = False) -> Translation:
    """Translates a manifest. rules: its dialects, and the unit of qgpu-memory. to_claims: to ResourceClaimTemplates, which follow
    the text.

    Raises RequestError with every problem: GH-107 if the text is no manifest or cannot be edited in place, GH-101 to
    GH-106 for invalid requests in it.
    """
    if len(text) > MAX_SIZE:
        raise RequestError(
            Problem("GH-107", f"the manifest has {len(text)} characters, {MAX_SIZE} are allowed; translate it in parts")
        )
    try:
        return _translate(text, rules, to_claims)
    except RequestError as e:
        found = HELM.search(text)
        if found is None:
            raise
        line = text.count("\n", 0, found.start()) + 1
        hint = f"line {line} has {{{{ }}}} as a Helm chart's templates: run `helm template` first, and translate its output"
        raise RequestError(Problem("GH-107", hint), *e.problems) from None


def _translate(text: str, rules: Rules, to_claims: bool) -> Translation:
    edit = Edit(text)
    problems: list[Problem] = []
    pods: list[TranslatedPod] = []
    notes: list[str] = []
    is_manifest = False
    bounds: list[Quota] = []
    templates = to_claim.Templates()
    documents = yaml_edit.documents(text)
    for document in documents:
        for node in objects(document):
            said = yaml_edit.scalars(node)
            kind, version = said.get("kind", ""), said.get("apiVersion", "")
            is_manifest = is_manifest or bool(kind)
            meta = yaml_edit.scalars(get(node, "metadata"))
            if is_quota(node) and not to_claims:
                bounds.append(Quota(kind, meta.get("name", ""), meta.get("namespace", "")))
                quotas.rewrite(bounds[-1], node, edit, rows_of(rules))
                continue
            paths = kinds.paths(version, kind)
            if kind == "ResourceClaimTemplate":
                templates.taken.add((meta.get("namespace", ""), meta.get("name", "")))
            if not paths:
                notes += not_read(node, rules)
            found = list(templates_of(node))
            if paths and not found and not kinds.is_optional(version, kind):
                lacks = f"{kind} {meta.get('name') or '(no name)'}: it has no {'.'.join(paths[0])}"
                problems.append(Problem("GH-107", lacks))
            for part, template in found:
                pod = TranslatedPod(kind, meta.get("name", ""), meta.get("namespace", ""), part)
                pods.append(pod)
                try:
                    rewrite(pod, template, edit, rules, templates if to_claims else None)
                except GhError as e:
                    problems += [Problem(p.code, f"{pod}: {p.message}") for p in e.problems]
                pod.notes += of_the_system(kinds.group_of(version), pod)
    if problems:
        raise RequestError(*problems)
    if not is_manifest and any(get(document, "services") is not None for document in documents):
        why = "it is a compose file, of which only you know the shares: give each service with a GPU `runtime: gpu-hook` and"
        text = f"{why} `annotations:` with gpu-hook.io/memory, in place of its deploy.resources.reservations.devices"
        raise RequestError(Problem("GH-107", text))
    if not is_manifest:
        own = ", ".join(kind for _, kind in kinds.KUBERNETES)
        raise RequestError(Problem("GH-107", f"no object in it has a kind; those with a pod template are {own}"))
    if not edit.changes:
        return Translation(text, pods, notes, bounds)
    new = edit.result() + templates.text(text)
    if not verified(text, new, pods, rules, bounds):
        why = "it uses <<, aliases, tags or a key twice and cannot be edited in place; write these parts out"
        raise RequestError(Problem("GH-107", why))
    return Translation(new, pods, notes, bounds)


def of_the_system(group: str, pod: TranslatedPod) -> list[str]:
    """Notes on what the system that makes these pods needs besides."""
    if group == "serving.knative.dev" and pod.annotations:
        return ["Knative takes runtimeClassName only with its feature kubernetes.podspec-runtimeclassname"]
    theirs = (wish.key for container in pod.containers for wish in container.wishes)
    if group == "ray.io" and (gone := next((key for key in theirs if key.endswith("gpu")), "")):
        return [f"KubeRay took num-gpus from {gone}, which went; write it into rayStartParams"]
    return []


def templates_of(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """The pod templates of an object, each with its name among several."""
    said = yaml_edit.scalars(node)
    paths = kinds.paths(said.get("apiVersion", ""), said.get("kind", ""))
    for part, _, template in kinds.templates(node, paths, get, yaml_edit.parts):
        yield part, template


def not_read(node: yaml.Node, rules: Rules) -> list[str]:
    """A note on an object whose kind is not known, and that asks for GPUs in words that would have been translated."""
    said = yaml_edit.scalars(node)
    name, group = yaml_edit.scalars(get(node, "metadata")).get("name", ""), kinds.group_of(said.get("apiVersion"))
    words = sorted(asking(node, rows_of(rules)))
    if not words or not said.get("kind"):
        return []
    which = f"kinds {said['kind']} of {group}" if group else f"kinds {said['kind']}"
    stays = f"{', '.join(words[:3])} stays; {which} are not read here, but their pods by the cluster's webhook"
    return [f"{said['kind']} {name or '(no name)'}: {stays}"]


def asking(root: yaml.Node, rows: Rows) -> set[str]:
    """The keys of `rows` in any limits, requests and annotations below a node."""
    found: set[str] = set()
    seen: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        if not isinstance(node, yaml.MappingNode):
            left += node.value
            continue
        for key, value in node.value:
            if key.value in ("limits", "requests", "annotations") and isinstance(value, yaml.MappingNode):
                found.update(one.value for one, _ in value.value if isinstance(one.value, str) and one.value in rows)
            left.append(value)
    return found


def is_quota(node: yaml.Node) -> bool:
    said = yaml_edit.scalars(node)
    return (said.get("kind", ""), said.get("apiVersion", "")) in quotas.KINDS


def verified(old: str, new: str, pods: list[TranslatedPod], rules: Rules, bounds: list[Quota]) -> bool:
    """True if the new text has the new annotations, no request in another dialect, and is otherwise the old text."""
    added = {name for pod in pods for name in pod.claims.values()}
    if not same_elsewhere(old, new, set(rows_of(rules)), added):
        return False
    found = [node for document in yaml_edit.documents(new) for node in objects(document)]
    if bounds and not quotas.kept(bounds, [node for node in found if is_quota(node)]):
        return False
    for pod, (_, template) in zip(pods, [pair for one in found for pair in templates_of(one)], strict=True):
        if not pod.annotations and not pod.claims:
            continue
        annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
        rows = rows_of(rules, annotations)
        left = [key for container in containers(template) for key in resources(plain(container), rows, [])]
        if left or not rows.keys().isdisjoint(annotations) or not pod.annotations.items() <= annotations.items():
            return False
        runtime_class = class_of(template)
        if runtime_class in runtime_classes.REPLACED and runtime_class != (
            "" if pod.claims else template_edit.RUNTIME_CLASS
        ):
            return False
        if pod.claims and (to_claim.gone(annotations) or claims_of(template) != pod.claims):
            return False
    return True


def claims_of(template: yaml.Node | None) -> dict[str, str]:
    """Container -> its claim of ours, as the pod calls it, where the pod has a template for it."""
    spec = get(template, "spec")
    there = [yaml_edit.scalars(item) for item in getattr(get(spec, "resourceClaims"), "value", ())]
    ours = {item.get("name") for item in there if item.get("resourceClaimTemplateName")}
    return {
        yaml_edit.scalars(node).get("name", ""): name
        for node in containers(template)
        for item in getattr(get(node, "resources", "claims"), "value", ())
        if (name := yaml_edit.scalars(item).get("name", "")).startswith(to_claim.BEGIN) and name in ours
    }


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


def rewrite(
    pod: TranslatedPod, template: yaml.Node, edit: Edit, rules: Rules, templates: to_claim.Templates | None = None
) -> None:
    """Reads one template; if it requests a GPU in another dialect, adds its changes to `edit`. templates: of claims, which the
    requests are to become, ours too."""
    nodes = containers(template)
    if not nodes:
        raise RequestError(Problem("GH-107", "its pods have no containers"))
    annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
    rows = rows_of(rules, annotations)
    running = getattr(get(template, "spec", "containers"), "value", [])
    read = [plain(node) for node in nodes]
    if any(not one.name and not rows.keys().isdisjoint(one.amounts) for one in read):
        raise RequestError(Problem("GH-107", "a container has no name, by which its annotations could go; give it one"))
    read_pod(pod, read, annotations, rows, rules, plain(running[0]).name if running else "")
    leftovers(pod, template, nodes, annotations, rows)
    if templates is not None:
        to_claims(pod, template, nodes, edit, rows, templates)
        return
    if not pod.annotations:
        return
    for node in nodes:
        template_edit.take_out(edit, node, set(rows))
    template_edit.put_annotations(edit, template, pod.annotations, [key for key in annotations if key in rows])
    if stays := runtime_classes.check(class_of(template)):
        pod.notes.append(stays)
    elif before := template_edit.put_runtime_class(edit, template):
        pod.notes.append(f"runtimeClassName was {before}")


def to_claims(
    pod: TranslatedPod,
    template: yaml.Node,
    nodes: list[yaml.Node],
    edit: Edit,
    rows: Rows,
    templates: to_claim.Templates,
) -> None:
    """Each container that asks gets a claim of its own. An init container has that of a later container that asks for the same: it
    has ended by then."""
    annotations = yaml_edit.scalars(get(template, "metadata", "annotations"))
    ours = {key: text for key, text in annotations.items() if key.startswith(PREFIX_KEY)}
    running = getattr(get(template, "spec", "containers"), "value", [])
    names = [yaml_edit.scalars(node).get("name", "") for node in nodes]
    asking = each({**ours, **pod.annotations}, names)
    if NODE_PLACEMENT in pod.annotations:
        pod.notes.append("the order of nodes has no equivalent in a claim, and is left out")
    pod.annotations = {}
    spec = get(template, "spec")
    taken = {yaml_edit.scalars(item).get("name", "") for item in getattr(get(spec, "resourceClaims"), "value", ())}
    of_pod: list[
        tuple[bool, dict[str, Any], str]
    ] = []  # an init container may have it too, the claim, the pod's name of it
    for node, (name, mine) in reversed(list(zip(nodes, asking, strict=True))):
        request = parse(mine, {}, name, Rules(dialects=()), decode=json.loads)
        if request is None or not request.gpus:
            continue
        words = to_claim.own_words(mine, name)
        pod.notes += [f"container {name}: {note}" for note in to_claim.notes(words)]
        wanted = to_claim.spec(request, words, name)
        init = node not in running and yaml_edit.scalars(node).get("restartPolicy") != "Always"
        shared = [found for free, claim, found in of_pod if free and claim == wanted] if init else []
        pod.claims[name] = shared[0] if shared else to_claim.of_container(name, taken)
        if not shared:
            of_pod.append((init or node in running, wanted, pod.claims[name]))
    if not pod.claims or spec is None:
        return
    if not pod.name:
        raise RequestError(
            Problem("GH-107", "it has no name, by which its ResourceClaimTemplate could go; give it one")
        )
    for node, name in zip(nodes, names, strict=True):
        template_edit.take_out(edit, node, set(rows), pod.claims.get(name, ""))
    workload = "-".join(filter(None, (pod.name, pod.part.replace("/", "-").lower())))
    listed = [
        {"name": name, "resourceClaimTemplateName": templates.add(pod.namespace, workload, name, wanted)}
        for _, wanted, name in reversed(of_pod)
    ]
    template_edit.add_to_list(edit, spec, "resourceClaims", listed)
    template_edit.take_annotations(
        edit, template, [key for key in annotations if key in rows or key in to_claim.gone(ours)]
    )
    if stays := runtime_classes.check(class_of(template)):
        pod.notes.append(stays)
        return
    before = template_edit.take_runtime_class(edit, template)
    if before not in ("", template_edit.RUNTIME_CLASS):
        pod.notes.append(f"runtimeClassName was {before}")


def class_of(template: yaml.Node | None) -> str:
    return yaml_edit.scalars(get(template, "spec")).get("runtimeClassName", "")


def plain(container: yaml.Node) -> PodContainer:
    limits, requests = (yaml_edit.values(get(container, "resources", part)) for part in ("limits", "requests"))
    return PodContainer.of(yaml_edit.scalars(container).get("name", ""), limits, requests)


def leftovers(
    pod: TranslatedPod, template: yaml.Node, nodes: list[yaml.Node], annotations: dict[str, str], rows: Rows
) -> None:
    """Adds notes on other systems' parts that stay in the manifest."""
    for key in annotations:
        if key.startswith(THEIRS) and key not in rows:
            what = (
                f"stays without effect; write {PREFIX_KEY}{OURS[key]}" if key in OURS else "has no equivalent and stays"
            )
            pod.notes.append(f"annotation {key} {what}")
    for node in nodes:
        name = yaml_edit.scalars(node).get("name", "")
        for section in ("limits", "requests"):
            for key in yaml_edit.scalars(get(node, "resources", section)):
                if (key.startswith(THEIRS) or is_unread(key)) and key not in rows:
                    pod.notes.append(f"container {name}: resource {key} has no equivalent and stays")
    for key in yaml_edit.scalars(get(template, "spec", "nodeSelector")):
        if key.startswith(THEIRS):
            pod.notes.append(f"nodeSelector {key} stays; remove it if the nodes have no such label")
    scheduler = yaml_edit.scalars(get(template, "spec")).get("schedulerName", "")
    if scheduler.startswith(SCHEDULERS):
        pod.notes.append(f"schedulerName {scheduler} stays; gpu-hook needs no special scheduler")
    pod.notes[:] = dict.fromkeys(pod.notes)


# --- the check after the edit


def same_elsewhere(old: str, new: str, keys: Collection[str], claims: Collection[str] = ()) -> bool:
    """True if both are equal, as data and in order, except for annotations, runtimeClassName, the resources `keys`, and these
    claims with the documents of their templates at the end."""
    try:
        before, after = (list(yaml.load_all(text, yaml_edit.LOADER)) for text in (old, new))
    except (yaml.YAMLError, RecursionError):
        return False
    # deepcopy keeps aliases shared, and strip visits each object once, so nested aliases do not expand.
    after = after[: len(before)] if claims else after
    names = frozenset(claims)
    stripped = [strip(copy.deepcopy(documents), frozenset(keys), names, set()) for documents in (before, after)]
    return equal(stripped[0], stripped[1], set())


def strip(value: Any, keys: frozenset[str], claims: frozenset[str], seen: set[int]) -> Any:
    """Removes the edited parts from the data, in place; returns the data."""
    if id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, list):
        for item in value:
            strip(item, keys, claims, seen)
    elif isinstance(value, dict):
        for item in value.values():
            strip(item, keys, claims, seen)
        quotas.strip(value, keys)
        value.pop("runtimeClassName", None)
        value.pop("annotations", None)
        for section in ("resourceClaims", "claims") if claims else ():
            listed = value.get(section)
            if isinstance(listed, list):
                value[section] = [
                    item for item in listed if not isinstance(item, dict) or item.get("name") not in claims
                ]
                if not value[section]:
                    del value[section]
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
