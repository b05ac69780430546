"""The create webhook's decision: a new pod -> the patch that makes it ours, or problems.

A pod that asks for a GPU, in any dialect, gets our annotations for each container that asks, the sums as extended resources,
our runtime class, and the tolerations that it needs. Other pods stay as they are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oci_hook.core import collect, dialects, near_misses, units, value_parsers
from oci_hook.core.decision import MAX_GPUS
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.units import show
from oci_hook.core.value import Value
from oci_hook.core.value_parsers import Amount
from oci_hook.errors import Problem, RequestError, refuse
from oci_hook.kube.formats import names, sums
from oci_hook.kube.pod import reach, runtime_classes
from oci_hook.kube.pod.asked import MAX_CONTAINERS, check_size, each, of_the_pod
from oci_hook.kube.pod.translate_pod import (
    PodContainer,
    Rows,
    TranslatedPod,
    check_node_exclusive,
    is_unread,
    read_pod,
    rows_of,
)

MIRROR = "kubernetes.io/config.mirror"  # the API server's copy of a static pod: the kubelet has started it already
ASKED_VERSION = "1"
# Other systems' schedulers, which do not run beside gpu-hook.
SCHEDULERS = (
    "t9k-scheduler",
    "qgpu-scheduler",
    "hami-scheduler",
    "vgpu-scheduler",
    "gpu-admission",
    "kai-scheduler",
    "runai-scheduler",
)
T9K_PREFIX = "tensorstack.dev/"
QGPU_CORE, QGPU_STEP = "tke.cloud.tencent.com/qgpu-core", 5
MAX_ANNOTATIONS = 256 << 10  # the API server's bound of all keys and values of an object
ROOM_FOR_DECISION = 512  # of annotation ALLOC without its shares: key, uid, the longest node name, signature
ROOM_FOR_SHARE = 128  # a UUID and three numbers; one more for the terms
WHOLE_MODE, SHARED_MODE = "xgn", "sgn"
MOST_WORDS = 100_000  # annotations times containers; every pair is read: 0.3 s
ODD, ODD_COSTS = ("gpu", "cuda", "nvidia", "hook.io"), 100  # such keys are compared with all known ones


class WebhookOptions(Value):
    """rules: the cluster's dialects, qGPU unit, steps, and default amounts. scheduler: replaces other systems' schedulers. modes:
    the T9k modes of the cluster's nodes. queue_label: gets the value of T9k's group name; "" for none."""

    rules: Rules
    scheduler: str = "default-scheduler"
    modes: frozenset[str] = frozenset()
    queue_label: str = ""


class Mutation(Value):
    """patch: operations of RFC 6902; () for no change. asks: whether the pod asks for a GPU. warnings: for people."""

    patch: tuple[dict[str, Any], ...] = ()
    asks: bool = False
    warnings: tuple[Problem, ...] = ()


def mutate(pod: Mapping[str, Any], options: WebhookOptions) -> Mutation:
    """Raises RequestError GH-101 to GH-108 and GH-602, ApplyError GH-403, and ClusterError GH-605, with every problem of the pod."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    annotations = dict(metadata.get("annotations") or {})
    if MIRROR in annotations:
        return Mutation()
    for key in annotations:
        if key.startswith(names.DECIDED):
            raise refuse("GH-605", f"{key[:80]} is in the pod, but only gpu-hook may write it; remove it")
    listed = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    rows = rows_of(options.rules, annotations)
    if names.ASKED not in annotations:
        rows |= our_resources()
    asking = [key for key in annotations if key in rows or key.startswith(names.PREFIX_KEY)]
    if asking or any(has_one_of(container, rows) for container in listed):
        check_size(annotations, asking, len(listed))
    elif len(listed) > MAX_CONTAINERS:
        return Mutation()  # it asks for nothing, and looking for misspelt keys would take long
    check_number(annotations, len(listed))
    found = TranslatedPod("Pod", str(metadata.get("name") or metadata.get("generateName") or ""))
    try:
        running = next((str(c.get("name")) for c in spec.get("containers") or ()), "")
        read_pod(found, [container_of(c) for c in listed], annotations, rows, options.rules, running)
    except RequestError as e:
        raise RequestError(*dict.fromkeys([*e.problems, *own_problems(annotations, listed, options.rules)])) from None
    check_steps(listed, annotations, options.rules)
    kept = {key: text for key, text in annotations.items() if key not in rows or key.startswith(names.PREFIX_KEY)}
    made = {**kept, **found.annotations}
    check_names(annotations, [str(container.get("name")) for container in listed])
    requests = requests_of(made, listed, options.rules)
    warnings = (*misses(made, listed, requests, options.rules), *unread(listed, rows))
    if others := reach.without_privileged(listed, made, requests):
        bare = [name[:63] for name, request in requests.items() if request is not None and name not in others]
        made[collect.CONTAINERS] = ",".join(others)
        check_size(made, [key for key in made if key.startswith(names.PREFIX_KEY)], len(listed))
        requests = requests_of(made, listed, options.rules)
        what = f"privileged, and gets no share: {', '.join(bare[:3])}; the pod's keys are for {', '.join(others[:3])} alone"
        warnings = (*warnings, Problem("GH-403", what))
    if not any(requests.values()):
        if names.ASKED in annotations:  # with it, our resources would pass for totals that we wrote
            raise refuse("GH-605", f"{names.ASKED} is in the pod, which asks for no GPU; remove it")
        return Mutation(warnings=(*warnings, *of_systems_that_are_off(listed, options.rules)))
    if stays := runtime_classes.check(str(spec.get("runtimeClassName") or "")):
        warnings = (*warnings, Problem("GH-103", stays))
    check_node_exclusive(made, requests)
    made[names.ASKED] = ASKED_VERSION
    check_room(made, requests)
    first = spec.get("initContainers") or ()
    each_has = {name: sums.of_request(request) for name, request in requests.items()}
    init = [(each_has[c["name"]], c.get("restartPolicy") == "Always") for c in first]  # Kubernetes 1.28: sidecars
    total = sums.of_pod([each_has[c["name"]] for c in spec.get("containers") or ()], init)
    patch = [
        *labels_patch(metadata, options),
        replace("/metadata/annotations", made),
        *([] if stays else runtime_class_patch(spec)),
        *resources_patch(spec, rows, total),
        *scheduler_patch(spec, options),
        *mode_patch(spec, listed, annotations, requests, options),
    ]
    warnings = (*warnings, *reach.warnings(spec, listed, requests), *of_its_node(spec))
    return Mutation(tuple(patch), True, (*warnings, *of_a_bare_pod(pod, rows, patch)))


