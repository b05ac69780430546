"""Channel-group controls of a test's simulated GPU, and what the GPU page lets containers use of them."""

import struct
from typing import Any

from gpu_hook_simulator import driver_root

TSG_MODE_AT = 332  # struct gpu_head


def controls(p: Any, mode: str) -> None:
    """What they do from now on: work, inert, error."""
    with open(p.sim.gpus / "0", "r+b") as gpu:
        gpu.seek(TSG_MODE_AT)
        gpu.write(struct.pack("<I", driver_root.TSG.index(mode)))


def let(p: Any, tiers: int) -> None:
    """Bits of core/tiers.py. The page is written anew, which makes its readers look."""
    p.gpu.tiers = tiers
    p.gpu.write()
