"""The keys of TKE's qGPU: https://cloud.tencent.com/document/product/457/61448 (resources), /81107 (online, offline).

qgpu-memory is in MB in one of its documents and in GiB in another, so the node must say which: the setting qgpu_memory_unit.
qgpu-core below 100 is per cent of one GPU; 100, 200, ... are whole GPUs. Above 100, core and memory are divided among as few GPUs
as have them, rounded down (/127667). With `profile: qgpu` it is below 100 only. An offline container gets idle compute only, and
nothing is guaranteed to it, so qgpu-core-greedy only sets the class. qGPU's own steps (5 %, 1 GiB) are set by the node
(`profile: qgpu`), so a value between them is no error here.
"""

from oci_hook.core import units, value_parsers
from oci_hook.core.value_parsers import NO_GPU, Amount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.core.dialects import Row
    from oci_hook.core.rules import Rules

PREFIX = "tke.cloud.tencent.com/"
MEMORY = PREFIX + "qgpu-memory"
CORE = PREFIX + "qgpu-core"
UNITS = {"MiB": 1, "GiB": 1 << 10}  # values of that setting -> MiB


def memory(unit: str) -> "Callable[[str], tuple[str, int]]":
    def read(text: str) -> tuple[str, int]:
        if unit not in UNITS:
            raise ValueError(
                "has no unit here: say MiB or GiB (setting qgpu_memory_unit, translate --qgpu-memory-unit)"
            )
        return ("mib", units.integer(text, 1, units.MAX_MEMORY_MIB // UNITS[unit]) * UNITS[unit])

    return read


def core(several: bool) -> "Callable[[str], object]":
    """several: whether more than 99 is of whole GPUs, or of several; in older qGPU, qgpu-core is a part of one GPU."""
    return cores if several else lambda text: units.integer(text, 1, 99)


def cores(text: str) -> value_parsers.Several:
    """160 is of two GPUs, 80 of each; core/validate.py (divide) has the memory."""
    number = units.integer(text, 1, 100 * value_parsers.MAX_GPUS)
    if number < 100 or number % 100 == 0:
        return value_parsers.cores(text)
    count = number // 100 + 1
    return value_parsers.Several(gpus=count, compute=number // count)


def greedy(text: str) -> str:
    units.integer(text, 1, 100)
    return "offline"


KEYS: "dict[str, Row]" = {
    MEMORY: ("memory", Amount(memory("")), {}),
    CORE: ("compute", Amount(cores, NO_GPU), {}),
    PREFIX + "qgpu-core-greedy": ("class", Amount(greedy), {}),
    PREFIX + "qgpu-schedule-policy": ("policy", value_parsers.policy, {}),
    PREFIX + "app-class": ("class", value_parsers.one_of(("online", "offline")), {}),
}
ENV: dict[str, str] = {}
SAME = ()


def rows(rules: "Rules") -> "dict[str, Row]":
    return {
        **KEYS,
        MEMORY: ("memory", Amount(memory(rules.qgpu_memory_unit)), {}),
        CORE: ("compute", Amount(core(rules.profile != "qgpu"), NO_GPU), {}),
    }
