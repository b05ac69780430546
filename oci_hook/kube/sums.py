"""The sums of what a pod asks for, and of what a node has, as extended resources that Kubernetes' own scheduler, quotas and
preemption see.

A sum is a necessary condition: whenever `allocate` finds room on a node, the node's sums have room as well. So a sum never
counts what only the chosen GPU tells, such as 30 per cent of its memory.
"""

from collections.abc import Iterable

from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import OFFLINE, GpuRequest
from oci_hook.kube.names import COMPUTE, GPUS, MEMORY, OFFLINE_COMPUTE, SUMS

Sums = dict[str, int]


def of_request(request: Request) -> Sums:
    """What one container asks for."""
    sums = dict.fromkeys(SUMS, 0)
    for gpu in request.gpus:
        sums[GPUS] += 1
        if gpu.memory and gpu.memory[0] == "mib" and not request.exclusive:
            sums[MEMORY] += gpu.memory[1]
        sums[OFFLINE_COMPUTE if request.terms.priority_class == OFFLINE else COMPUTE] += _compute(gpu, request)
    return sums


def of_pod(containers: Iterable[Request | None], init: Iterable[tuple[Request | None, bool]] = ()) -> Sums:
    """What the pod has at most at one time. containers run side by side. init: the init containers in order, and whether each
    is restartable; those go on running, the others end before the next one starts (Kubernetes' documentation: Sidecar
    Containers, resource sharing within containers)."""
    running, most = dict.fromkeys(SUMS, 0), dict.fromkeys(SUMS, 0)
    for request, restartable in init:
        with_it = _plus(running, request)
        most = {name: max(amount, with_it[name]) for name, amount in most.items()}
        running = with_it if restartable else running
    for request in containers:
        running = _plus(running, request)
    return {name: larger for name, amount in running.items() if (larger := max(amount, most[name]))}


def of_node(inventory: Inventory, rules: Rules) -> Sums:
    """What a node has."""
    gpus = inventory.gpus
    return {
        GPUS: len(gpus) * rules.max_shares_per_gpu,
        MEMORY: sum(gpu.memory_mib - rules.reserve(gpu.memory_mib) for gpu in gpus),
        COMPUTE: 100 * len(gpus),
        OFFLINE_COMPUTE: 100 * len(gpus),
    }


def _plus(sums: Sums, request: Request | None) -> Sums:
    if request is None:
        return sums
    more = of_request(request)
    return {name: amount + more[name] for name, amount in sums.items()}


def _compute(gpu: GpuRequest, request: Request) -> int:
    if request.exclusive:
        return 100
    return gpu.compute or 0
