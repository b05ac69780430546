"""A pod as the controller needs it: its identity, its containers in order, and their requests."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from oci_hook.core import dialects, units
from oci_hook.core.collect import CONTAINERS, REQUEST, is_name, split
from oci_hook.core.decision import MAX_CONTAINERS as MAX_DECIDED
from oci_hook.core.layout import NO_REQUEST
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.units import show
from oci_hook.core.value import Value
from oci_hook.errors import Problem, RequestError
from oci_hook.kube.formats.names import APART_FROM, NODE_EXCLUSIVE, NODE_PLACEMENT, PREFIX_KEY
from oci_hook.kube.pod.node_orders import NODE_ORDERS

RUN, SIDECAR, INIT = "run", "sidecar", "init"  # a sidecar: an init container that keeps running (restartPolicy: Always)
MAX_CONTAINERS = 128  # each is parsed by itself
MAX_WORDS = 32 << 10  # characters of all annotations that ask: three for each container, with long names
MAX_WORD = 4 << 10  # of an annotation that is read for each container
MOST_OTHER = 64  # characters of an annotation of ours that asks for nothing
ENDED = ("Succeeded", "Failed")
DAEMONS = ("apps/v1", "DaemonSet"), ("v1", "Node")

Asked = tuple[tuple[str, str, Request], ...]  # (container, RUN | SIDECAR | INIT, its request), in the pod's order


class PodWords(Value):
    """A pod before it has a node. containers: (name, RUN | SIDECAR | INIT), in the order in which they start. annotations: ours
    only. daemon: owned by a DaemonSet or a static pod. may_preempt: its preemptionPolicy is not Never."""

    uid: str
    namespace: str
    name: str
    containers: tuple[tuple[str, str], ...]
    annotations: dict[str, str]
    daemon: bool
    priority: int
    may_preempt: bool = True

    @property
    def whole_node(self) -> bool:
        """True if it wants a node without other pods, except DaemonSets'."""
        return any(key == NODE_EXCLUSIVE or key.startswith(NODE_EXCLUSIVE + ".") for key in self.annotations)


def words(pod: dict[str, Any]) -> PodWords:
    """Reads an API object; of too many containers or words, just enough to exceed the limit, since whoever may create pods fills
    the controller's memory with them. Raises KeyError, TypeError or AttributeError for an invalid one."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    containers = [
        (container["name"], SIDECAR if container.get("restartPolicy") == "Always" else INIT)
        for container in islice(spec.get("initContainers") or (), MAX_CONTAINERS + 1)
    ]
    containers += [(container["name"], RUN) for container in islice(spec.get("containers") or (), MAX_CONTAINERS + 1)]
    return PodWords(
        meta["uid"],
        meta["namespace"],
        meta["name"],
        tuple(containers),
        _kept(meta.get("annotations") or {}),
        is_daemon(meta),
        spec.get("priority") or 0,
        spec.get("preemptionPolicy") != "Never",
    )


def _kept(annotations: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    size = 0
    for key, text in annotations.items():
        if not key.startswith(PREFIX_KEY) or size > MAX_WORDS:
            continue
        most = MOST_OTHER if key in NO_REQUEST else MAX_WORDS + 1
        # A manifest may have a number here, which is refused later.
        found[key] = text[:most] if isinstance(text, str) else text
        size += 0 if key in NO_REQUEST else len(key) + len(str(text))
    return found


def is_daemon(meta: dict[str, Any]) -> bool:
    """True if a DaemonSet owns the pod, or it is static; a static pod's owner is its Node. Its creator writes that himself, but the
    garbage collector ends a pod whose owner of these kinds does not exist."""
    owners = meta.get("ownerReferences") or ()
    return any((owner.get("apiVersion"), owner.get("kind")) in DAEMONS and owner.get("controller") for owner in owners)


def is_tried(pod: Mapping[str, Any]) -> bool:
    """True if the scheduler tries to place the pod, an API object without a node: no gate holds it, nor is it to end."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    return not (spec.get("schedulingGates") or meta.get("deletionTimestamp") or status.get("phase") in ENDED)


def asked(pod: PodWords, rules: Rules) -> Asked:
    """The containers' requests under a node's rules; () for a pod that requests no GPU. Raises RequestError, each problem with
    its container's name."""
    if not pod.annotations:
        return ()
    check_size(pod.annotations, pod.annotations, len(pod.containers))
    found: list[tuple[str, str, Request]] = []
    problems: list[Problem] = []
    plain = rules.replace(dialects=())  # the create webhook has translated other systems' words
    kinds = [kind for _, kind in pod.containers]
    for (name, mine), kind in zip(each(pod.annotations, [name for name, _ in pod.containers]), kinds, strict=True):
        if not mine:
            continue
        try:
            request = parse(mine, {}, name, plain, decode=json.loads)
        except RequestError as e:
            problems += [Problem(p.code, f"container {name[:60]}: {p.message}") for p in e.problems]
            continue
        if request is not None:
            if request.terms.apart_from:
                request = request.replace(terms=request.terms.replace(apart_from=apart_word(pod, name)))
            found.append((name, kind, request))
    problems += of_the_pod(pod.annotations, len(found))
    if problems:
        raise RequestError(*problems)
    return tuple(found)


