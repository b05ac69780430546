"""`gpu-hook explain --pod`: shows the node that a pod would get, or the reasons why it waits."""

from collections.abc import Callable
from typing import Any

from oci_hook.cli import output
from oci_hook.cli.cluster_objects import Objects, state_of
from oci_hook.errors import GhError, refuse
from oci_hook.kube.answers import claims
from oci_hook.kube.answers.claims import ClaimObjects
from oci_hook.kube.answers.explain import Explanation, GpuView, NodeView, explain
from oci_hook.kube.pod.asked import ENDED, words
from oci_hook.kube.pod.hosts import Hosts
from oci_hook.kube.preemption.disruption import Budget, Budgets

UNLESS = " if no disruption budget protects them; the budgets could not be read"
SHOWN = 20  # nodes in the text; --json has all


def report(
    name: str, objects: Objects, budgets: list[Budget] | None, read_claims: Callable[[], ClaimObjects] = ClaimObjects
) -> output.Report:
    """name: NAMESPACE/NAME, or NAME in the namespace default. budgets: None if they cannot be read. read_claims: called for a
    pod that has claims, or may get some."""
    namespace, _, short = name.rpartition("/")
    namespace = namespace or "default"
    nodes, pods = objects
    for obj in pods:
        if (obj["metadata"].get("namespace"), obj["metadata"]["name"]) == (namespace, short):
            break
    else:
        raise refuse("GH-608", f"there is no pod {namespace}/{short} among {len(pods)} pods; check both names")
    if (obj.get("status") or {}).get("phase") in ENDED:
        ended = Explanation(words(obj), False, (obj.get("spec") or {}).get("nodeName") or "", False, (), ())
        return output.Report(as_data(ended), [output.printable(f"pod {namespace}/{short} has ended; it holds nothing")])
    found = by_claims(obj, read_claims)
    if found is None:
        protection = Budgets(budgets or (), known=budgets is not None)
        hosts = Hosts(nodes, pods, by_class(read_claims))
        found = explain(state_of(nodes, pods), obj, hosts, protection)
    fits = (found.node and not found.problem) or not found.asks or any(node.fits for node in found.nodes)
    return output.Report(as_data(found), lines(found), exit_status=0 if fits else 1)


def by_claims(obj: dict[str, Any], read_claims: Callable[[], ClaimObjects]) -> Explanation | None:
    """None where none of the pod's claims is ours. Raises ClusterError GH-608."""
    try:
        return claims.explain(words(obj), obj, read_claims()) if claims.may_ask(obj) else None
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        what = "the pod, a ResourceClaim, ResourceSlice or DeviceClass is not as Kubernetes writes it"
        raise refuse("GH-608", f"{what}: {type(e).__name__} {e}; report it") from None


def by_class(read_claims: Callable[[], ClaimObjects]) -> Callable[[], frozenset[str]]:
    """Whoever may not read DeviceClasses is told what nodes list."""

    def read() -> frozenset[str]:
        try:
            return claims.by_class(read_claims())
        except GhError:
            return frozenset()

    return read


def as_data(found: Explanation) -> dict[str, Any]:
    ends = {"node": found.victims_node, "pods": list(found.victims)} if found.victims else None
    return {
        "namespace": found.pod.namespace,
        "pod": found.pod.name,
        "uid": found.pod.uid,
        "asks": found.asks,
        "node": found.node or None,
        "bound": found.bound,
        "problem": output.as_data(found.problem) if found.problem else None,
        "nodes": [
            {
                "name": node.name,
                "fits": node.fits,
                "problem": output.as_data(node.why) if node.why else None,
                "gpus": [{**gpu.fields(), "given": list(gpu.given)} for gpu in node.gpus],
            }
            for node in found.nodes
        ],
        "suggestions": list(found.suggestions),
        "would_preempt": None if found.protected else ends,
        "protected": ends if found.protected else None,
        "budgets_known": found.budgets_known if ends else None,
    }


def lines(found: Explanation) -> list[str]:
    name = f"pod {found.pod.namespace}/{found.pod.name}"
    if found.bound and not found.problem:
        return [f"{name} is on node {found.node}; `gpu-hook ps --cluster` shows what it holds"]
    if not found.asks:
        return [f"{name} asks for no GPU"]
    head = (
        f"{name} would go to node {found.node}"
        if found.node and not found.problem
        else f"{name} waits: {found.problem}"
    )
    shown = [head]
    for node in sorted(found.nodes, key=lambda node: (node.name != found.node, not node.fits, node.name))[:SHOWN]:
        shown += node_lines(node)
    if len(found.nodes) > SHOWN:
        shown.append(f"and {output.count(len(found.nodes) - SHOWN, 'more node')}; --json has all")
    if found.victims:
        victims = f"{', '.join(found.victims)} on node {found.victims_node}"
        shown.append(
            f"would not preempt {victims}: disruption budgets do not allow it now"
            if found.protected
            else f"would preempt {victims}{'' if found.budgets_known else UNLESS}"
        )
    if found.suggestions:
        shown += ["what would help", *(f"  {text}" for text in found.suggestions)]
    return list(map(output.printable, shown))


def node_lines(node: NodeView) -> list[str]:
    said = "has room" if node.fits else str(node.why)
    return [f"node {node.name}: {said}", *(f"  {gpu_line(gpu)}" for gpu in node.gpus)]


def gpu_line(gpu: GpuView) -> str:
    compute = f"{gpu.free_compute} % compute and {gpu.free_offline_compute} % offline compute"
    free = f"{output.size(gpu.free_mib)} of {output.size(gpu.memory_mib)}, {compute} free"
    line = f"GPU {gpu.address}  {gpu.uuid}  {gpu.name or '-'}  {free}, {output.count(gpu.containers, 'container')}"
    if gpu.given:
        return f"{line}; the pod gets {', '.join(gpu.given)}"
    note = gpu.note.removeprefix(f"GPU {gpu.address} {gpu.uuid} ")
    return f"{line}; {note}" if note else line
