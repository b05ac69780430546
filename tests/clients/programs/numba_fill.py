"""Numba: an array to the GPU and back, then device arrays until one is refused."""

import warnings

import numpy as np
from steps import said

warnings.simplefilter("ignore")
from numba import cuda  # noqa: E402

MIB = 1 << 20
said("name", str(cuda.get_current_device().name))
said("sum", int(cuda.to_device(np.arange(1000)).copy_to_host().sum()))
said("free and total MiB", [n // MIB for n in cuda.current_context().get_memory_info()])
held, why = [], "not refused"
while len(held) < 1000:
    try:
        held.append(cuda.device_array(64 * MIB, dtype=np.uint8))
    except Exception as e:
        why = str(e).partition(":")[0]
        break
said("MiB until refused", 64 * len(held))
said("refused", why)
del held[:4]  # the room of four is there again, once numba has freed them
cuda.current_context().memory_manager.deallocations.clear()
said("again", [len(cuda.device_array(64 * MIB, dtype=np.uint8)) for _ in range(4)])
with cuda.pinned(np.zeros(MIB, dtype=np.uint8)):
    said("pinned", True)
