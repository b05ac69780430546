"""Words of NVIDIA's container toolkit besides NVIDIA_VISIBLE_DEVICES, as annotations, and in the environment of nodes that
trust it. docs/reference/nvidia-toolkit.md has every difference.

NVIDIA_DRIVER_CAPABILITIES is bounded by what a share may have. NVIDIA_GPU_MEMORY_LIMIT (the toolkit's since September
2026, in MiB) is the share, and NVIDIA_GPU_MEMORY_REQUEST, which the toolkit wants beside it, may not exceed it; it is what is
booked where the node lends. The toolkit's sources read both with an S at the end, too. NVIDIA_REQUIRE_* are read by
core/collect.py, since their names are anybody's.
"""

from oci_hook.core import value_parsers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_hook.core.dialects import Row

REQUIRE = "NVIDIA_REQUIRE_"
DISABLE = "NVIDIA_DISABLE_REQUIRE"
CUDA = "CUDA_VERSION"  # in images before NVIDIA_REQUIRE_CUDA, which ask for everything
MEMORY_LIMIT = ("NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_LIMITS")
MEMORY_REQUEST = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_REQUESTS")
TRUE = ("true", "1", "t", "T", "TRUE", "True")  # Go's strconv.ParseBool

KEYS: "dict[str, Row]" = {
    "NVIDIA_DRIVER_CAPABILITIES": ("capabilities", value_parsers.bounded_capabilities, {}),
    **dict.fromkeys(MEMORY_LIMIT, ("memory", value_parsers.memory_mb, {})),
    **dict.fromkeys(MEMORY_REQUEST, ("memory-request", value_parsers.memory_mb, {})),
}
ENV = {key: key for key in KEYS}
SAME = ()


def required(variables: dict[str, str]) -> dict[str, str]:
    """The requirements in these variables, by variable."""
    if variables.get(DISABLE) in TRUE:
        return {}
    found = {key: text for key, text in variables.items() if key.startswith(REQUIRE) and "JETPACK" not in key}
    if is_old(variables):
        number = ".".join(variables[CUDA].split(".")[:2])
        found[CUDA] = f"cuda>={number}"
    return found


def is_old(variables: dict[str, str]) -> bool:
    """True if the image is from the time before NVIDIA_REQUIRE_CUDA: then it is a GPU container, with all capabilities."""
    return CUDA in variables and REQUIRE + "CUDA" not in variables
