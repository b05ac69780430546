"""`gpu-hook why --cluster`: proposes a few moves of pods that make room for a waiting pod, or free GPUs."""

import time
from collections.abc import Callable
from typing import Any

from oci_hook.cli import output
from oci_hook.cli.cluster_objects import Objects, state_of
from oci_hook.cli.explain_pod import by_claims, by_class
from oci_hook.core.units import show
from oci_hook.errors import Problem, refuse
from oci_hook.kube.answers.claims import ClaimObjects
from oci_hook.kube.moves import defrag
from oci_hook.kube.moves.defrag import Move, MovePlan
from oci_hook.kube.moves.movable import movers
from oci_hook.kube.placing.choose import Question
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.pod.asked import ENDED, words
from oci_hook.kube.pod.hosts import Hosts, requests
from oci_hook.kube.preemption.disruption import Budget

SECONDS = 5.0  # of processor time for the search, so that a busy machine gets the same answer
NO_BUDGETS = (
    "no PodDisruptionBudgets were read, so these moves may violate one: allow `list` on them; for a dump that has none,"
    " `kubectl get pdb -A` says whether the cluster has none either"
)


def report(
    name: str,
    most: int,
    objects: Objects,
    budgets: list[Budget] | None,
    read_claims: Callable[[], ClaimObjects] = ClaimObjects,
) -> output.Report:
    """name: NAMESPACE/NAME of a waiting pod, or NAME in the namespace default; "" to free GPUs. most: moves to propose. read_claims: as
    explain_pod.report has it."""
    nodes, pods = objects
    obj = waiting(name, pods, read_claims) if name else None
    state = state_of(nodes, pods)
    try:
        hosts = Hosts(nodes, pods, by_class(read_claims))
        found, fixed = movers(state, pods, hosts, budgets or ())
        end = time.process_time() + SECONDS
        addresses = addresses_of(state)
        if obj is None:
            plan = defrag.for_free_gpus(state, found, hosts.free, lambda: time.process_time() > end, most)
        else:
            question = question_of(obj, name)
            state.forget(obj["metadata"]["uid"])
            allowed, needs = hosts.allowed(obj), requests(obj)
            plan = defrag.for_pod(
                state, found, hosts.free, question, allowed, needs, lambda: time.process_time() > end, most
            )
    except (KeyError, TypeError, AttributeError) as e:
        raise refuse(
            "GH-608", f"a node or pod is not as Kubernetes writes it: {type(e).__name__} {e}; report it"
        ) from None
    warnings = [Problem("GH-608", NO_BUDGETS)] if budgets is None else []
    status = 0 if obj is None or plan.reached else 1
    data = as_data(name, plan, fixed, addresses)
    return output.Report(data, lines(name, most, plan, fixed, addresses), warnings, status)


def waiting(name: str, pods: list[dict[str, Any]], read_claims: Callable[[], ClaimObjects]) -> dict[str, Any]:
    namespace, _, short = name.rpartition("/")
    wanted = (namespace or "default", short)
    for obj in pods:
        if (obj["metadata"].get("namespace"), obj["metadata"]["name"]) == wanted:
            if node := (obj.get("spec") or {}).get("nodeName"):
                raise refuse("GH-608", f"pod {show(name)} is on node {node}; moves are proposed only for waiting pods")
            if (obj.get("status") or {}).get("phase") in ENDED:
                raise refuse("GH-608", f"pod {show(name)} has ended; moves are proposed only for waiting pods")
            if by_claims(obj, read_claims) is not None:
                what = f"pod {show(name)} asks by ResourceClaims, which Kubernetes places; no moves are proposed for it"
                raise refuse("GH-608", f"{what}: `gpu-hook explain --pod` shows where they have room")
            return obj
    raise refuse("GH-608", f"there is no pod {show('/'.join(wanted))} among {len(pods)} pods; check both names")


