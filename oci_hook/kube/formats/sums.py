"""A pod's requests in total, as Kubernetes counts them; and our sums of a pod's GPU requests and of a node's GPUs, as extended
resources for Kubernetes' own scheduler, quotas and preemption.

A sum is a necessary condition: whenever `allocate` finds room on a node, the node's sums have room too. So a sum leaves out
amounts that depend on the chosen GPU, such as 30 per cent of its memory.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from oci_hook.core.inventory import Inventory
from oci_hook.core.request import Request
from oci_hook.core.rules import Rules
from oci_hook.core.terms import OFFLINE, GpuRequest
from oci_hook.kube.formats.names import COMPUTE, GPUS, MEMORY, OFFLINE_COMPUTE, SUMS
from oci_hook.kube.formats.quantity import milli

Sums = dict[str, int]
Amounts = dict[str, int]  # resource -> thousandths
NAMES = ("GPU-", "MIG-GPU-", "MIG-", "")  # beginnings of a GPU's names; "": an index; MIG devices also have N:M
OF_PODS = ("cpu", "memory", "hugepages-")  # resources that a pod may request as a whole, or their beginning


def of_request(request: Request | None) -> Sums:
    """The sums of one container."""
    sums = dict.fromkeys(SUMS, 0)
    if request is None:
        return sums
    for gpu in _least(request.gpus):
        sums[GPUS] += 1
        if gpu.memory and gpu.memory[0] == "mib" and not request.exclusive:
            sums[MEMORY] += gpu.memory[1]
        sums[OFFLINE_COMPUTE if request.terms.priority_class == OFFLINE else COMPUTE] += _compute(gpu, request)
    return sums


def of_pod(containers: Iterable[Sums], init: Iterable[tuple[Sums, bool]] = ()) -> Sums:
    """The most that the pod has at any time. containers: they run side by side. init: init containers in order, and whether each
    is restartable; restartable ones keep running, the others end before the next one starts (Kubernetes' documentation:
    Sidecar Containers, resource sharing within containers)."""
    running: Sums = {}
    most: Sums = {}
    for own, restartable in init:
        with_it = _plus(running, own)
        most = _larger(most, with_it)
        running = with_it if restartable else running
    for own in containers:
        running = _plus(running, own)
    return {name: amount for name, amount in _larger(running, most).items() if amount}


def of_object(pod: Mapping[str, Any]) -> Amounts:
    """An API object's requests of each resource, as kube-scheduler and kubelet count them (Kubernetes 1.36, component-helpers:
    PodRequests): those of the containers, or of the pod as a whole, and its overhead. While a container is resized, the larger
    of its present and requested amounts counts."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    given = {state.get("name"): state for state in states if state.get("resources") is not None}
    pending = [one for one in status.get("conditions") or () if one.get("type") == "PodResizePending"]
    refused = bool(pending) and pending[0].get("reason") == "Infeasible"

    def own(container: Mapping[str, Any]) -> Amounts:
        asked = _requests(container)
        state = given.get(container.get("name"))
        if state is None:
            return asked
        has = _larger(amounts(state["resources"].get("requests")), amounts(state.get("allocatedResources")))
        return has if refused else _larger(asked, has)

    init = [(own(one), one.get("restartPolicy") == "Always") for one in spec.get("initContainers") or ()]
    total = of_pod(map(own, spec.get("containers") or ()), init)
    as_a_whole = _requests(spec, without=total)
    if as_a_whole and status.get("resources") is not None:
        has = _larger(amounts(status["resources"].get("requests")), amounts(status.get("allocatedResources")))
        as_a_whole = has if refused else _larger(as_a_whole, has)
    total |= {name: amount for name, amount in as_a_whole.items() if name.startswith(OF_PODS)}
    return _plus(total, amounts(spec.get("overhead")))


def _requests(of: Mapping[str, Any], without: Container[str] = ()) -> Amounts:
    """The requests of a container, or of a pod as a whole. A limit without a request is also the request, as the API server
    defaults it; except for the resources in `without`."""
    resources = of.get("resources") or {}
    limits = {name: amount for name, amount in amounts(resources.get("limits")).items() if name not in without}
    return {**limits, **amounts(resources.get("requests"))}


def amounts(said: Mapping[str, Any] | None) -> Amounts:
    """The resources whose value is a quantity."""
    found = {}
    for name, text in (said or {}).items():
        try:
            found[name] = milli(str(text))
        except ValueError:
            continue
    return found


def of_node(inventory: Inventory, rules: Rules) -> Sums:
    """The sums of a node's GPUs."""
    gpus = inventory.gpus
    return {
        GPUS: len(gpus) * rules.max_shares_per_gpu,
        MEMORY: sum(gpu.memory_mib - rules.reserve(gpu.memory_mib) for gpu in gpus),
        COMPUTE: 100 * len(gpus),
        OFFLINE_COMPUTE: 100 * len(gpus),
    }


def _plus(sums: Sums, more: Sums) -> Sums:
    return {name: sums.get(name, 0) + more.get(name, 0) for name in {**sums, **more}}


def _larger(sums: Sums, others: Sums) -> Sums:
    return {name: max(sums.get(name, 0), others.get(name, 0)) for name in {**sums, **others}}


def _least(gpus: Iterable[GpuRequest]) -> list[GpuRequest]:
    """The requests that surely mean different GPUs: one share by index and the same by UUID may mean one GPU."""
    found: list[GpuRequest] = []
    named: dict[GpuRequest, dict[str, set[str]]] = {}
    for gpu in gpus:
        if gpu.device is None:
            found.append(gpu)
        else:
            names = named.setdefault(gpu.replace(device=None), {})
            kind = ":" if ":" in gpu.device else next(kind for kind in NAMES if gpu.device.startswith(kind))
            names.setdefault(kind, set()).add(gpu.device)
    for share, kinds in named.items():
        found += [share] * max(map(len, kinds.values()))
    return found


def _compute(gpu: GpuRequest, request: Request) -> int:
    if request.exclusive:
        return 100
    return gpu.compute or 0
