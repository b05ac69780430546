"""The keys of TKE's qGPU: https://cloud.tencent.com/document/product/457/61448 (resources), /81107 (online, offline).

qgpu-memory is in MB in one of its documents and in GiB in another, so the node must say which: the setting qgpu_memory_unit.
qgpu-core below 100 is per cent of one GPU; 100, 200, ... are whole GPUs, but with `profile: qgpu`. An offline
container gets idle compute only,
and nothing is guaranteed to it, so qgpu-core-greedy only sets the class. qGPU's own steps (5 %, 1 GiB) are set by the
node (`profile: qgpu`), so a value between them is no error here.
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


def core(whole_gpus: bool) -> "Callable[[str], object]":
    """whole_gpus: whether 100, 200, ... are whole GPUs; in qGPU itself, qgpu-core is a part of one GPU."""
    return value_parsers.cores if whole_gpus else lambda text: units.integer(text, 1, 99)


def greedy(text: str) -> str:
    units.integer(text, 1, 100)
    return "offline"


KEYS: "dict[str, Row]" = {
    MEMORY: ("memory", Amount(memory("")), {}),
    CORE: ("compute", Amount(value_parsers.cores, NO_GPU), {}),
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