def question_of(obj: dict[str, Any], name: str) -> Question:
    question = Question(words(obj))
    if not question.asks:
        raise refuse("GH-608", f"pod {show(name)} asks for no GPU")
    if question.pod.whole_node:
        raise refuse("GH-609", f"pod {show(name)} needs a node of its own; no moves are proposed for such pods")
    return question


def addresses_of(state: ClusterState) -> dict[tuple[str, str], str]:
    """(node, GPU's UUID) -> the GPU's number on its node, for all nodes that may be chosen."""
    return {
        (name, gpu.uuid): gpu.address for name in state.cut.rooms for gpu in state.inventory(state.nodes[name]).gpus
    }


# --- the answer


def as_data(name: str, plan: MovePlan, fixed: dict[str, int], addresses: dict[tuple[str, str], str]) -> dict[str, Any]:
    def gpus(node: str, uuids: tuple[str, ...]) -> dict[str, Any]:
        return {"node": node, "gpus": [{"address": addresses[node, uuid], "uuid": uuid} for uuid in uuids]}

    place = plan.place and gpus(plan.place.node, tuple(dict.fromkeys(row.uuid for row in plan.place.rows)))
    return {
        "for": name or None,
        "reached": plan.reached,
        "moves": [
            {
                "namespace": move.namespace,
                "pod": move.pod,
                "uid": move.uid,
                "owner": move.owner,
                "from": gpus(move.node, move.uuids),
                "to": gpus(move.to_node, move.to_uuids),
                "memory_mib": move.memory_mib,
                "compute": move.compute,
                "instead": move.instead or None,
            }
            for move in plan.moves
        ],
        "place": place,
        "free_gpus": {"before": plan.free[0], "after": plan.free[1]},
        "fixed": [{"reason": why, "pods": count} for why, count in sorted(fixed.items())],
    }


def lines(
    name: str, most: int, plan: MovePlan, fixed: dict[str, int], addresses: dict[tuple[str, str], str]
) -> list[str]:
    def at(node: str, uuids: tuple[str, ...]) -> str:
        return f"{node} GPU {','.join(addresses[node, uuid] for uuid in uuids)}"

    shown = [head(name, most, plan)]
    for number, move in enumerate(plan.moves, 1):
        shown.append(f"  {number}. {move_line(move, at)}")
    if plan.place:
        shown.append(
            f"  then {name} has room on {at(plan.place.node, tuple(dict.fromkeys(r.uuid for r in plan.place.rows)))}"
        )
    if plan.moves:
        shown.append("to move a pod, delete it; before the next move, wait until its replacement runs in the new place")
        if any(move.instead not in ("", move.to_node) for move in plan.moves):
            shown.append("if the controller would choose another node, cordon that node until the replacement runs")
    if fixed and (plan.moves or not plan.reached):
        shown.append("not moved:")
        shown += [f"  {output.count(count, 'pod')} {why}" for why, count in sorted(fixed.items())]
    return list(map(output.printable, shown))


def head(name: str, most: int, plan: MovePlan) -> str:
    before, after = plan.free
    moves = output.count(len(plan.moves), "move")
    upto = f"series of up to {output.count(most, 'move')}"
    if name:
        if not plan.reached:
            return f"pod {name} waits, and no {upto} was found that would give it room"
        if not plan.moves:
            return f"pod {name} has room without a move"
        return f"pod {name} has room after {moves} (fewer may be enough)"
    gpus = output.count(before, "GPU")
    if not plan.moves:
        return f"{gpus} without a container, and no {upto} was found that frees another"
    return f"{gpus} without a container, {after} after {moves} (fewer may be enough, and others may free more)"


def move_line(move: Move, at: Any) -> str:
    size = f"{output.size(move.memory_mib)}{f', {move.compute} %' if move.compute else ''}"
    line = f"{move.namespace}/{move.pod} ({move.owner}, {size}): {at(move.node, move.uuids)} -> {at(move.to_node, move.to_uuids)}"
    if not move.instead:
        return line
    other = "other GPUs of that node" if move.instead == move.to_node else f"node {move.instead}"
    return f"{line}; on its own, the controller would choose {other}"
