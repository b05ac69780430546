"""A dry run for pods that must run together: whether all have room at once. It reserves nothing. For a program, only GPUs count: it
judges CPU, taints and labels itself.

The pods are placed in the real state one after another, as the filter would, and then removed. The function never yields in between,
so no other request sees them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from oci_hook.core.value import Value
from oci_hook.errors import GhError, Problem
from oci_hook.kube.formats.sums import Amounts
from oci_hook.kube.placing.choose import PLAIN, Chosen, NodeRefusal, Question, choose, summary
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod import mutate
from oci_hook.kube.pod.asked import PodWords, words
from oci_hook.kube.pod.hosts import Hosts, requests

MOST_PODS = 1024  # of one dry run
MOST_ROLES = 128
TOO_LONG = Problem("GH-607", "not tried: the dry run takes too long; ask for fewer pods")


class Role(Value):
    """`count` equal pods. problem: the reason why the create webhook would refuse such a pod. obj: such a pod as the create webhook
    would make it; None if no caller needs it."""

    name: str
    count: int
    pod: PodWords
    problem: Problem | None = None
    obj: dict[str, Any] | None = None


class Outcome(Value):
    """placed: (node, number of pods). why: the reason for the others; None if all have room."""

    name: str
    count: int
    placed: tuple[tuple[str, int], ...]
    why: Problem | None = None

    @property
    def fits(self) -> int:
        return sum(count for _, count in self.placed)


class DryRunAnswer(Value):
    """all_fit: every pod has room beside the others."""

    all_fit: bool
    roles: tuple[Outcome, ...]


def dry_run(
    state: ClusterState,
    roles: Sequence[Role],
    nodes: Collection[str] | None = None,
    enough: Callable[[], bool] = lambda: False,
    hosts: Hosts | None = None,
) -> DryRunAnswer:
    """Places the roles in the given order; if that fails, the large ones first. nodes: the candidates; None for all. enough: whether to
    stop, asked before each pod. hosts: judges the nodes' other resources; None to look at GPUs only."""
    answer = _place(state, roles, nodes, enough, hosts)
    if answer.all_fit or len(roles) < 2:
        return answer
    order = sorted(range(len(roles)), key=lambda i: _size(roles[i].pod), reverse=True)
    if order == list(range(len(roles))):
        return answer
    other = _place(state, [roles[i] for i in order], nodes, enough, hosts)
    if sum(each.fits for each in other.roles) <= sum(each.fits for each in answer.roles):
        return answer
    back = dict(zip(order, other.roles, strict=True))
    return DryRunAnswer(other.all_fit, tuple(back[i] for i in range(len(roles))))


def _place(
    state: ClusterState,
    roles: Sequence[Role],
    nodes: Collection[str] | None,
    enough: Callable[[], bool],
    hosts: Hosts | None,
) -> DryRunAnswer:
    taken: list[tuple[str, str, Amounts]] = []
    outcomes = []
    try:
        for number, role in enumerate(roles):
            placed: dict[str, int] = {}
            why = role.problem
            shut: dict[str, str] = {}
            needs: Amounts = {}
            if hosts is not None and role.obj is not None:
                shut, needs = hosts.shut(role.obj), requests(role.obj)
            for n in range(role.count if why is None else 0):
                if enough():
                    why = TOO_LONG
                    break
                pod = role.pod.replace(uid=f"dry run {number} {n}")
                question = Question(pod)
                if not question.asks:
                    placed[""] = role.count
                    break
                found = choose(state, question, state.nodes.keys() - shut if shut else nodes)
                if not isinstance(found, Chosen):
                    why = summary([*found.values(), *(NodeRefusal(Problem("GH-607", text)) for text in shut.values())])
                    break
                state.reserve(pod, found.node, found.fit, 0.0)
                taken.append((pod.uid, found.node, needs))
                if hosts is not None and role.obj is not None:
                    hosts.take(found.node, needs)
                    if text := hosts.keeps_off(role.obj, found.node):
                        shut[found.node] = text
                placed[found.node] = placed.get(found.node, 0) + 1
            outcomes.append(Outcome(role.name, role.count, tuple(sorted(placed.items())), why))
    finally:
        for uid, node, needs in taken:
            state.forget(uid)
            if hosts is not None:
                hosts.take(node, needs, -1)
    return DryRunAnswer(all(one.fits == one.count for one in outcomes), tuple(outcomes))


def _size(pod: PodWords) -> tuple[int, int, int]:
    need = Question(pod).need(PLAIN)
    return (need.free_gpus, need.gpus, max(need.mib, need.percent)) if need is not None else (0, 0, 0)


# --- from templates


def role_of(name: str, namespace: str, count: int, template: Mapping[str, Any], options: mutate.WebhookOptions) -> Role:
    """The role of a PodTemplateSpec, with pods as the create webhook would make them. Raises KeyError, TypeError, ValueError or
    AttributeError for an invalid template."""
    meta, spec = dict(template.get("metadata") or {}), template.get("spec") or {}
    pod = {"metadata": {**meta, "name": name, "namespace": namespace, "uid": "dry run"}, "spec": spec}
    problem = None
    try:
        pod = mutated(pod, options)
    except GhError as e:
        problem = e.problems[0]
    return Role(name, count, words(pod), problem, pod)


def mutated(pod: Mapping[str, Any], options: mutate.WebhookOptions) -> dict[str, Any]:
    """The pod with the annotations, tolerations and node selector of the create webhook. Raises GhError."""
    meta, spec = dict(pod["metadata"]), dict(pod.get("spec") or {})
    into = {"/metadata/annotations": meta, "/spec/tolerations": spec, "/spec/nodeSelector": spec}
    for operation in mutate.mutate(pod, options).patch:
        path = operation["path"]
        if path in into:
            into[path][path.rpartition("/")[2]] = operation["value"]
    return {**pod, "metadata": meta, "spec": spec}


def roles_of(
    asked: Mapping[str, Any], options: mutate.WebhookOptions, enough: Callable[[], bool] = lambda: False
) -> list[Role]:
    """asked: {"namespace": NAME, "pods": [{"name": NAME, "count": N, "template": PodTemplateSpec}, ...]}. enough: whether to stop, asked
    before each template. Raises ValueError and the errors of `role_of`."""
    rows = asked["pods"]
    counts = [row.get("count", 1) for row in rows]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise ValueError("count is no number of pods")
    check_size(len(rows), sum(counts))
    namespace = str(asked.get("namespace") or "default")
    found = []
    for n, (row, count) in enumerate(zip(rows, counts, strict=True)):
        name = str(row.get("name") or f"pods {n}")
        if enough():
            found.append(Role(name, count, PodWords("", namespace, name, (), {}, False, 0), TOO_LONG))
        else:
            found.append(role_of(name, namespace, count, row["template"], options))
    return found


def check_size(roles: int, pods: int) -> None:
    """Raises ValueError."""
    if roles > MOST_ROLES or pods > MOST_PODS:
        raise ValueError(
            f"{pods} pods of {roles} kinds are too many: at most {MOST_PODS} pods of {MOST_ROLES} kinds are allowed"
        )


def as_data(answer: DryRunAnswer) -> dict[str, Any]:
    return {
        "fits": answer.all_fit,
        "pods": [
            {
                "name": one.name,
                "count": one.count,
                "fits": one.fits,
                "nodes": {node: count for node, count in one.placed if node},
                "why": str(one.why) if one.why else None,
            }
            for one in answer.roles
        ],
    }
