"""Translates one pod's GPU requests: annotations and resources of any dialect -> our annotations for each container that asks.

The same dialect tables read annotations and resources, so both mean the same. Plain values in and out:
kube/manifests/translate.py has them from a manifest's text, kube/pod/mutate.py from the API server.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from oci_hook.core import collect, dialects, near_misses, validate
from oci_hook.core.collect import Wish
from oci_hook.core.layout import NODE_PLACEMENT, PREFIX_KEY
from oci_hook.core.request import Request, build, parse
from oci_hook.core.rules import Rules
from oci_hook.core.terms import GpuRequest, Terms
from oci_hook.core.units import show
from oci_hook.core.value import Value
from oci_hook.core.value_parsers import WITH_A_SHARE, ZERO, Bounded
from oci_hook.errors import Problem, RequestError, refuse
from oci_hook.kube.formats import quantity
from oci_hook.kube.formats.names import NODE_EXCLUSIVE
from oci_hook.kube.pod.asked import each

MAX_NAME = 63  # characters of an annotation key after the slash
MOST_OTHERS = 16  # resources of a container that are compared with those of all systems
# Beginnings of resources that give a GPU, or a part of one, by other systems' device plugins.
DEVICES = (
    *("nvidia.com/gpu", "nvidia.com/vgpu", "nvidia.com/mig-", "nvidia.com/vcuda-", "hami.io/", "volcano.sh/vgpu"),
    *(
        "tencent.com/",
        "tke.cloud.tencent.com/",
        "tensorstack.dev/",
        "elasticgpu.",
        "aliyun.com/gpu",
        "alibabacloud.com/gpu",
    ),
    *("koordinator.sh/gpu", "k8s.amazonaws.com/vgpu", "smarter-devices/nvidia"),
)
Rows = dict[str, tuple[str, Any]]  # key -> (its dialect, its row)


class PodContainer(Value):
    """A container of the pod. limits, requests: its resources, where they are whole numbers in plain digits."""

    name: str
    limits: Mapping[str, str]
    requests: Mapping[str, str]

    @classmethod
    def of(cls, name: object, limits: Mapping[str, object], requests: Mapping[str, object]) -> "PodContainer":
        """Of amounts as the API server or a manifest has them."""
        return cls(str(name), *({key: _digits(text) for key, text in part.items()} for part in (limits, requests)))

    @property
    def amounts(self) -> dict[str, str]:
        """All resources but those of which it asks for none."""
        return {key: text for key, text in {**self.requests, **self.limits}.items() if text != "0"}


def _digits(amount: object) -> str:
    """Leaves alone what is too large for any of our parsers, so that their error shows what the user wrote."""
    digits = quantity.plain(amount)
    return digits if len(digits) < 10 else str(amount)


class ManifestContainer:
    """One container of a template. wishes: from its resources and its pod's annotations. own: some of them are meant for it alone.
    words: our annotations for it; None if it requests nothing. lost: some of these do not fit into annotation keys."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wishes: list[Wish] = []
        self.own = False
        self.request: Request | None = None
        self.words: dict[str, str] | None = None
        self.lost = False


class TranslatedPod:
    """A pod template, for the report. part: its name among several of an object, "" for the only one. annotations: those that were
    added. claims: container -> its claim, as the pod calls it."""

    def __init__(self, kind: str, name: str, namespace: str = "", part: str = "") -> None:
        self.kind = kind
        self.name = name
        self.part = part
        self.namespace = namespace
        self.claims: dict[str, str] = {}
        self.containers: list[ManifestContainer] = []
        self.annotations: dict[str, str] = {}
        self.notes: list[str] = []

    def __str__(self) -> str:
        return f"{self.kind} {self.name or '(no name)'}" + (f" ({self.part})" if self.part else "")


def rows_of(rules: Rules, annotations: Iterable[str] = ()) -> Rows:
    """The keys of all dialects that these rules enable, with those of these annotations that name containers."""
    return {
        key: (name, row)
        for name in rules.dialects
        for key, row in {
            **dialects.rows(name, rules, annotations),
            **getattr(dialects.table(name), "OF_PODS", {}),
        }.items()
    }


