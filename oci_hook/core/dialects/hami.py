"""The keys of HAMi (https://github.com/Project-HAMi/HAMi). NVIDIA's own device plugin uses `nvidia.com/gpu` as well.

nvidia.com/gpu is a number of GPUs; the other keys say what the container gets of each. gpumem is in MB, by which HAMi
means MiB. HAMi's default priority is 1, so 1 is the class default here, not offline.
"""

from oci_hook.core import units, value_parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row


def gpucores(text: str) -> int | None:
    """Per cent; with HAMi, 0 means the same as no value."""
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
