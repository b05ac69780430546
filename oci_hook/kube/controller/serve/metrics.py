"""The controller's metrics. The lines for nodes and GPUs are formatted directly, since there may be 40 000 GPUs."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable

from oci_hook.core.prometheus import Exposition, labels
from oci_hook.core.units import MIB
from oci_hook.kube.answers import overview
from oci_hook.kube.placing.cluster_state import ClusterState

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
NODES_AT_A_TIME = 100  # nodes between two pauses for other requests
COUNTERS = {  # name -> labels, help
    "answers": (("call", "result"), "Answered calls."),
    "refusals": (("call", "code"), "Refusals by their code."),
    "evictions": (("code",), "Pods evicted that their node had refused."),
    "preemptions": (("outcome",), "Attempts to make room by preemption."),
    "lists": (("kind",), "Lists of all objects."),
    "events": (("result",), "Events on pods."),
    "connections_cut": ((), "Connections cut because they were slow or too many."),
    "failures": ((), "Malformed requests."),
}
GAUGES = {
    "holds": ((), "Pods for which freed GPUs are held."),
    "leads": ((), "1 where this controller leads."),
    "objects": (("kind",), "Objects known."),
    "pending_pods": (("code",), "Pods that wait for GPUs, by reason."),
    "certificate_end_timestamp_seconds": ((), "End of the serving certificate; Unix time."),
}


class Metrics:
    """Figures by name and label values. Those without labels are 0 at first."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {
            name: {} if named else {(): 0} for name, (named, _) in (COUNTERS | GAUGES).items()
        }
        self._times: dict[str, list[int]] = {}  # a call's answers by their time, as SECONDS has it
        self._seconds: dict[str, float] = {}

    def count(self, name: str, *at: str) -> None:
        self._values[name][at] = self._values[name].get(at, 0) + 1

    def set(self, name: str, value: float, *at: str) -> None:
        self._values[name][at] = value

    def answered(self, call: str, seconds: float) -> None:
        self._times.setdefault(call, [0] * (len(SECONDS) + 1))[bisect_left(SECONDS, seconds)] += 1
        self._seconds[call] = self._seconds.get(call, 0) + seconds

    def set_pending(self, codes: Iterable[str]) -> None:
        self._values["pending_pods"] = {(code,): count for code, count in Counter(codes).items()}

    async def text(self, nodes: AsyncIterator[str]) -> bytes:
        out = Exposition()
        for families, add in ((COUNTERS, out.counter), (GAUGES, out.gauge)):
            for name, (named, help) in families.items():
                for at, value in self._values[name].items():
                    add(f"controller_{name}", help, labels(named, at), value)
        bounds = list(map(str, SECONDS))
        for call, counts in self._times.items():
            one, total = labels(("call",), (call,)), self._seconds[call]
            out.histogram("controller_answer_seconds", "Time to an answer.", one, bounds, counts, total)
        parts = [out.text()]
        async for part in nodes:
            parts.append(part.encode())
        return b"".join(parts)


HEAD = """# HELP gpu_hook_controller_gpu_memory_bytes Memory of a GPU.
# TYPE gpu_hook_controller_gpu_memory_bytes gauge
# HELP gpu_hook_controller_gpu_free_bytes Memory of a GPU that is neither granted nor reserved.
# TYPE gpu_hook_controller_gpu_free_bytes gauge
# HELP gpu_hook_controller_gpu_free_compute_ratio Compute of a GPU free for the classes online and default.
# TYPE gpu_hook_controller_gpu_free_compute_ratio gauge
# HELP gpu_hook_controller_gpu_offline_bytes Memory of a GPU that pods of class offline have.
# TYPE gpu_hook_controller_gpu_offline_bytes gauge
# HELP gpu_hook_controller_gpu_offline_compute_ratio Offline compute of a GPU that pods of class offline have.
# TYPE gpu_hook_controller_gpu_offline_compute_ratio gauge
# HELP gpu_hook_controller_gpu_containers Containers on a GPU.
# TYPE gpu_hook_controller_gpu_containers gauge
# HELP gpu_hook_controller_node_grants Grants and reservations on a node.
# TYPE gpu_hook_controller_node_grants gauge
"""


SUMS = """# HELP gpu_hook_controller_nodes Nodes that have GPUs or should run gpu-hook.
# TYPE gpu_hook_controller_nodes gauge
{nodes}# HELP gpu_hook_controller_gpus GPUs by state: free, shared, whole.
# TYPE gpu_hook_controller_gpus gauge
gpu_hook_controller_gpus{{state="free"}} {sums.free_gpus}
gpu_hook_controller_gpus{{state="shared"}} {shared}
gpu_hook_controller_gpus{{state="whole"}} {sums.whole_gpus}
# HELP gpu_hook_controller_free_bytes Free memory of all GPUs, on free ones and on those in use.
# TYPE gpu_hook_controller_free_bytes gauge
gpu_hook_controller_free_bytes{{on="free"}} {free}
gpu_hook_controller_free_bytes{{on="used"}} {used}
# HELP gpu_hook_controller_holding_pods Pods that have GPUs, or a reservation.
# TYPE gpu_hook_controller_holding_pods gauge
gpu_hook_controller_holding_pods {sums.holders}
"""


async def node_lines(state: ClusterState) -> AsyncIterator[str]:
    """The lines for each node on the page (answers/overview.py)."""
    yield HEAD
    lines: list[str] = []
    states = dict.fromkeys(overview.STATES, 0)
    sums = overview.Sums()
    for count, name in enumerate(list(state.nodes), 1):
        node = state.nodes.get(name)
        if node is not None and overview.shown(node):
            states[overview.kind_of(node)] += 1
            taken, holders = overview.taken_on(state, node) if node.text else ({}, 0)
            sums = sums.plus(overview.Sums(holders=holders))
            grants = len(state.grants(node)) if node.text else 0
            lines.append(f'gpu_hook_controller_node_grants{{Hostname="{name}"}} {grants}\n')
            for gpu in state.inventory(node).gpus if node.text else ():
                one = overview.of_gpu(gpu, taken.get(gpu.uuid, []), node.rules)
                sums = sums.plus(one)
                labels = f'{{Hostname="{name}",gpu="{gpu.index}",UUID="{gpu.uuid}"}}'
                free = 0 if one.whole_gpus else max(0, 100 - one.granted_compute)
                lines.append(
                    f"gpu_hook_controller_gpu_memory_bytes{labels} {one.memory_mib * MIB}\n"
                    f"gpu_hook_controller_gpu_free_bytes{labels} {one.free_mib * MIB}\n"
                    f"gpu_hook_controller_gpu_free_compute_ratio{labels} {free / 100}\n"
                    f"gpu_hook_controller_gpu_offline_bytes{labels} {one.offline_mib * MIB}\n"
                    f"gpu_hook_controller_gpu_offline_compute_ratio{labels} {one.offline_compute / 100}\n"
                    f"gpu_hook_controller_gpu_containers{labels} {one.containers}\n"
                )
        if count % NODES_AT_A_TIME == 0:
            yield "".join(lines)
            lines = []
            await asyncio.sleep(0)
    yield "".join(lines)
    nodes = "".join(f'gpu_hook_controller_nodes{{state="{state}"}} {count}\n' for state, count in states.items())
    shared = sums.gpus - sums.free_gpus - sums.whole_gpus
    free = sums.free_mib - sums.free_used_mib
    yield SUMS.format(nodes=nodes, sums=sums, shared=shared, free=free * MIB, used=sums.free_used_mib * MIB)
