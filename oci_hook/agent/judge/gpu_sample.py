"""One sample of a GPU, as NVML and the driver told it."""

from oci_hook.core.value import Value


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