def has_one_of(container: Mapping[str, Any], rows: Rows) -> bool:
    resources = container.get("resources") or {}
    return any(key in rows for part in ("limits", "requests") for key in resources.get(part) or ())


def check_number(annotations: Mapping[str, str], containers: int) -> None:
    """Bounds the time that one pod can cost the webhook."""
    odd = sum(not key.startswith(names.PREFIX_KEY) and is_odd(key) for key in annotations)
    if (len(annotations) + ODD_COSTS * odd) * containers > MOST_WORDS:
        what = (
            f"the pod has {len(annotations)} annotations, {odd} of them perhaps misspelt, and {containers} containers"
        )
        raise refuse("GH-105", f"{what}: too many to check; remove some")


def container_of(container: Mapping[str, Any]) -> PodContainer:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return PodContainer.of(container.get("name"), limits, requests)


def our_resources() -> Rows:
    """Our sums read as requests: in a new pod, the user wrote them for the container. Later they are our own totals."""
    native = dialects.NATIVE
    return {
        names.GPUS: (native, ("gpus", Amount(value_parsers.gpu_count, value_parsers.ZERO), {})),
        names.MEMORY: (native, ("memory", Amount(value_parsers.memory_mb), {})),
        names.COMPUTE: (native, ("compute", Amount(units.percent), {})),
    }


def requests_of(
    annotations: dict[str, str], containers: Sequence[Mapping[str, Any]], rules: Rules
) -> dict[str, Request | None]:
    """Container name -> its request, as the node will read it."""
    ours = rules.replace(dialects=())
    found: dict[str, Request | None] = {}
    problems: list[Problem] = []
    for name, mine in each(annotations, [str(container.get("name")) for container in containers]):
        try:
            found[name] = parse(mine, {}, name, ours, decode=json.loads)
        except RequestError as e:
            problems += [Problem(p.code, f"container {name}: {p.message}") for p in e.problems]
    problems += of_the_pod(annotations, sum(request is not None for request in found.values()))
    if problems:
        raise RequestError(*problems)
    return found


def check_names(annotations: Mapping[str, str], containers: Sequence[str]) -> None:
    """A key of ours with a container's name must name one of the pod's. The node cannot check this: it sees one container."""
    for key in annotations:
        name, suffix = collect.split(key) if key.startswith(names.PREFIX_KEY) else ("", None)
        if suffix and suffix not in containers and name in dialects.table(dialects.NATIVE).KEYS:
            have = ", ".join(containers[:5])
            raise refuse("GH-102", f"{collect.show_key(key)}: the pod has no container {suffix[:60]}; it has {have}")


