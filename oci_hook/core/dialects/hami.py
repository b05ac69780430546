"""The keys of HAMi (https://github.com/Project-HAMi/HAMi). NVIDIA's own device plugin uses `nvidia.com/gpu` as well.

nvidia.com/gpu is a number of GPUs; the other keys say what the container gets of each. gpumem is in MB, by which HAMi
means MiB. HAMi's default priority is 1, so 1 is the class default here, not offline.
"""

from oci_hook.core import units, value_parsers
from oci_hook.core.value_parsers import ZERO, Amount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row


def gpucores(text: str) -> int:
    """Per cent."""
    return units.integer(text, 1, 100)


def priority(text: str) -> str:
    return ("online", "default")[units.integer(text, 0, 1)]


def order(text: str) -> "str | None":
    """topology-aware is what placing does anyhow: GPUs that are near each other."""
    if text not in ("binpack", "spread", "topology-aware"):
        raise ValueError("is not one of binpack, spread, topology-aware")
    return None if text == "topology-aware" else text


KEYS: "dict[str, Row]" = {
    "nvidia.com/gpu": ("gpus", Amount(value_parsers.gpu_count, ZERO), {}),
    "nvidia.com/gpumem": ("memory", Amount(value_parsers.memory_mb), {}),
    "nvidia.com/gpumem-percentage": ("memory", Amount(value_parsers.memory_percent, unit="%"), {}),
    "nvidia.com/gpucores": ("compute", Amount(gpucores), {}),
    "nvidia.com/priority": ("class", priority, {}),
}
# Of a scheduler, so only a cluster's webhook and `translate` read them (kube/pod/translate_pod.py).
OF_PODS: "dict[str, Row]" = {
    "hami.io/gpu-scheduler-policy": ("placement", order, {}),
    "hami.io/node-scheduler-policy": ("node-placement", order, {}),
}
ENV: dict[str, str] = {}
SAME = ()
