"""Whether pods that must all run together have room at once: a dry run for gang engines and for people. Nothing is reserved or
changed, and only GPUs are looked at: a node's CPU, taints and labels are the engine's part.

The pods are placed one after another, as the filter would, in the state itself, and then taken out again: callers do not wait
in between, so nobody sees them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from oci_hook.core.value import Value
from oci_hook.errors import GhError, Problem
from oci_hook.kube import mutate
from oci_hook.kube.choose import PLAIN, Chosen, Question, choose, summary
from oci_hook.kube.pods import PodWords, words
from oci_hook.kube.state import ClusterState

MOST_PODS = 1024  # of one dry run
MOST_ROLES = 128
TOO_LONG = Problem("GH-607", "not looked at: the dry run takes too long; ask for fewer pods")


class Role(Value):
    """count pods that ask for the same. problem: why such a pod would be refused when it is created."""

    name: str
    count: int
    pod: PodWords
    problem: Problem | None = None


class Outcome(Value):
    """placed: (node, how many). why: the reason of the others; None where all have room."""

    name: str
    count: int
    placed: tuple[tuple[str, int], ...]
    why: Problem | None = None

    @property
    def fits(self) -> int:
        return sum(count for _, count in self.placed)


class Answer(Value):
    """all_fit: every pod has room beside the others."""

    all_fit: bool
    roles: tuple[Outcome, ...]


def dry_run(
    state: ClusterState,
    roles: Sequence[Role],
    nodes: Collection[str] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Answer:
    """In the given order; where that fails, the large ones first. nodes: the only ones that count. enough: asked between two
    pods, whether to stop."""
    answer = _place(state, roles, nodes, enough)
    if answer.all_fit or len(roles) < 2:
        return answer
    order = sorted(range(len(roles)), key=lambda i: _size(roles[i].pod), reverse=True)
    if order == list(range(len(roles))):
        return answer
    other = _place(state, [roles[i] for i in order], nodes, enough)
    if sum(each.fits for each in other.roles) <= sum(each.fits for each in answer.roles):
        return answer
    back = dict(zip(order, other.roles, strict=True))
    return Answer(other.all_fit, tuple(back[i] for i in range(len(roles))))


def _place(
    state: ClusterState, roles: Sequence[Role], nodes: Collection[str] | None, enough: Callable[[], bool]
) -> Answer:
    taken: list[str] = []
    outcomes = []
    try:
        for number, role in enumerate(roles):
            placed: dict[str, int] = {}
            why = role.problem
            for n in range(role.count if why is None else 0):
                if enough():
                    why = TOO_LONG
                    break
                pod = role.pod.replace(uid=f"dry run {number} {n}")
                question = Question(pod)
                if not question.asks:
                    placed[""] = role.count
                    break
                found = choose(state, question, nodes)
                if not isinstance(found, Chosen):
                    why = summary(found.values())
                    break
                state.reserve(pod, found.node, found.fit, 0.0)
                taken.append(pod.uid)
                placed[found.node] = placed.get(found.node, 0) + 1
            outcomes.append(Outcome(role.name, role.count, tuple(sorted(placed.items())), why))
    finally:
        for uid in taken:
            state.release(uid)
    return Answer(all(one.fits == one.count for one in outcomes), tuple(outcomes))


def _size(pod: PodWords) -> tuple[int, int, int]:
    need = Question(pod).need(PLAIN)
    return (need.free_gpus, need.gpus, max(need.mib, need.percent)) if need is not None else (0, 0, 0)


# --- from templates


def role_of(name: str, namespace: str, count: int, template: Mapping[str, Any], options: mutate.Options) -> Role:
    """A role of a PodTemplateSpec, as the create webhook would make its pods. Raises KeyError, TypeError, ValueError or
    AttributeError for what is no template."""
    meta, spec = dict(template.get("metadata") or {}), template.get("spec") or {}
    pod = {"metadata": {**meta, "name": name, "namespace": namespace, "uid": "dry run"}, "spec": spec}
    problem = None
    try:
        pod = mutated(pod, options)
    except GhError as e:
        problem = e.problems[0]
    return Role(name, count, words(pod), problem)


def mutated(pod: Mapping[str, Any], options: mutate.Options) -> dict[str, Any]:
    """With the annotations that the create webhook would write. Raises GhError."""
    meta = dict(pod["metadata"])
    for operation in mutate.mutate(pod, options).patch:
        if operation["path"] == "/metadata/annotations":
            meta["annotations"] = operation["value"]
    return {**pod, "metadata": meta}


def roles_of(
    asked: Mapping[str, Any], options: mutate.Options, enough: Callable[[], bool] = lambda: False
) -> list[Role]:
    """Of {"namespace": NAME, "pods": [{"name": NAME, "count": N, "template": PodTemplateSpec}, ...]}. enough: asked between
    two templates, whether to stop. Raises ValueError and what `role_of` raises."""
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
            f"{pods} pods of {roles} kinds are too many: {MOST_PODS} pods of {MOST_ROLES} kinds are looked at at once"
        )


def as_data(answer: Answer) -> dict[str, Any]:
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
