"""The node's placement rules, as compiled from settings: bounds and defaults that requests and `allocate` obey."""

from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.core.allocate import Usage


class Rules(Value):
    """Integers in MiB and percent points.

    memory_reserve: MiB of each GPU that is never granted. memory_step / memory_min: a share's granularity and floor.
    compute_step: likewise for compute. max_shares_per_gpu: containers on one GPU. memory_per_share: MiB of a GPU's
    memory for each container that may share it, 0: no such bound. whole_gpus: "exclusive" or "shared", what a request
    without memory and compute means. dialects: names of the enabled dialect tables. qgpu_memory_unit: "MiB", "GiB", or
    "none" where the dialect qgpu is off. linger: how long a container still counts as busy after its work, in
    nanoseconds, 0: as long as suits it.
    """

    default_policy: str = "burst-share"
    placement: str = "by-class"
    whole_gpus: str = "exclusive"
    memory_reserve: int = 0
    memory_step: int = 1
    memory_min: int = 1
    compute_step: int = 1
    max_shares_per_gpu: int = 64
    memory_per_share: int = 0
    trust_env: bool = False
    dialects: tuple[str, ...] = ("t9k", "gpu-manager", "hami", "nvidia-volumes")
    qgpu_memory_unit: str = "none"
    linger: int = 0


# The placement policies: which GPU is tried first among those that have room. To add one: a row here, and its word in
# docs/annotations.md and docs/settings.md.
# Name -> sort key of a GPU's use; the smallest key comes first. Ties: the GPU with the lower index.
ORDERS: "dict[str, Callable[[Usage], tuple[int, ...]]]" = {
    # A GPU in use before a free one, then the least free memory, then the least free compute.
    "binpack": lambda use: (int(not use.containers), use.free_mib, use.free_compute),
    # The most free memory, then the most free compute, then the fewest containers.
    "spread": lambda use: (-use.free_mib, -use.free_compute, use.containers),
}
BY_CLASS = "by-class"  # a node's policy only: the one that this table has for the container's class
OF_CLASS = {"online": "spread", "default": "binpack", "offline": "binpack"}  # online containers should meet few others


def order_of(placement: str, priority_class: str) -> str:
    """The name of the order that a policy means for a container of this class."""
    return OF_CLASS[priority_class] if placement == BY_CLASS else placement


def preference(name: str, use: "Usage") -> tuple[int, ...]:
    """The sort key of a GPU under this order."""
    return (*ORDERS[name](use), use.gpu.index, use.gpu.instance)
