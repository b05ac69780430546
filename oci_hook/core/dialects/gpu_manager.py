"""The keys of gpu-manager (https://github.com/tkestack/gpu-manager) and of its fork under nvidia.com/.

vcuda-core: below 100 a share of one GPU in per cent; 100, 200, ... are whole GPUs. vcuda-memory: blocks of 256 MiB; in
the fork MB, by which it means MiB. vcuda-core-limit: a ceiling above the guarantee, which only burst-share has.
"""

from oci_hook.core import units, value_parsers
from oci_hook.core.value_parsers import NO_GPU, Amount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row

BLOCK = 256  # MiB


def blocks(text: str) -> tuple[str, int]:
    return ("mib", units.integer(text, 1, units.MAX_MEMORY_MIB // BLOCK) * BLOCK)


LIMIT: "Row" = ("compute-limit", Amount(units.percent, unit="%"), {"policy": "burst-share"})

KEYS: "dict[str, Row]" = {
    "tencent.com/vcuda-core": ("compute", Amount(value_parsers.cores, NO_GPU), {}),
    "tencent.com/vcuda-memory": ("memory", Amount(blocks), {}),
    "tencent.com/vcuda-core-limit": LIMIT,
    "nvidia.com/vcuda-core": ("compute", Amount(value_parsers.cores, NO_GPU), {}),
    "nvidia.com/vcuda-memory": ("memory", Amount(value_parsers.memory_mb), {}),
    "nvidia.com/vcuda-core-limit": LIMIT,
}
ENV: dict[str, str] = {}
SAME = ()
