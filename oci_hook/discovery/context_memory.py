"""Measures the memory of one process's context on each GPU, and in which blocks a driver takes memory, and prints it as
JSON. A program of its own, as a driver call may hang.

usage: LD_PRELOAD=LIBNVML [CUDA_VISIBLE_DEVICES=MIG-...] python -m oci_hook.discovery.context_memory LIBCUDA

LD_PRELOAD: as in discovery/nvml_gpus.py. CUDA_VISIBLE_DEVICES: a real driver shows a program one MIG device at most.
"""

import ctypes
import json
import os
import sys
from typing import Any

import pynvml  # type: ignore[import-untyped]

from oci_hook.discovery import blocks
from oci_hook.discovery.nvml_memory import by_process, memory

PIECES = 17  # of memory, to see in which blocks it is taken; whole blocks that several share are no multiple of it
ROUNDS = 3  # of measuring by difference: an allocation by another process spoils one round, rarely all


def own_memory(handle: Any) -> int:
    """Bytes that this process has on the GPU according to NVML; 0 if NVML does not list it.

    NVML lists no process of another PID namespace, and on some systems no process's memory.
    """
    try:
        return by_process(handle).get(os.getpid()) or 0
    except pynvml.NVMLError:
        return 0


def with_context(cuda: ctypes.CDLL, ordinal: int, handle: Any) -> tuple[int, int] | None:
    """Make and release a primary context: its bytes (by process, by difference); None if it cannot be made."""
    own, used = own_memory(handle), memory(handle).used
    context = ctypes.c_void_p()
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal):
        return None
    try:
        return own_memory(handle) - own, memory(handle).used - used
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(ordinal)


def measure(cuda: ctypes.CDLL, ordinal: int, handle: Any) -> int | None:
    """Bytes of one context; None if it cannot be made, as on a GPU that is full or in exclusive-process mode."""
    differences = []
    for _ in range(ROUNDS):
        said = with_context(cuda, ordinal, handle)
        if said is None:
            return None
        if said[0] > 0:
            return said[0]
        differences.append(said[1])
    return max(0, min(differences))


def block(cuda: ctypes.CDLL, ordinal: int) -> int:
    """Bytes of the blocks in which the driver takes linear memory; 0 if that cannot be told."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal):
        return 0
    held: list[ctypes.c_uint64] = []
    found = 0
    try:
        if cuda.cuCtxSetCurrent(context):
            return 0
        for _ in range(ROUNDS):
            if cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)):
                return 0
            before = free.value
            for _ in range(PIECES):
                held.append(ctypes.c_uint64())
                if cuda.cuMemAlloc_v2(ctypes.byref(held[-1]), ctypes.c_size_t(blocks.PIECE)):
                    held.pop()
                    return 0
            cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            found = found or blocks.of_pieces(before - free.value, PIECES)
            while held:
                cuda.cuMemFree_v2(held.pop())
        return found
    finally:
        while held:
            cuda.cuMemFree_v2(held.pop())
        cuda.cuDevicePrimaryCtxRelease_v2(ordinal)


def uuid_of(cuda: ctypes.CDLL, ordinal: int) -> str:
    """The device's UUID as NVML writes it; "" if the driver does not say. A MIG device has one besides its GPU's."""
    gpu, own = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
    if cuda.cuDeviceGetUuid(gpu, ordinal):
        return ""
    newer = getattr(cuda, "cuDeviceGetUuid_v2", None)  # since CUDA 11.4
    if newer is None or newer(own, ordinal):
        own = gpu
    h = own.raw.hex()
    return f"{'GPU' if own.raw == gpu.raw else 'MIG'}-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def main(library: str) -> dict[str, object]:
    """{"context": {UUID: bytes}, "block": {UUID: bytes}} or {"error": why}; numbers and names as in the CUDA driver API."""
    try:
        pynvml.nvmlInit()
        cuda = ctypes.CDLL(library)
        count = ctypes.c_int()
        if code := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return {"error": f"CUDA error {code}"}
        found, sizes = {}, {}
        for ordinal in range(count.value):
            if not (uuid := uuid_of(cuda, ordinal)):
                continue
            try:
                size = measure(cuda, ordinal, pynvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
            except pynvml.NVMLError:
                continue
            if size is not None:
                found[uuid] = size
                sizes[uuid] = block(cuda, ordinal)
        return {"context": found, "block": sizes}
    except (OSError, AttributeError, pynvml.NVMLError) as e:
        return {"error": str(e)}


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
