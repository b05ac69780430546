"""The sums of what a pod asks for, and of what a node has, as extended resources that Kubernetes' own scheduler, quotas and
preemption see.

A sum is a necessary condition: whenever `allocate` finds room on a node, the node's sums have room as well. So a sum never
counts what only the chosen GPU tells, such as 30 per cent of its memory.
"""

from collections.abc import Iterable

from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import CLASSES, GpuRequest
from oci_hook.kube.names import COMPUTE, GPUS, MEMORY, OFFLINE_COMPUTE, SUMS

OFFLINE = CLASSES[0]
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


def of_pod(containers: Iterable[Request], init: Iterable[Request]) -> Sums:
    """Containers run side by side, init containers one after another before them: the larger sum counts, as in Kubernetes
    itself (Documentation: Init Containers, resource sharing)."""
    total = dict.fromkeys(SUMS, 0)
    for request in containers:
        for name, amount in of_request(request).items():
            total[name] += amount
    for request in init:
        total = {name: max(amount, of_request(request)[name]) for name, amount in total.items()}
    return {name: amount for name, amount in total.items() if amount}


def of_node(inventory: Inventory, rules: Rules) -> Sums:
    """What a node has."""
    gpus = inventory.gpus
    return {
        GPUS: len(gpus) * rules.max_shares_per_gpu,
        MEMORY: sum(gpu.memory_mib - rules.reserve(gpu.memory_mib) for gpu in gpus),
        COMPUTE: 100 * len(gpus),
        OFFLINE_COMPUTE: 100 * len(gpus),
    }


def _compute(gpu: GpuRequest, request: Request) -> int:
    if request.exclusive:
        return 100
    return gpu.compute or 0
