"""The blocks in which a driver takes linear memory (cuMemAlloc) from a GPU. It fills none with memory of other kinds; pieces
that are smaller than a block may share one.
"""

from collections.abc import Iterable, Mapping

from oci_hook.core.inventory import Gpu
from oci_hook.core.units import MIB

STEP = 512  # of the shim's account
PIECE = MIB + STEP  # an odd number of blocks of any power of two up to MIB, and one of a larger one
# Of a driver that was not measured: the pages of GPUs since Pascal, and what cuMemGetAllocationGranularity answers
# (CUDA driver API, virtual memory management). No document says that cuMemAlloc uses them; `gpu-validate --run memory` asks.
USUAL = 2 * MIB


def of_pieces(bytes_taken: int, pieces: int) -> int:
    """The block, by what the driver took for so many pieces of PIECE bytes; 0: they did not take whole blocks each."""
    each, rest = divmod(bytes_taken, pieces)
    block = each & -each
    return block if block >= STEP and not rest and -(-PIECE // block) * block == each else 0


def with_blocks(gpus: tuple[Gpu, ...], measured: Mapping[str, int], usual: int = USUAL) -> tuple[Gpu, ...]:
    """The GPUs with their blocks: measured, else that of another GPU of the node, else the usual one."""
    known: Iterable[int] = (size for size in measured.values() if size)
    other = max(known, default=usual)
    return tuple(gpu.replace(block_bytes=measured.get(gpu.uuid) or other) for gpu in gpus)
