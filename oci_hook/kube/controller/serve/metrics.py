"""The controller's metrics, by prometheus-client. The lines for nodes and GPUs are written as text directly, since there may be
40 000 GPUs."""

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from oci_hook.core.units import MIB
from oci_hook.kube.answers import overview
from oci_hook.kube.placing.state import ClusterState

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
NODES_AT_A_TIME = 100  # nodes between two pauses for other requests


class Metrics:
    def __init__(self) -> None:
        self._counted: dict[Counter, int] = {}
        self.registry = CollectorRegistry()
        own = self.registry
        self.answers = Counter("gpu_hook_controller_answers", "Answered calls.", ("call", "result"), registry=own)
        self.refusals = Counter(
            "gpu_hook_controller_refusals", "Refusals by their code.", ("call", "code"), registry=own
        )
        self.latency = Histogram(
            "gpu_hook_controller_answer_seconds", "Time to an answer.", ("call",), buckets=SECONDS, registry=own
        )
        self.evictions = Counter(
            "gpu_hook_controller_evictions", "Pods evicted that their node had refused.", ("code",), registry=own
        )
        self.preemptions = Counter(
            "gpu_hook_controller_preemptions", "Attempts to make room by preemption.", ("outcome",), registry=own
        )
        self.holds = Gauge("gpu_hook_controller_holds", "Pods for which freed GPUs are held.", registry=own)
        self.failures = Counter("gpu_hook_controller_failures", "Malformed requests.", registry=own)
        self.leads = Gauge("gpu_hook_controller_leads", "1 where this controller leads.", registry=own)
        self.lists = Counter("gpu_hook_controller_lists", "Lists of all objects.", ("kind",), registry=own)
        self.objects = Gauge("gpu_hook_controller_objects", "Objects known.", ("kind",), registry=own)
        self.pending = Gauge(
            "gpu_hook_controller_pending_pods",
            "Pods that wait for GPUs, by reason.",
            ("code",),
            registry=own,
        )
        self.events = Counter("gpu_hook_controller_events", "Events on pods.", ("result",), registry=own)
        self.certificate_end = Gauge(
            "gpu_hook_controller_certificate_end_timestamp_seconds",
            "End of the serving certificate; Unix time.",
            registry=own,
        )
        self.cut = Counter(
            "gpu_hook_controller_connections_cut",
            "Connections cut because they were slow or too many.",
            registry=own,
        )

    def set_pending(self, codes: Iterable[str]) -> None:
        self.pending.clear()
        for code, count in Tally(codes).items():
            self.pending.labels(code).set(count)

    def raise_to(self, counter: Counter, value: int) -> None:
        """Sets a counter to what its owner counts elsewhere; after a new start of that count, adds it."""
        before = self._counted.get(counter, 0)
        counter.inc(value - before if value >= before else value)
        self._counted[counter] = value

    async def text(self, nodes: AsyncIterator[str]) -> bytes:
        parts = [generate_latest(self.registry)]
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
