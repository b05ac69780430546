"""The controller's metrics, by prometheus-client. The lines for nodes and GPUs are written as text directly, since there may be
40 000 GPUs."""

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from oci_hook.kube.answers import overview
from oci_hook.kube.placing.state import ClusterState

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
NODES_AT_A_TIME = 100  # nodes between two pauses for other requests


class Metrics:
    def __init__(self) -> None:
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
        self.lists = Gauge("gpu_hook_controller_lists", "Lists of all objects so far.", ("kind",), registry=own)
        self.objects = Gauge("gpu_hook_controller_objects", "Objects known.", ("kind",), registry=own)
        self.pending = Gauge(
            "gpu_hook_controller_pending_pods",
            "Pods that wait for GPUs, by reason.",
            ("code",),
            registry=own,
        )
        self.events = Gauge("gpu_hook_controller_events", "Events on pods so far.", ("result",), registry=own)
        self.certificate_end = Gauge(
            "gpu_hook_controller_certificate_end_timestamp_seconds",
            "End of the serving certificate; Unix time.",
            registry=own,
        )
        self.cut = Gauge(
            "gpu_hook_controller_connections_cut",
            "Connections cut because they were slow or too many.",
            registry=own,
        )

    def set_pending(self, codes: Iterable[str]) -> None:
        self.pending.clear()
        for code, count in Tally(codes).items():
            self.pending.labels(code).set(count)

    async def text(self, nodes: AsyncIterator[str]) -> bytes:
        parts = [generate_latest(self.registry)]
        async for part in nodes:
            parts.append(part.encode())
        return b"".join(parts)


HEAD = """# HELP gpu_hook_controller_gpu_memory_mib Memory of a GPU.
# TYPE gpu_hook_controller_gpu_memory_mib gauge
# HELP gpu_hook_controller_gpu_free_mib Memory of a GPU that is neither granted nor reserved.
# TYPE gpu_hook_controller_gpu_free_mib gauge
# HELP gpu_hook_controller_gpu_free_compute Compute of a GPU free for the classes online and default, in per cent.
# TYPE gpu_hook_controller_gpu_free_compute gauge
# HELP gpu_hook_controller_gpu_offline_mib Memory of a GPU that pods of class offline have.
# TYPE gpu_hook_controller_gpu_offline_mib gauge
# HELP gpu_hook_controller_gpu_offline_compute Offline compute of a GPU that pods of class offline have, in per cent.
# TYPE gpu_hook_controller_gpu_offline_compute gauge
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
# HELP gpu_hook_controller_free_mib Free memory of all GPUs, on free ones and on those in use.
# TYPE gpu_hook_controller_free_mib gauge
gpu_hook_controller_free_mib{{on="free"}} {free_mib}
gpu_hook_controller_free_mib{{on="used"}} {sums.free_used_mib}
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
            lines.append(f'gpu_hook_controller_node_grants{{node="{name}"}} {grants}\n')
            for gpu in state.inventory(node).gpus if node.text else ():
                one = overview.of_gpu(gpu, taken.get(gpu.uuid, []), node.rules)
                sums = sums.plus(one)
                labels = f'{{node="{name}",gpu="{gpu.uuid}"}}'
                free = 0 if one.whole_gpus else max(0, 100 - one.granted_compute)
                lines.append(
                    f"gpu_hook_controller_gpu_memory_mib{labels} {one.memory_mib}\n"
                    f"gpu_hook_controller_gpu_free_mib{labels} {one.free_mib}\n"
                    f"gpu_hook_controller_gpu_free_compute{labels} {free}\n"
                    f"gpu_hook_controller_gpu_offline_mib{labels} {one.offline_mib}\n"
                    f"gpu_hook_controller_gpu_offline_compute{labels} {one.offline_compute}\n"
                    f"gpu_hook_controller_gpu_containers{labels} {one.containers}\n"
                )
        if count % NODES_AT_A_TIME == 0:
            yield "".join(lines)
            lines = []
            await asyncio.sleep(0)
    yield "".join(lines)
    nodes = "".join(f'gpu_hook_controller_nodes{{state="{state}"}} {count}\n' for state, count in states.items())
    shared = sums.gpus - sums.free_gpus - sums.whole_gpus
    yield SUMS.format(nodes=nodes, sums=sums, shared=shared, free_mib=sums.free_mib - sums.free_used_mib)
