"""The words of HAMi (https://github.com/Project-HAMi/HAMi); `nvidia.com/gpu` alone is NVIDIA's own device plugin's too.

nvidia.com/gpu is a number of GPUs, of each of which the container gets the rest. gpumem is in MB, which there means
MiB. A priority of 1 is what HAMi gives who says nothing, so it is no lower class here.
"""

from oci_hook.core import units, value_parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row


def gpucores(text: str) -> int | None:
    """Per cent; 0 is HAMi's way to say nothing."""
    return units.integer(text, 0, 100) or None


def priority(text: str) -> str:
    return ("online", "default")[units.integer(text, 0, 1)]


KEYS: "dict[str, Row]" = {
    "nvidia.com/gpu": ("gpus", value_parsers.gpu_count, {}),
    "nvidia.com/gpumem": ("memory", value_parsers.memory_mb, {}),
    "nvidia.com/gpumem-percentage": ("memory", value_parsers.memory_percent, {}),
    "nvidia.com/gpucores": ("compute", gpucores, {}),
    "nvidia.com/priority": ("class", priority, {}),
}
ENV: dict[str, str] = {}
SAME = ()
