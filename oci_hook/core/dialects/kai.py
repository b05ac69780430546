"""The keys of KAI Scheduler (https://github.com/kai-scheduler/KAI-Scheduler), of its GPU Fractioning, and of Run:ai.

GPU Fractioning names the container in the key: nvidia.com/container.NAME.gpu-memory.request. The others are for the pod's first
container, or for gpu-fraction-container-name. A container on a node does not know its place in the pod: there they hold for each.
A request and its limit default to each other; where the node lends, what is booked is the request, else the limit.
gpu-memory is in MiB. gpu-compute.mode can only be time-slicing.
"""

from oci_hook.core import quantity, units, value_parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from oci_hook.core.dialects import Row

NAMED = "nvidia.com/container."
OF_CONTAINER = "gpu-fraction-container-name"


def fraction(text: str) -> tuple[str, int]:
    """A part of a GPU's memory, in whole hundredths."""
    whole, _, part = text.partition(".")
    hundredths = (part.rstrip("0") + "00")[:2] if len(part.rstrip("0")) <= 2 else ""
    if whole not in ("", "0", "1") or not hundredths or not units.DIGITS.issuperset(part):
        raise ValueError("is not a part of a GPU in hundredths; write 0.25")
    percent = int(whole or "0") * 100 + int(hundredths)
    if not 1 <= percent <= 100:
        raise ValueError("is not within 0.01 to 1; write 0.25")
    return ("percent", percent)


def memory(text: str) -> tuple[str, int]:
    """A quantity of Kubernetes, such as 8Gi, 512Mi or 1G: in whole MiB, rounded up."""
    try:
        mib = quantity.rounded_up(text, units.MIB)
    except ValueError:
        raise ValueError("is not a size; write 8Gi or 512Mi") from None
    if not 1 <= mib <= units.MAX_MEMORY_MIB:
        raise ValueError("is not within 1Mi to 16Ti; write 8Gi")
    return ("mib", mib)


def turns(text: str) -> None:
    if text != "time-slicing":
        raise ValueError("is not time-slicing: here containers take turns; leave it out, and ask for compute")


KEYS: "dict[str, Row]" = {
    "gpu-fraction": ("memory-request", fraction, {}),
    "gpu-fraction.limit": ("memory", fraction, {}),
    "gpu-memory": ("memory-request", value_parsers.memory_mb, {}),
    "gpu-memory.limit": ("memory", value_parsers.memory_mb, {}),
    "gpu-fraction-num-devices": ("gpus", value_parsers.gpu_count, {}),
    OF_CONTAINER: ("containers", lambda text: None, {}),  # whom() reads it
    "runai/gpu-fraction": ("memory-request", fraction, {}),
    "nvidia.com/container.*.gpu-memory.request": ("memory-request", memory, {}),
    "nvidia.com/container.*.gpu-memory.limit": ("memory", memory, {}),
    "nvidia.com/container.*.gpu-compute.mode": ("policy", turns, {}),
}
ENV: dict[str, str] = {}
SAME = ()


def split(key: str) -> tuple[str, str]:
    """(the key as KEYS has it, the container that it names or "")."""
    if not key.startswith(NAMED):
        return key, ""
    name, _, what = key[len(NAMED) :].partition(".")
    return f"{NAMED}*.{what}", name


def whom(key: str, annotations: "Mapping[str, str]") -> str:
    """The container for which a key is; "" where nothing says it."""
    return split(key)[1] or str(annotations.get(OF_CONTAINER, ""))
