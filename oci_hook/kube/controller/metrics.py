"""What the controller counts, as prometheus-client's metrics; and the sums of each node and GPU, which are written straight into
the text: there may be 40 000 GPUs."""

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
# HELP gpu_hook_controller_gpu_containers Containers on a GPU.
# TYPE gpu_hook_controller_gpu_containers gauge
# HELP gpu_hook_controller_node_grants Grants and reservations on a node.
# TYPE gpu_hook_controller_node_grants gauge
"""


class GpuFigures:
    """memory, free: MiB."""

    __slots__ = ("uuid", "memory", "free", "compute", "containers")

    def __init__(self, uuid: str, memory: int, free: int, compute: int, containers: int) -> None:
        self.uuid, self.memory, self.free, self.compute, self.containers = uuid, memory, free, compute, containers


Figures = tuple[int, list[GpuFigures]]


async def node_lines(names: Iterable[str], figures: Callable[[str], Figures | None]) -> AsyncIterator[str]:
    """figures: name of a node -> (how many grants, its GPUs), or None for a node without GPUs."""
    yield HEAD
    lines: list[str] = []
    for count, name in enumerate(names, 1):
        found = figures(name)
        if found is not None:
            grants, gpus = found
            lines.append(f'gpu_hook_controller_node_grants{{node="{name}"}} {grants}\n')
            for gpu in gpus:
                labels = f'{{node="{name}",gpu="{gpu.uuid}"}}'
                lines.append(
                    f"gpu_hook_controller_gpu_memory_mib{labels} {gpu.memory}\n"
                    f"gpu_hook_controller_gpu_free_mib{labels} {gpu.free}\n"
                    f"gpu_hook_controller_gpu_free_compute{labels} {gpu.compute}\n"
                    f"gpu_hook_controller_gpu_containers{labels} {gpu.containers}\n"
                )
        if count % NODES_AT_A_TIME == 0:
            yield "".join(lines)
            lines = []
            await asyncio.sleep(0)
    yield "".join(lines)