def check_steps(containers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str], rules: Rules) -> None:
    """With the profile qgpu, compute below a whole GPU comes in qGPU's steps of 5 per cent
    (https://cloud.tencent.com/document/product/457/61448)."""
    if rules.profile != "qgpu":
        return
    for container in containers:
        given = container_of(container)
        text = given.limits.get(QGPU_CORE) or given.requests.get(QGPU_CORE) or annotations.get(QGPU_CORE) or "0"
        amount = units.natural(text)
        if amount % QGPU_STEP:
            what = f"container {given.name}: {QGPU_CORE}={show(text)} is not a multiple of {QGPU_STEP}"
            raise refuse("GH-101", f"{what}; with the profile qgpu, write {amount - amount % QGPU_STEP + QGPU_STEP}")


def misses(
    annotations: dict[str, str],
    containers: Sequence[Mapping[str, Any]],
    requests: Mapping[str, Request | None],
    rules: Rules,
) -> tuple[Problem, ...]:
    """Warnings about annotations that look like misspelt GPU requests. Raises RequestError if one surely is, unless the rules
    make near misses warnings."""
    found: dict[Problem, bool] = {}
    for name, mine in suspicious(annotations, [str(container.get("name")) for container in containers]):
        for miss in near_misses.in_annotations(mine, name, rules, requests[name] is not None):
            found[miss.problem] = found.get(miss.problem, False) or miss.sure
    sure = [problem for problem, is_sure in found.items() if is_sure]
    if sure and rules.near_misses != "warn":
        raise RequestError(*sure)
    return tuple(found)


