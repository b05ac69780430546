"""Our own keys, below the annotation prefix gpu-hook.io/."""

from oci_hook.core import units, wishes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row

KEYS: "dict[str, Row]" = {
    "memory": ("memory", units.memory, {}),
    "compute": ("compute", units.percent, {}),
    "gpus": ("gpus", wishes.gpus, {}),
    "devices": ("devices", wishes.devices, {}),
    "policy": ("policy", wishes.policy, {}),
    "compute-limit": ("compute-limit", units.percent, {}),
    "class": ("class", wishes.priority_class, {}),
    "exclusive": ("exclusive", wishes.flag, {}),
    "preempt-tolerance": ("preempt-tolerance", wishes.preempt_tolerance, {}),
    "placement": ("placement", wishes.placement, {}),
    "capabilities": ("capabilities", wishes.capabilities, {}),
    "imex-channels": ("imex-channels", wishes.channels, {}),
}
ENV = {"GPU_HOOK_" + key.upper().replace("-", "_"): key for key in KEYS} | {"NVIDIA_IMEX_CHANNELS": "imex-channels"}
SAME = ()
