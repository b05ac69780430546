"""One sample of a GPU, as NVML and the driver told it, and how far its utilization by process can be trusted.

NVML counts whatever keeps the GPU, not only kernels, and a single figure says little. On an H200 with driver 580.159.04
(data/validation/H200-580/nvml.json) it showed 84 to 87 % for a process that only allocated and freed 64 MiB, 99 % for
memsets, 34 % for copies from the host, 48 % for empty kernels, 31 % while a context was made, 20 % while a process was suspended. Of two
processes that had 45 % each, figures of half a second went from 1 to 99 %, and the means of seven were 47 and 57 %.
"""

from collections.abc import Iterable

from oci_hook.core.value import Value

LOOKS = 3  # A judgement by utilization takes the mean of so many looks at least,
SECONDS = 8.0  # the first and the last of which are so far apart. With what the first one covers, that is 10 s or more.
HISTORY = 2.0  # seconds before the look before it which a look's utilization covers as well
LOW = 0.75  # of what a process had, so much may such a mean show


class GpuSample(Value):
    """used, total: bytes. busy: per cent busy, -1 unknown. processes: (pid, bytes or None, per cent). error: of NVML.
    at: before NVML was asked, in seconds of the monotonic clock. steady: used did not change meanwhile.
    charged: by the grant's key, bytes that the driver charges to the container's cgroup, where it does (615 and later)."""

    used: int
    total: int
    busy: int
    processes: tuple[tuple[int, int | None, int], ...]
    error: str = ""
    at: float = 0.0
    steady: bool = True
    charged: dict[str, int] = {}


def listed(gpus: Iterable[GpuSample]) -> dict[int, float]:
    """The pids of these samples' processes, and `at` of the first sample that has each."""
    found: dict[int, float] = {}
    for gpu in gpus:
        for pid, _, _ in gpu.processes:
            found[pid] = min(gpu.at, found.get(pid, gpu.at))
    return found