def read_pod(
    pod: TranslatedPod,
    containers: Sequence[PodContainer],
    annotations: Mapping[str, str],
    rows: Rows,
    rules: Rules,
    first: str = "",
) -> None:
    """Sets the containers' requests, as the dialects in `rows` read them, and the pod's new annotations. Raises RequestError with
    every problem. first: the name of the pod's first container that is no init container."""
    problems: list[Problem] = []
    shared: list[Wish] = []
    of_all: list[Problem] = []
    named: dict[str, tuple[list[Wish], list[Problem]]] = {}
    for key in annotations:
        if key in rows and not key.startswith(PREFIX_KEY):  # ours stay; some are names of our resources as well
            dialect = rows[key][0]
            whom = dialects.whom(dialect, key, annotations) or (first if dialect == "kai" else "")
            if whom and whom not in [container.name for container in containers]:
                what = f"the pod has no container {show(whom)}; write the name of one of its containers"
                problems.append(Problem("GH-102", f"{collect.show_key(key)}: {what}"))
            read(rows[key], key, annotations[key], *(named.setdefault(whom, ([], [])) if whom else (shared, of_all)))
    for given in containers:
        container = ManifestContainer(given.name)
        pod.containers.append(container)
        its_wishes, its_problems = named.get(given.name, ([], []))
        own = [*of_all, *its_problems]
        container.wishes += [*shared, *its_wishes]
        for key, text in resources(given, rows, own).items():
            read(rows[key], key, text, container.wishes, own)
        container.own = any(wish.value != ZERO for wish in container.wishes[len(shared) :])
        own += misspelt(given, rows) if rules.near_misses != "warn" else []
        resolve(container, pod, own, rules)
        problems += [Problem(p.code, f"container {container.name}: {p.message}") for p in own]
    if problems:
        raise RequestError(*problems)
    asking = [container for container in pod.containers if container.words is not None]
    if asking:
        pod.annotations = in_annotations(pod, asking, not any(map(names_some, annotations)))
        order = [wish.text for wish in shared if wish.name == "node-placement" and wish.value]
        pod.annotations |= {NODE_PLACEMENT: order[0]} if order else {}
        check(pod, annotations)


def resources(container: PodContainer, rows: Rows, problems: list[Problem]) -> dict[str, str]:
    """The container's resources that are in `rows`; a resource's request must equal its limit."""
    limits, requests = container.limits, container.requests
    for key in limits:
        if key in rows and requests.get(key, limits[key]) != limits[key]:
            both = f"{key} is {show(limits[key])} in limits and {show(requests[key])} in requests"
            problems.append(Problem("GH-103", f"{both}; a share's request equals its limit, or is left out"))
    return {key: text for key, text in {**requests, **limits}.items() if key in rows}


def is_unread(resource: str) -> bool:
    """True for the resource of a system that shares or splits GPUs, which may be one of our dialects."""
    return resource.startswith(DEVICES)


def misspelt(container: PodContainer, rows: Rows) -> list[Problem]:
    """The resources that differ from one in `rows` by a slip in their domain, of as many as people have."""
    found = []
    for key in islice((key for key in container.amounts if key not in rows), MOST_OTHERS):
        if near := near_misses.in_near_domain(key, rows):
            what = f"resource {collect.show_key(key)} is not one that gpu-hook reads"
            found.append(Problem("GH-108", f"{what}; did you mean {near}?"))
    return found


def read(named: "tuple[str, Any]", key: str, text: str, found: list[Wish], problems: list[Problem]) -> None:
    dialect, row = named
    collect.read(row, key, text, False, dialect, found, problems)


def resolve(container: ManifestContainer, pod: TranslatedPod, problems: list[Problem], rules: Rules) -> None:
    """Sets the container's request and words from its wishes."""
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
    container.request = build(given, None, rules)
    if not problems:
        container.words = words(given)
        visible = validate.visible(given, rules)
        if visible != Terms().visible and not declined(container.request):
            container.words["visible"] = visible


