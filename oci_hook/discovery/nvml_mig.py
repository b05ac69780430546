"""The MIG devices of a GPU by NVML."""

from typing import Any

import pynvml  # type: ignore[import-untyped]


def is_split(handle: Any) -> bool:
    """True if the GPU is in MIG mode: then only its MIG devices can be used."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError:  # the GPU does not support MIG
        return False


def parts(handle: Any) -> list[tuple[int, Any]]:
    """The split GPU's MIG devices: numbers, which may have gaps, and handles. Raises NVMLError."""
    found = []
    for i in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            found.append((i, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)))
        except pynvml.NVMLError:
            pass
    return found
