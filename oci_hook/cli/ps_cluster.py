"""`gpu-hook ps --cluster`: lists the pods' shares of the nodes' GPUs."""

import json
from collections.abc import Callable
from typing import Any

from oci_hook.cli import output
from oci_hook.cli.cluster_objects import Objects, state_of
from oci_hook.core import decision
from oci_hook.core.terms import CLASS_NUMBERS, data_name
from oci_hook.errors import GhError, Problem
from oci_hook.kube.answers import claims
from oci_hook.kube.answers.claims import ClaimObjects
from oci_hook.kube.answers.explain import Held, holders
from oci_hook.kube.formats.names import ALLOC

HEADER = ("NAMESPACE", "POD", "NODE", "GPU", "UUID", "MEMORY", "COMPUTE", "CLASS", "LEDGER")
SPARE = ("UUID", "CLASS", "NAMESPACE", "COMPUTE")


def report(objects: Objects, read_claims: Callable[[], ClaimObjects] = ClaimObjects) -> output.Report:
    """read_claims: may raise GhError."""
    nodes, pods = objects
    found = holders(state_of(nodes, pods), classes(pods))
    warnings: list[Problem] = []
    try:
        found += claims.holders(read_claims())
    except GhError as e:  # as without the right to list them
        warnings += e.problems
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        warnings.append(
            Problem(
                "GH-608",
                f"a ResourceClaim or ResourceSlice is not as Kubernetes writes it: {type(e).__name__} {e}; report it",
            )
        )
    rows = [row(one) for one in found]
    shown = output.table(HEADER, rows, SPARE) if rows else ["no pod holds a share"]
    return output.Report({"pods": [as_data(one) for one in found]}, shown, warnings)


def as_data(one: Held) -> dict[str, Any]:
    return {data_name(name): value for name, value in one.fields().items()}


def row(one: Held) -> tuple[object, ...]:
    size = "whole" if one.whole else output.size(one.memory_mib)
    compute = f"{one.compute}%" if one.compute and not one.whole else ""
    return one.namespace, one.pod, one.node, one.address, one.uuid, size, compute, one.priority_class, one.ledger


def classes(pods: list[dict[str, Any]]) -> dict[str, str]:
    """UID -> the highest class of the pod's containers, from its decision."""
    found = {}
    for obj in pods:
        text = (obj["metadata"].get("annotations") or {}).get(ALLOC)
        if not text:
            continue
        try:
            terms = decision.read(text, json.loads).terms
        except ValueError:
            continue
        named = [term.priority_class for _, term in terms]
        found[obj["metadata"]["uid"]] = max(named, key=CLASS_NUMBERS.__getitem__, default="")
    return found
