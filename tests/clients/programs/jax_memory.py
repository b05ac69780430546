"""JAX: the memory that it takes at its start, by the allocator that the environment chooses, and what it does at the limit."""

import ctypes
import re

import jax
import numpy as np
from steps import outcome, said

MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")


def free_and_total() -> list[int]:
    """Of the context that is current: JAX has made the GPU's primary one."""
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not driver.cuCtxSetCurrent(context)
    assert not driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return [free.value // MIB, total.value // MIB]


def array(mib: int) -> jax.Array:
    made = jax.device_put(np.zeros(mib * MIB, np.uint8))
    made.block_until_ready()
    return made


def amounts(text: str) -> str:
    return re.sub(r"[\d.]+ ?(?:[KMG]i?B|bytes)", "#", text)


def fill(mib: int) -> tuple[list[jax.Array], str]:
    held: list[jax.Array] = []
    while True:
        try:
            held.append(array(mib))
        except Exception as e:
            return held, f"{type(e).__name__}: {e}"


def to_the_limit() -> None:
    held, text = fill(32)
    said("arrays of 32 MiB until refused", len(held))
    said("the refusal", amounts(text.splitlines()[0]))
    said("free and total MiB then", free_and_total())
    held.clear()
    outcome("an array after the refusal", lambda: array(64).shape[0])


def main() -> None:
    said("devices", [str(device) for device in jax.devices()])
    said("kind", jax.devices()[0].device_kind)
    said("free and total MiB at first", free_and_total())
    stats = jax.devices()[0].memory_stats() or {}
    said("the allocator's own limit in MiB", stats.get("bytes_limit", 0) // MIB)
    data = np.arange(1 << 20, dtype=np.int32)
    there = jax.device_put(data)
    said("to the GPU and back", bool((np.asarray(there) == data).all()))
    outcome("an array of no element", lambda: int(np.asarray(jax.device_put(np.zeros(0, np.int32))).size))
    outcome("to the limit", to_the_limit)
    del there
    said("free and total MiB at the end", free_and_total())


main()