def declined(request: Request | None) -> bool:
    return request is None or not request.gpus


def words(given: validate.Given) -> dict[str, str]:
    """The wishes as values of our annotations, in the order of our table."""
    found = {}
    for key in dialects.table(dialects.NATIVE).KEYS:
        value = given.value(key)
        if isinstance(value, Bounded) and given.partial:
            value = tuple(name for name in value if name in WITH_A_SHARE)
        if value is None or value is False or (key == "memory-request" and value == given.value("memory")):
            continue
        if key in ("memory", "memory-request"):
            kind, amount = value
            mib = f"{amount // 1024}Gi" if amount % 1024 == 0 else f"{amount}Mi"
            found[key] = f"{amount}%" if kind == "percent" else mib
        elif value is True:
            found[key] = "true"
        else:
            found[key] = ",".join(value) if isinstance(value, tuple) else str(value)
    return found


def in_annotations(pod: TranslatedPod, asking: Sequence[ManifestContainer], grows: bool) -> dict[str, str]:
    """Keys with the name of each container that requests: others may add containers to the pod later, which must not get the same.
    Keys without a suffix for what the pod's annotations say of all containers, and for names too long for others, if every container
    requests the same. grows: False if annotations of ours name containers, so that a container of another name gets nothing."""
    first = asking[0].words or {}
    own = grows and any(container.own for container in asking)
    if alike(pod) and not (own and all(fits(key, container) for container in asking for key in first)):
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


def alike(pod: TranslatedPod) -> bool:
    """Every container of the pod requests the same."""
    first = pod.containers[0].words
    return first is not None and all(container.words == first for container in pod.containers)


def names_some(key: str) -> bool:
    """True for an annotation of ours that may be for some containers only: those say already who gets nothing."""
    return key in (collect.CONTAINERS, collect.REQUEST) or (
        key.startswith(PREFIX_KEY) and collect.split(key)[1] is not None
    )


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


def check(pod: TranslatedPod, annotations: Mapping[str, str]) -> None:
    """Checks that the new annotations, with ours from before, request the same as the old ones. Raises RequestError if not."""
    ours = {key: text for key, text in annotations.items() if key.startswith(PREFIX_KEY)}
    problems = []
    for key, value in pod.annotations.items():
        of_all = PREFIX_KEY + collect.split(key)[0] if alike(pod) else key
        for given in dict.fromkeys((key, of_all)):
            if ours.get(given, value) != value:
                what = f"{given}={show(ours[given])} is set, but the resources mean {show(value)}; remove one"
                problems.append(Problem("GH-103", what))
    plain = Rules(dialects=())
    all_ours = {**ours, **pod.annotations}
    words_of = each(all_ours, [container.name for container in pod.containers])
    requests: dict[str, Request | None] = {}
    for container, (name, mine) in zip(pod.containers, words_of, strict=True):
        try:
            request = parse(mine, {}, name, plain, decode=json.loads)
        except RequestError as e:
            problems += [Problem(p.code, f"container {container.name}: {p.message}") for p in e.problems]
            continue
        requests[name] = request
        if not ours and not container.lost and request != container.request:
            why = "its request cannot be expressed in annotations; write them by hand"
            problems.append(Problem("GH-107", f"container {container.name}: {why}"))
    if problems:
        raise RequestError(*problems)
    check_node_exclusive(all_ours, requests)


def check_node_exclusive(annotations: Mapping[str, str], requests: Mapping[str, Request | None]) -> None:
    """If a container asks for the whole node, no other container of its pod may ask for a GPU."""
    if not is_node_exclusive(annotations):
        return
    asking = [name for name, request in requests.items() if request and request.gpus]
    if len(asking) > 1:
        which = f"containers {', '.join(asking[:3])} ask for GPUs"
        raise refuse("GH-103", f"{which}, and one of them for the whole node; then only that one may ask")


def is_node_exclusive(annotations: Mapping[str, str]) -> bool:
    """True if the pod asks for a node of its own."""
    return any(key == NODE_EXCLUSIVE or key.startswith(f"{NODE_EXCLUSIVE}.") for key in annotations)