def of_the_pod(annotations: Mapping[str, str], asking: int) -> list[Problem]:
    """Problems of the pod that are no container's. asking: the number of containers that ask for a GPU."""
    problems = []
    placement = annotations.get(NODE_PLACEMENT)
    if placement is not None and placement not in NODE_ORDERS:
        what = f"{NODE_PLACEMENT}={show(placement)} is not one of"
        problems.append(Problem("GH-101", f"{what} {', '.join(NODE_ORDERS)}"))
    # No Binding could carry such a decision, so the pod must not reserve room or preempt others.
    if asking > MAX_DECIDED:
        what = f"{asking} containers ask for a GPU, a decision has {MAX_DECIDED} at most"
        problems.append(Problem("GH-602", f"{what}; have fewer containers ask"))
    return problems


def apart_word(pod: PodWords, container: str) -> str:
    """What apart-from says for a container, with the pod's namespace: words of different ones are different."""
    word = pod.annotations.get(f"{APART_FROM}.{container}", pod.annotations.get(APART_FROM, ""))
    return f"{pod.namespace}/{word}" if word else ""


def check_size(annotations: Mapping[str, str], asking: Iterable[str], containers: int) -> None:
    """Bounds the time that one pod can cost the controller. asking: the annotations that ask, in any dialect. Raises
    RequestError."""
    if containers > MAX_CONTAINERS:
        what = f"the pod has more than {MAX_CONTAINERS} containers, the most for a pod that asks for a GPU"
        raise RequestError(Problem("GH-105", f"{what}; use more pods"))
    sizes = {key: len(key) + len(str(annotations[key])) for key in asking if key not in NO_REQUEST}
    if sum(sizes.values()) > MAX_WORDS:
        what = f"the annotations that ask for GPUs have {sum(sizes.values())} characters"
        raise RequestError(Problem("GH-105", f"{what}, {MAX_WORDS} are allowed in one pod; shorten the longest"))
    for key, size in sizes.items():
        if size > MAX_WORD and key not in (CONTAINERS, REQUEST):
            raise RequestError(_too_long(key, size))


def _too_long(key: str, size: int) -> Problem:
    return Problem("GH-105", f"{key[:80]} has {size} characters, {MAX_WORD} are allowed; shorten it")


def each(annotations: Mapping[str, str], containers: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Each container with the annotations that may apply to it. The first also gets the rest, so their errors appear once."""
    ours = {key: text for key, text in annotations.items() if key.startswith(PREFIX_KEY) and key not in NO_REQUEST}
    native = dialects.table(dialects.NATIVE).KEYS
    named: dict[str, dict[str, str]] = {}
    shared: dict[str, str] = {}
    for key, text in ours.items():
        name, suffix = split(key)
        if suffix is not None:
            named.setdefault(suffix, {})[key] = text
        elif name in native:
            shared[key] = text
    listed = _listed(ours[CONTAINERS], containers) if CONTAINERS in ours else None
    if listed:
        shared[CONTAINERS] = listed
    said = _decoded(ours.get(REQUEST))
    if REQUEST in ours and said is not None and not isinstance(said, dict):
        if len(ours[REQUEST]) > MAX_WORD:
            raise RequestError(_too_long(REQUEST, len(ours[REQUEST])))
        shared[REQUEST] = ours[REQUEST]
    found = []
    for n, name in enumerate(containers):
        mine = {**shared, **named.get(name, {})}
        if isinstance(said, dict) and name in said:
            mine[REQUEST] = json.dumps({name: said[name]})
        found.append((name, mine if n else ours))
    return found


def _listed(text: str, containers: Sequence[str]) -> str:
    """The list without names that are no container of the pod; "" if it cannot be read."""
    try:
        listed = units.names(text)
    except (ValueError, AttributeError):
        return ""
    if not all(map(is_name, listed)):
        return ""
    return ",".join(set(listed).intersection(containers)) or listed[0]


def _decoded(text: str | None) -> Any:
    """None if it cannot be read."""
    try:
        return json.loads(text.replace("\n", " ").replace("\t", " ")) if text is not None else None
    except (ValueError, AttributeError, RecursionError):
        return None
