"""Asks NVML for the cards and prints them as JSON. Run as a program of its own by `discover`, because NVML may hang.

The library is the one named in LD_PRELOAD: nvidia-ml-py opens "libnvidia-ml.so.1", and the loader then hands out the
library of that soname that is loaded already.
"""

import json
import sys
from typing import Any

import pynvml  # type: ignore[import-untyped]

MIB = 1 << 20
NVLINK_DISTANCE = 1  # nearer than any PCIe path; those are NVML_TOPOLOGY_* numbers from 0 (one board) to 50 (two CPUs)


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def memory_mib(handle: Any) -> int:
    """What programs can have: the total without what the driver keeps for itself, where it says so."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int((info.total - info.reserved) // MIB)
    except pynvml.NVMLError:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total // MIB)


def distance(a: Any, b: Any) -> int | None:
    try:
        if pynvml.nvmlDeviceGetP2PStatus(a, b, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_OK:
            return NVLINK_DISTANCE
    except pynvml.NVMLError:
        pass
    try:
        # One board is 0 there, and NVLink must stay the nearest.
        return max(int(pynvml.nvmlDeviceGetTopologyCommonAncestor(a, b)), NVLINK_DISTANCE + 1)
    except pynvml.NVMLError:
        return None


def main() -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        json.dump({"error": str(e), "code": getattr(e, "value", 0)}, sys.stdout)
        return 0
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [text(pynvml.nvmlDeviceGetUUID(h)) for h in handles]
    cards = [
        {
            "uuid": uuids[i],
            "index": i,
            "minor": pynvml.nvmlDeviceGetMinorNumber(h),
            "memory_mib": memory_mib(h),
            "name": text(pynvml.nvmlDeviceGetName(h)),
            "pci": text(pynvml.nvmlDeviceGetPciInfo(h).busId),
        }
        for i, h in enumerate(handles)
    ]
    links = []
    for i, a in enumerate(handles):
        for j in range(i):
            near = distance(a, handles[j])
            if near is not None:
                links.append([uuids[j], uuids[i], near])
    version = text(pynvml.nvmlSystemGetDriverVersion())
    json.dump({"driver_version": version, "cards": cards, "links": links}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
