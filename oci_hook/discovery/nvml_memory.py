"""A GPU's memory by NVML, also of one that has none of its own, such as GB10: there NVML answers NOT_SUPPORTED (NVIDIA's
DGX Spark guide, "Memory-Usage: Not Supported"), and programs use the machine's memory."""

from typing import Any, NamedTuple

import pynvml  # type: ignore[import-untyped]

from oci_hook.linux import proc

KINDS = ("Compute", "Graphics", "MPSCompute")


class Memory(NamedTuple):
    """In bytes."""

    total: int
    used: int
    free: int


def by_process(handle: Any) -> dict[int, int | None]:
    """Bytes that each process has on the GPU, by pid; None where the driver does not say."""
    found: dict[int, int | None] = {}
    for kind in KINDS:
        try:
            for p in running(handle, kind):
                found[int(p.pid)] = None if p.usedGpuMemory is None else int(p.usedGpuMemory)
        except pynvml.NVMLError_NotSupported:
            pass
        except pynvml.NVMLError_FunctionNotFound:
            if kind == KINDS[0]:  # nothing would be known of any process
                raise
    return found


def running(handle: Any, kind: str) -> Any:
    """Also with a driver that does not have the binding's version of the call, such as 470."""
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    call = getattr(pynvml, f"{name}_v3")
    try:
        return call(handle)
    except pynvml.NVMLError_FunctionNotFound:
        # The older function fills the same struct. nvidia-ml-py 12.535 does not call it by itself.
        pynvml._nvmlGetFunctionPointer_cache[f"{name}_v3"] = pynvml._nvmlGetFunctionPointer(f"{name}_v2")
        return call(handle)


def memory(handle: Any) -> Memory:
    """The memory of a GPU that uses the machine's: all of that, of which its processes have what the driver says."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Memory(int(info.total), int(info.used), int(info.free))
    except pynvml.NVMLError_NotSupported:
        total, used = proc.memory_total(), sum(used or 0 for used in by_process(handle).values())
        return Memory(total, used, max(0, total - used))


def usable(handle: Any) -> int:
    """The total without what the driver reserves, if it tells that."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(info.total - info.reserved)
    except pynvml.NVMLError:
        return memory(handle).total