def suspicious(annotations: Mapping[str, str], containers: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Each container with the annotations that may be misspelt for it, so without those that name another container. One key for
    an impossible container name stands for these, to show that the pod asks."""
    named: dict[str, dict[str, str]] = {name: {} for name in containers}
    rest: dict[str, str] = {}
    for key, text in annotations.items():
        word, suffix = collect.split(key) if key.startswith(names.PREFIX_KEY) else ("", None)
        if suffix in named:
            named[suffix][key] = text
            if word in near_misses.ASKING_KEYS:
                rest[f"{names.PREFIX_KEY}memory.-"] = text
        elif word or is_odd(key) or dialects.is_known(dialects.NAMES, key):
            rest[key] = text
    return [(name, {**rest, **named[name]}) for name in containers]


def is_odd(key: str) -> bool:
    low = key.lower()
    return any(part in low for part in ODD)


def own_problems(
    annotations: dict[str, str], containers: Sequence[Mapping[str, Any]], rules: Rules
) -> tuple[Problem, ...]:
    """Problems of our own annotations, to report them together with the pod's other problems."""
    try:
        requests_of(annotations, containers, rules)
    except RequestError as e:
        return e.problems
    return ()


def check_room(annotations: Mapping[str, str], requests: Mapping[str, Request | None]) -> None:
    """The decision must fit beside the annotations. If they exceed the API server's bound, every write of the pod's status fails,
    so it cannot even be deleted."""
    used = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    room = ROOM_FOR_DECISION
    for name, request in requests.items():
        if request is not None:
            room += 2 * len(name) + ROOM_FOR_SHARE * (MAX_GPUS if request.every_gpu else len(request.gpus) + 1)
    if used + room > MAX_ANNOTATIONS:
        most = f"{MAX_ANNOTATIONS - room} are allowed beside the {room} that gpu-hook needs"
        raise refuse("GH-105", f"the pod's annotations have {used} bytes, {most}; shorten the longest")


def of_systems_that_are_off(containers: Sequence[Mapping[str, Any]], rules: Rules) -> list[Problem]:
    """Warnings about resources of dialects that are off. They are correct if that system runs beside us."""
    off = tuple(name for name in dialects.NAMES if name not in rules.dialects)
    rows = rows_of(rules.replace(dialects=off))
    found: dict[str, Problem] = {}
    for container in containers:
        for key in container_of(container).amounts:
            if key in rows:
                why = f"the controller's setting dialects does not include {rows[key][0]}"
                found[key] = Problem("GH-108", f"{key} has no effect here: {why}")
    return list(found.values())


def unread(containers: Sequence[Mapping[str, Any]], rows: Rows) -> list[Problem]:
    """Warnings about shares and parts of GPUs that no dialect of ours has, on or off."""
    keys = {key: None for container in containers for key in container_of(container).amounts if is_unread(key)}
    if not keys:
        return []
    off = rows_of(Rules(dialects=dialects.NAMES, qgpu_memory_unit="GiB"))
    why = "is not read by gpu-hook: only a node with that system's device plugin has it"
    found = [key for key in keys if key not in rows and key not in off]
    return [
        Problem("GH-108", f"{collect.show_key(key)} {why}; or ask by {names.PREFIX_KEY}memory") for key in found[:8]
    ]


def of_its_node(spec: Mapping[str, Any]) -> list[Problem]:
    """A warning to a pod that names its node: no Binding is made of it, so nobody decides about its GPUs."""
    if not (node := str(spec.get("nodeName") or "")):
        return []
    why = "spec.nodeName passes by the scheduler, so the pod gets no decision, and a node with cluster=required refuses it"
    return [Problem("GH-601", f"{why}; write nodeSelector: {{kubernetes.io/hostname: {node[:63]}}} instead")]


def of_a_bare_pod(pod: Mapping[str, Any], rows: Rows, patch: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """A warning to a pod of which the patch changes what its manifest says and nobody may change later. A workload's pods are made
    by their owner, of its template, which stays as it was."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if meta.get("ownerReferences") or not meta.get("name"):
        return []
    listed = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    lost = ["resources"] if any(has_one_of(container, rows) for container in listed) else []
    lost += [
        field
        for field in ("runtimeClassName", "schedulerName")
        if spec.get(field) and any(operation["path"] == f"/spec/{field}" for operation in patch)
    ]
    if not lost:
        return []
    why = f"gpu-hook replaced {' and '.join(lost)} of this bare Pod: applying it again fails, as these cannot change"
    return [Problem("GH-103", f"{why}; apply what `gpu-hook translate` makes of it, or use a Deployment or Job")]


def labels_patch(metadata: Mapping[str, Any], options: WebhookOptions) -> list[dict[str, Any]]:
    """Copies T9k's group name to the queue label, if the cluster has one."""
    labels = dict(metadata.get("labels") or {})
    group = labels.get(names.T9K_GROUP)
    if not (options.queue_label and group) or options.queue_label in labels:
        return []
    return [replace("/metadata/labels", {**labels, options.queue_label: group})]


def runtime_class_patch(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    if spec.get("runtimeClassName") == names.RUNTIME_CLASS:
        return []
    done = [replace("/spec/runtimeClassName", names.RUNTIME_CLASS)]
    if "overhead" in spec and spec.get("runtimeClassName"):
        done.append(
            {"op": "remove", "path": "/spec/overhead"}
        )  # of the replaced class; the API server set it before us
    return done


def resources_patch(spec: Mapping[str, Any], rows: Rows, total: sums.Sums) -> list[dict[str, Any]]:
    """Removes other systems' resources, and puts the pod's sums on its first container. Others stay, claims too."""
    done = []
    for section in ("initContainers", "containers"):
        for place, container in enumerate(spec.get(section) or ()):
            old = container.get("resources") or {}
            new = dict(old)
            first = section == "containers" and place == 0
            for part in ("limits", "requests"):
                given = old.get(part) or {}
                kept = {key: amount for key, amount in given.items() if key not in rows and key not in names.SUMS}
                if first:
                    kept |= {key: str(amount) for key, amount in total.items()}
                if kept:
                    new[part] = kept
                elif given:
                    del new[part]
            if new != old:
                done.append(replace(f"/spec/{section}/{place}/resources", new))
    return done


def scheduler_patch(spec: Mapping[str, Any], options: WebhookOptions) -> list[dict[str, Any]]:
    if spec.get("schedulerName") not in SCHEDULERS or spec.get("schedulerName") == options.scheduler:
        return []
    return [replace("/spec/schedulerName", options.scheduler)]


def mode_patch(
    spec: Mapping[str, Any],
    containers: Sequence[Mapping[str, Any]],
    annotations: Mapping[str, str],
    requests: Mapping[str, Request | None],
    options: WebhookOptions,
) -> list[dict[str, Any]]:
    """T9k's node modes. A pod that asks for whole GPUs tolerates the taint of nodes for such pods only. A pod in T9k's dialect goes
    to nodes of its mode, if the cluster has any."""
    whole = any(request and request.exclusive for request in requests.values())
    done = []
    tolerations = list(spec.get("tolerations") or ())
    toleration = {"key": names.T9K_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    if whole and toleration not in tolerations:
        done.append(replace("/spec/tolerations", [*tolerations, toleration]))
    mode = WHOLE_MODE if whole else SHARED_MODE
    selector = dict(spec.get("nodeSelector") or {})
    if mode in options.modes and names.T9K_MODE not in selector and in_t9k_words(containers, annotations):
        done.append(replace("/spec/nodeSelector", {**selector, names.T9K_MODE: mode}))
    return done


def in_t9k_words(containers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str]) -> bool:
    keys = [*annotations]
    for container in containers:
        keys += container_of(container).amounts
    return any(key.startswith(T9K_PREFIX) for key in keys)


def replace(path: str, value: Any) -> dict[str, Any]:
    """RFC 6902, section 4.1: "add" replaces a member that exists."""
    return {"op": "add", "path": path, "value": value}
