"""The keys of the T9k scheduler: shares by memory, whole GPUs, whole nodes.

T9K_GPU_PERCENT is a percentage of a GPU's memory, not of its compute. T9K_GPU_MEMORY is in MB, by which T9k, as most
GPU dashboards, means MiB. The scheduler writes both side by side, the percentage rounded: the exact one counts. Of
annotations the other must agree with it, which only the GPU that is chosen can tell (core/allocate.py).
"""

from oci_hook.core import units, value_parsers
from oci_hook.core.value_parsers import ZERO, Amount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row


def every_gpu(text: str) -> str:
    units.integer(text, 1, 1)
    return value_parsers.ALL


KEYS: "dict[str, Row]" = {
    "NVIDIA_VISIBLE_DEVICES": ("devices", value_parsers.devices, {}),
    "T9K_GPU_PERCENT": ("memory", value_parsers.memory_percent, {}),
    "T9K_GPU_MEMORY": ("memory", value_parsers.memory_mb, {}),
    "tensorstack.dev/nvidia-gpu": ("gpus", Amount(value_parsers.gpu_count, ZERO), {"exclusive": True}),
    "tensorstack.dev/nvidia-gpu-percent": ("memory", Amount(value_parsers.memory_percent, unit="%"), {}),
    "tensorstack.dev/nvidia-gpu-node": ("gpus", Amount(every_gpu, ZERO), {"exclusive": True, "node": "exclusive"}),
}
ENV = {key: key for key in ("NVIDIA_VISIBLE_DEVICES", "T9K_GPU_PERCENT", "T9K_GPU_MEMORY")}
SAME = (("T9K_GPU_MEMORY", "T9K_GPU_PERCENT"), ("T9K_GPU_MEMORY", "tensorstack.dev/nvidia-gpu-percent"))
