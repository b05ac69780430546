"""Which boundary holds a share's memory limit: the shim in the container, or also the driver (R615 and later).

The driver keeps one limit per GPU and cgroup, whatever library allocates (NVML, nvmlDeviceSetMemoryLimits_v1; the MPS
manual, "Memory Partitioning"). Pure: boundary/ sets the limits.
"""

from oci_hook.core.rules import Rules
from oci_hook.core.terms import BOUNDARY_NUMBERS, DRIVER, SHIM
from oci_hook.core.units import MIB
from oci_hook.core.value import Value
from oci_hook.errors import NoRoomError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oci_hook.core.grant import Grant, Share
    from oci_hook.core.inventory import Gpu, Inventory

FIRST_DRIVER = 615  # the first driver whose NVML has the two functions (nvidia-ml-py 13.615)
NO_LIMIT = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX: as hardLimit, it clears a limit
NO_CGROUP2 = "the driver needs cgroup v2 at /sys/fs/cgroup, and something else is mounted there"


class Limit(Value):
    """The limits that the driver keeps for a container's cgroup on one GPU, in bytes. hard = NO_LIMIT: none."""

    uuid: str
    soft: int
    hard: int


class Boundary(Value):
    """The boundary of one container. name: DRIVER if every limit that it has is the driver's as well, else SHIM.
    why: for SHIM, why not the stronger one."""

    name: str
    why: str = ""


def weaker(asked: str, setting: str) -> bool:
    """True if a container asks for less than the node's setting promises."""
    return BOUNDARY_NUMBERS[asked] < BOUNDARY_NUMBERS[setting]


def limit_of(share: "Share", rules: Rules) -> Limit:
    """The driver's limit for this share. A whole GPU has none. The driver counts all device memory, contexts too, as the
    grant does.

    Where the node lends, the soft limit is what the share requests: MPS evicts others first. Elsewhere nobody can want
    more than there is, and a soft limit may outlive its cgroup (boundary/leaks.py).
    """
    if share.whole:
        return Limit(share.uuid, 0, NO_LIMIT)
    extra = rules.driver_limit_extra
    soft = (share.booked_mib + extra) * MIB if rules.lends else 0
    return Limit(share.uuid, soft, (share.memory_mib + extra) * MIB)


def limits_of(grant: "Grant", inventory: "Inventory", rules: Rules) -> tuple[Limit, ...]:
    """What to set at the container's start, for each of its GPUs that can; () where its boundary is the shim alone. A
    GPU without a limit is in it as well: the cgroup may have an old one's path, and so its limit."""
    if grant.terms.boundary == SHIM:
        return ()
    able = [share for share in grant.shares if not _cannot(share, inventory)]
    return tuple(limit_of(share, rules) for share in able)


def changed_limits(old: tuple[Limit, ...], new: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Between two limits, while a share is changed: of each GPU the larger one."""
    sizes = {limit.uuid: limit for limit in new}
    return tuple(limit if limit.hard > sizes[limit.uuid].hard else sizes[limit.uuid] for limit in old)


def limits_on(grant: "Grant", uuids: "Iterable[str]", rules: Rules) -> tuple[Limit, ...]:
    """The grant's limits on these GPUs, in their order."""
    shares = {share.uuid: share for share in grant.shares}
    return tuple(limit_of(shares[uuid], rules) for uuid in uuids if uuid in shares)


def lacks(grant: "Grant", limits: tuple[Limit, ...]) -> str:
    """A GPU on which the grant insists on the driver's limit and these have none; "" where there is no such."""
    if grant.terms.boundary != DRIVER:
        return ""
    limited = {limit.uuid for limit in limits}
    return next((share.uuid for share in grant.shares if not share.whole and share.uuid not in limited), "")


def needs_step(grant: "Grant", inventory: "Inventory") -> bool:
    """True if something has to be done at the container's start, before its first process runs."""
    limits = limits_of(grant, inventory, Rules())
    return bool(limits or lacks(grant, limits))


def expected(grant: "Grant", inventory: "Inventory") -> Boundary:
    """The boundary that this grant is to have; boundary/limit_records.py says what it has."""
    if grant.terms.boundary == SHIM:
        return Boundary(SHIM, "the setting `boundary` is shim")
    limited = [share for share in grant.shares if not share.whole]
    if not limited:
        return Boundary(SHIM, "it has no memory limit" if grant.shares else "it has no GPU")
    why = next((reason for share in limited if (reason := _cannot(share, inventory))), "")
    return Boundary(SHIM, why) if why else Boundary(DRIVER)


def obstacle(gpu: "Gpu", whole: bool, boundary: str) -> str:
    """Why a container that insists on the driver's limit cannot have a share of this GPU; "" where it can."""
    return gpu.no_limits if boundary == DRIVER and not whole else ""


def why_not(mig: bool, version: str, answer: str, cgroup2: bool) -> str:
    """Why the driver keeps no limits per cgroup on this GPU; "" where it does. For discovery.

    answer: of its getter: "" it knows the call, "missing" it has no such function, or its error.
    """
    if mig:
        return "it is a MIG device, for which the driver has no such limits"
    if answer == "missing":
        return f"driver {version or 'of this node'} is older than {FIRST_DRIVER}"
    if not cgroup2:
        return NO_CGROUP2
    return f"driver {version}: {answer}" if answer else ""


def _cannot(share: "Share", inventory: "Inventory") -> str:
    try:
        return inventory.gpu(share.uuid).no_limits
    except NoRoomError:
        return "the GPU is no longer there"
