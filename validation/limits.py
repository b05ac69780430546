"""The driver's memory limits per cgroup as NVML offers them (R615 and later), with NVML's own return codes."""

import ctypes
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]
MAX = 2**64 - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX of nvidia-ml-py 13.615
SET, GET = "nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"


class SetLimits(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong)]


class GetLimits(ctypes.Structure):
    _fields_ = [*SetLimits._fields_, ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def memory_info(library: ctypes.CDLL, device: ctypes.c_void_p) -> Json:
    """The answers of both versions of nvmlDeviceGetMemoryInfo, in MiB."""
    one, two = Memory(), MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
    out: Json = {}
    for name, into in (("nvmlDeviceGetMemoryInfo", one), ("nvmlDeviceGetMemoryInfo_v2", two)):
        code = getattr(library, name)(device, ctypes.byref(into))
        out[name] = {"total": into.total >> 20, "used": into.used >> 20} if not code else f"NVML error {code}"
    return out


class Nvml:
    """One GPU of an initialised NVML. Codes are nvmlReturn_t: 0 is success."""

    def __init__(self, library: str, index: int = 0) -> None:
        begin = time.monotonic()
        self.lib = ctypes.CDLL(library)
        self._check(self.lib.nvmlInit_v2(), "nvmlInit")
        self.init_ms = round((time.monotonic() - begin) * 1e3, 1)
        self.device = ctypes.c_void_p()
        self._check(self.lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.device)), "GetHandleByIndex")

    def _check(self, code: int, what: str) -> None:
        if code:
            raise RuntimeError(f"{what}: NVML error {code}")

    def has(self) -> bool:
        return hasattr(self.lib, SET) and hasattr(self.lib, GET)

    def set(self, cgroup: str | Path, hard: int, soft: int | None = None) -> int:
        value = SetLimits(str(cgroup).encode(), hard if soft is None else soft, hard)
        return int(getattr(self.lib, SET)(self.device, ctypes.byref(value)))

    def clear(self, cgroup: str | Path) -> int:
        return self.set(cgroup, MAX, 0)

    def get(self, cgroup: str | Path) -> Json:
        value = GetLimits(str(cgroup).encode(), 0, 0, 0)
        code = int(getattr(self.lib, GET)(self.device, ctypes.byref(value)))
        return {"code": code} if code else {"code": 0, "soft": value.soft, "hard": value.hard, "used": value.used}

    def used(self, cgroup: str | Path) -> int:
        """currentUsed in MiB; -1 if the getter fails."""
        said = self.get(cgroup)
        return -1 if said["code"] else said["used"] >> 20

    def of_process(self, pid: int) -> int | None:
        """MiB that NVML lists for the process; None: it lists none."""
        count, found = ctypes.c_uint(256), (Process * 256)()
        self._check(self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), found), "list")
        return next((p.used >> 20 for p in found[: count.value] if p.pid == pid), None)

    def close(self) -> None:
        self.lib.nvmlShutdown()
