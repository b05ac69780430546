"""Our own keys, below the annotation prefix gpu-hook.io/."""

from oci_hook.core import units, value_parsers
from oci_hook.core.terms import VISIBLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row

KEYS: "dict[str, Row]" = {
    "memory": ("memory", units.memory, {}),
    "memory-request": ("memory-request", units.memory, {}),
    "compute": ("compute", units.percent, {}),
    "gpus": ("gpus", value_parsers.Amount(value_parsers.gpus, value_parsers.VOID), {}),
    "devices": ("devices", value_parsers.devices, {}),
    "policy": ("policy", value_parsers.policy, {}),
    "compute-limit": ("compute-limit", units.percent, {}),
    "class": ("class", value_parsers.priority_class, {}),
    "exclusive": ("exclusive", value_parsers.flag, {}),
    "preempt-tolerance": ("preempt-tolerance", value_parsers.preempt_tolerance, {}),
    "placement": ("placement", value_parsers.placement, {}),
    "capabilities": ("capabilities", value_parsers.capabilities, {}),
    "imex-channels": ("imex-channels", value_parsers.channels, {}),
    "boundary": ("boundary", value_parsers.boundary, {}),
    "visible": ("visible", value_parsers.one_of(VISIBLE), {}),
    "apart-from": ("apart-from", value_parsers.word, {}),
    "node": ("node", value_parsers.one_of(("exclusive",)), {"gpus": value_parsers.ALL, "exclusive": True}),
}
ENV = {"GPU_HOOK_" + key.upper().replace("-", "_"): key for key in KEYS} | {"NVIDIA_IMEX_CHANNELS": "imex-channels"}
SAME = ()
