"""A pod as the controller needs it: whose it is, its containers in order, and what they ask for."""

import json
from typing import Any

from oci_hook.core.collect import split
from oci_hook.core.decision import MAX_CONTAINERS as MAX_DECIDED
from oci_hook.core.layout import NO_REQUEST
from oci_hook.core.request import Request, parse
from oci_hook.core.rules import Rules
from oci_hook.core.units import show
from oci_hook.core.value import Value
from oci_hook.errors import Problem, RequestError
from oci_hook.kube.names import NODE_EXCLUSIVE, NODE_PLACEMENT, PREFIX_KEY

RUN, SIDECAR, INIT = "run", "sidecar", "init"  # a sidecar: an init container that stays (restartPolicy: Always)
PLACEMENTS = ("binpack", "spread")
MAX_CONTAINERS = 128  # each is parsed by itself
ENDED = ("Succeeded", "Failed")

Asked = tuple[tuple[str, str, Request], ...]  # (container, RUN | SIDECAR | INIT, what it asks for), in the pod's order


class PodWords(Value):
    """What a pod says before it has a node. containers: (name, RUN | SIDECAR | INIT), in the order in which they start.
    annotations: ours alone. daemon: a DaemonSet's, or from a static manifest: every node has it. may_preempt: its
    preemptionPolicy is not Never."""

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
        """Whether it wants a node without other pods but DaemonSets'."""
        return any(key == NODE_EXCLUSIVE or key.startswith(NODE_EXCLUSIVE + ".") for key in self.annotations)


def words(pod: dict[str, Any]) -> PodWords:
    """Of an API object. Raises KeyError, TypeError or AttributeError for what is no pod."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k.startswith(PREFIX_KEY)}
    containers = [
        (container["name"], SIDECAR if container.get("restartPolicy") == "Always" else INIT)
        for container in spec.get("initContainers") or ()
    ]
    containers += [(container["name"], RUN) for container in spec.get("containers") or ()]
    return PodWords(
        meta["uid"],
        meta["namespace"],
        meta["name"],
        tuple(containers),
        annotations,
        is_daemon(meta),
        spec.get("priority") or 0,
        spec.get("preemptionPolicy") != "Never",
    )


def is_daemon(meta: dict[str, Any]) -> bool:
    """A static pod's owner is its Node."""
    return any(owner.get("kind") in ("DaemonSet", "Node") for owner in meta.get("ownerReferences") or ())


def asked(pod: PodWords, rules: Rules) -> Asked:
    """What its containers ask for under a node's rules; () for a pod that asks for nothing. Raises RequestError, each
    problem with its container's name."""
    if not pod.annotations:
        return ()
    if len(pod.containers) > MAX_CONTAINERS:
        what = f"the pod has {len(pod.containers)} containers, {MAX_CONTAINERS} are allowed where one asks for a GPU"
        raise RequestError(Problem("GH-105", f"{what}; use more pods"))
    found: list[tuple[str, str, Request]] = []
    problems: list[Problem] = []
    plain = rules.replace(dialects=())  # the create webhook has translated other systems' words
    named = {split(key)[1] for key in pod.annotations if key not in NO_REQUEST}
    for n, (name, kind) in enumerate(pod.containers):
        if n and named.isdisjoint((None, name)):
            continue  # not a word is for this one; what is wrong with the others' was seen with the first
        try:
            request = parse(pod.annotations, {}, name, plain, decode=json.loads)
        except RequestError as e:
            problems += [Problem(p.code, f"container {name[:60]}: {p.message}") for p in e.problems]
            continue
        if request is not None:
            found.append((name, kind, request))
    placement = pod.annotations.get(NODE_PLACEMENT)
    if placement is not None and placement not in PLACEMENTS:
        problems.append(Problem("GH-101", f"{NODE_PLACEMENT}={show(placement)} is not one of {', '.join(PLACEMENTS)}"))
    if (
        len(found) > MAX_DECIDED
    ):  # else it would keep room, and others would end for it, in vain: no Binding has the decision
        what = f"{len(found)} containers ask for a GPU, a decision has {MAX_DECIDED} at most"
        problems.append(Problem("GH-602", f"{what}; have fewer containers ask"))
    if problems:
        raise RequestError(*problems)
    return tuple(found)
