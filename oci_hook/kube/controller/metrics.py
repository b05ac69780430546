"""What the controller counts, as prometheus-client's metrics; and the sums of each node and GPU, which are written straight into
the text: there may be 40 000 GPUs."""

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from oci_hook.kube.overview import STATES, GpuRow, Sums

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)
NODES_AT_A_TIME = 100  # between two of them other requests are answered


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
        self.failures = Counter("gpu_hook_controller_failures", "Requests that were not understood.", registry=own)
        self.leads = Gauge("gpu_hook_controller_leads", "1 where this controller leads.", registry=own)
        self.lists = Gauge("gpu_hook_controller_lists", "Lists of all objects so far.", ("kind",), registry=own)
        self.objects = Gauge("gpu_hook_controller_objects", "Objects known.", ("kind",), registry=own)
        self.pending = Gauge(
            "gpu_hook_controller_pending_pods",
            "Pods that asked for GPUs and wait, by the reason.",
            ("code",),
            registry=own,
        )
        self.events = Gauge("gpu_hook_controller_events", "Events on pods so far.", ("result",), registry=own)
        self.certificate_end = Gauge(
            "gpu_hook_controller_certificate_end_timestamp_seconds",
            "When the serving certificate ends; Unix time.",
            registry=own,
        )
        self.cut = Gauge(
            "gpu_hook_controller_connections_cut",
            "Connections cut because they dawdled or were too many.",
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
# HELP gpu_hook_controller_gpu_free_compute Compute of a GPU that is neither granted nor reserved, in per cent.
# TYPE gpu_hook_controller_gpu_free_compute gauge
# HELP gpu_hook_controller_gpu_offline_mib Memory of a GPU that pods of class offline have.
# TYPE gpu_hook_controller_gpu_offline_mib gauge
# HELP gpu_hook_controller_gpu_offline_compute Compute of a GPU that pods of class offline have, in per cent.
# TYPE gpu_hook_controller_gpu_offline_compute gauge
# HELP gpu_hook_controller_gpu_containers Containers on a GPU.
# TYPE gpu_hook_controller_gpu_containers gauge
# HELP gpu_hook_controller_node_grants Grants and reservations on a node.
# TYPE gpu_hook_controller_node_grants gauge
"""


SUMS = """# HELP gpu_hook_controller_nodes Nodes with GPUs, or that should have gpu-hook.
# TYPE gpu_hook_controller_nodes gauge
{nodes}# HELP gpu_hook_controller_gpus GPUs by who is on them.
# TYPE gpu_hook_controller_gpus gauge
gpu_hook_controller_gpus{{state="free"}} {sums.free_gpus}
gpu_hook_controller_gpus{{state="shared"}} {shared}
gpu_hook_controller_gpus{{state="whole"}} {sums.whole_gpus}
# HELP gpu_hook_controller_free_mib Free memory of all GPUs: on GPUs that are free, and on those in use.
# TYPE gpu_hook_controller_free_mib gauge
gpu_hook_controller_free_mib{{on="free"}} {free_mib}
gpu_hook_controller_free_mib{{on="used"}} {sums.free_used_mib}
# HELP gpu_hook_controller_holding_pods Pods that have GPUs, or a reservation.
# TYPE gpu_hook_controller_holding_pods gauge
gpu_hook_controller_holding_pods {sums.holders}
"""


class GpuFigures(NamedTuple):
    """free_mib, free_compute: what can still be granted."""

    uuid: str
    shown: GpuRow
    free_mib: int
    free_compute: int


class NodeFigures(NamedTuple):
    """state: one of overview.STATES. grants: how many."""

    state: str
    grants: int
    gpus: list[GpuFigures]
    sums: Sums


async def node_lines(names: Iterable[str], figures: Callable[[str], NodeFigures | None]) -> AsyncIterator[str]:
    """figures: of the node of this name, None for one that is not shown."""
    yield HEAD
    lines: list[str] = []
    states = dict.fromkeys(STATES, 0)
    sums = Sums()
    for count, name in enumerate(names, 1):
        found = figures(name)
        if found is not None:
            states[found.state] += 1
            sums = sums.plus(found.sums)
            lines.append(f'gpu_hook_controller_node_grants{{node="{name}"}} {found.grants}\n')
            for gpu in found.gpus:
                labels = f'{{node="{name}",gpu="{gpu.uuid}"}}'
                lines.append(
                    f"gpu_hook_controller_gpu_memory_mib{labels} {gpu.shown.memory_mib}\n"
                    f"gpu_hook_controller_gpu_free_mib{labels} {gpu.free_mib}\n"
                    f"gpu_hook_controller_gpu_free_compute{labels} {gpu.free_compute}\n"
                    f"gpu_hook_controller_gpu_offline_mib{labels} {gpu.shown.offline_mib}\n"
                    f"gpu_hook_controller_gpu_offline_compute{labels} {gpu.shown.offline_compute}\n"
                    f"gpu_hook_controller_gpu_containers{labels} {gpu.shown.containers}\n"
                )
        if count % NODES_AT_A_TIME == 0:
            yield "".join(lines)
            lines = []
            await asyncio.sleep(0)
    yield "".join(lines)
    nodes = "".join(f'gpu_hook_controller_nodes{{state="{state}"}} {count}\n' for state, count in states.items())
    shared = sums.gpus - sums.free_gpus - sums.whole_gpus
    yield SUMS.format(nodes=nodes, sums=sums, shared=shared, free_mib=sums.free_mib - sums.free_used_mib)
