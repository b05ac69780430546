"""The node's rules, from its settings: bounds and defaults for requests and `allocate`; and the table of placement policies."""

from oci_hook.core.terms import AUTO, ONLINE
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from oci_hook.core.allocate import Usage


class Rules(Value):
    """Integers in MiB and percent points.

    profile: the profile that the settings name. memory_reserve: what is never granted of a GPU, in MiB or as
    ("percent", n) of it. memory_step, memory_min: memory limits are multiples of the first and at least the second.
    compute_step: guarantees are multiples of it. max_shares_per_gpu: the most containers on one GPU. memory_per_share:
    one container per so many MiB of a GPU; 0: no such bound. whole_gpus: "exclusive" or "shared", the meaning of a
    request without memory and compute. dialects: names of the enabled dialect tables. qgpu_memory_unit: "MiB", "GiB",
    or "none" if the dialect qgpu is off. linger: how long a container still counts as busy after its work, in
    nanoseconds; 0: the gate adapts it to the container. online_compute: "booking" or "share", what the compute of a
    container of class online is: booked in the ledger only, or its share as in other classes. near_misses: "auto",
    "refuse" or "warn", what happens to a container that asks in words which are not understood. boundary: who holds
    memory limits (core/boundary.py). driver_limit_extra: MiB that the driver's limit is above the grant. oversubscribe: how
    many per cent of a GPU's memory the limits of its containers may be together; what each requests is never booked twice.
    memory_wait: seconds that an allocation waits for room where more is granted than there is; 0: it fails at once.
    memory_turn: seconds that containers of one class, which have no room together, keep a GPU in turn.
    """

    default_policy: str = "burst-share"
    placement: str = "by-class"
    whole_gpus: str = "exclusive"
    memory_reserve: int | tuple[str, int] = 0
    memory_step: int = 1
    memory_min: int = 1
    compute_step: int = 1
    max_shares_per_gpu: int = 64
    memory_per_share: int = 0
    trust_env: bool = False
    dialects: tuple[str, ...] = ("t9k", "gpu-manager", "hami", "kai", "nvidia-volumes", "nvidia")
    qgpu_memory_unit: str = "none"
    linger: int = 0
    online_compute: str = "booking"
    near_misses: str = "auto"
    profile: str = "none"
    boundary: str = AUTO
    driver_limit_extra: int = 0
    oversubscribe: int = 100
    memory_wait: int = 600
    memory_turn: int = 30

    def reserve(self, memory_mib: int) -> int:
        """The MiB that are never granted of a GPU with so much memory, whoever asks."""
        said = self.memory_reserve
        return min(memory_mib, said if isinstance(said, int) else -(-memory_mib * said[1] // 100))

    def grantable(self, memory_mib: int) -> int:
        """The most MiB that one container can have of such a GPU."""
        return memory_mib - self.reserve(memory_mib)

    @property
    def lends(self) -> bool:
        """True if containers may have memory beyond their requests that others are granted as well."""
        return self.oversubscribe > 100

    @property
    def online_competes(self) -> bool:
        return self.online_compute == "booking"

    def competes(self, priority_class: str) -> bool:
        """True if the compute of a container of this class is only booked (Grant.competes)."""
        return self.online_competes and priority_class == ONLINE


# The placement policies: name -> sort key of a GPU's usage and its free compute for the container's class. Of the GPUs that have
# room, the one with the smallest key is chosen, and of equal ones that with the lowest index. To add a policy: a row here, and
# its name in the reference pages of annotations and settings.
ORDERS: "dict[str, Callable[[Usage, int], tuple[int, ...]]]" = {
    # A GPU in use before a free one, then the least free memory, then the least free compute.
    "binpack": lambda use, compute: (int(not use.containers), use.free_mib, compute),
    # The most free memory, then the most free compute, then the fewest containers.
    "spread": lambda use, compute: (-use.free_mib, -compute, use.containers),
}
BY_CLASS = "by-class"  # only as the node's setting: OF_CLASS has the policy for the container's class
OF_CLASS = {
    "online": "spread",
    "default": "binpack",
    "offline": "binpack",
}  # an online container should share with few others


def order_of(placement: str, priority_class: str) -> str:
    """The name in ORDERS that this policy means for a container of this class."""
    return OF_CLASS[priority_class] if placement == BY_CLASS else placement


def preference(name: str, use: "Usage", priority_class: str) -> tuple[int, ...]:
    """The sort key of a GPU for a container of this class, with its index for equal ones."""
    return (*ORDERS[name](use, use.compute_for(priority_class)), use.gpu.index, use.gpu.instance)
