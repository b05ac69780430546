"""Requests of GPUs and their terms: values that go unchanged from the request to the grant, its pages and events.

CONTRIBUTING.md lists what else a new annotation needs.
"""

from oci_hook.core.value import Value

POLICIES = ("best-effort", "fixed-share", "burst-share")  # the number of a policy in pages is its place here
CLASSES = ("offline", "default", "online")  # the lowest first; likewise
OFFLINE, ONLINE = CLASSES[0], CLASSES[-1]  # offline work has what the other classes leave idle
BOUNDARIES = SHIM, AUTO, DRIVER = ("shim", "auto", "driver")  # the weakest promise first
POLICY_NUMBERS = {name: number for number, name in enumerate(POLICIES)}
CLASS_NUMBERS = {name: number for number, name in enumerate(CLASSES)}
VISIBLE = ("uuid", "index", "all")
BOUNDARY_NUMBERS = {name: number for number, name in enumerate(BOUNDARIES)}
WORDS = {
    "policy": POLICIES,
    "priority_class": CLASSES,
    "visible": VISIBLE,
    "boundary": BOUNDARIES,
}  # of those terms that are one of a few words


class GpuRequest(Value):
    """A request of one GPU.

    device: None (any GPU), an index ("0") or a UUID ("GPU-...") of exactly this GPU.
    memory: ("mib", n), or ("percent", n) of the GPU that is chosen, 1..100; None: not asked for.
    compute: guaranteed per cent 1..100, or None (no guarantee).
    memory_request: how much of the memory is always there for it, as memory has it; None: all. The node may lend the rest.
    Neither memory nor compute: the whole GPU.
    """

    device: str | None = None
    memory: tuple[str, int] | None = None
    compute: int | None = None
    memory_request: tuple[str, int] | None = None

    @property
    def whole(self) -> bool:
        return self.memory is None and self.compute is None


class Terms(Value):
    """The terms of a container, the same on all of its GPUs.

    preempt_tolerance_us: the longest time in microseconds that a lower class may hold the GPU once this container has
    work; None: no limit. capabilities: which of the driver's files it gets. imex_channels: the numbers of the IMEX
    channels that it may open; only with whole GPUs. visible: how NVIDIA_VISIBLE_DEVICES names its GPUs: "uuid", "index", or
    "all" where it has every GPU of the node. boundary: who must hold its memory limit (core/boundary.py). apart_from: it is on
    no GPU with a container of another pod of its namespace that says the same word; "": it may be.
    """

    policy: str = "burst-share"
    priority_class: str = "default"
    preempt_tolerance_us: int | None = None
    capabilities: tuple[str, ...] = ("compute", "utility")
    imex_channels: tuple[int, ...] = ()
    visible: str = "uuid"
    boundary: str = AUTO
    apart_from: str = ""

    def data(self) -> "dict[str, object]":
        """The terms as JSON has them: `class` is the field priority_class, a reserved word in Python."""
        return {data_name(name): list(v) if isinstance(v, tuple) else v for name, v in self.fields().items()}


def data_name(field: str) -> str:
    """The name of a term in JSON."""
    return field.removeprefix("priority_")


def compute_of(priority_class: str) -> str:
    """Which of a GPU's two bookings, of 100 per cent each, the compute of this class is a part of."""
    return "offline compute" if priority_class == OFFLINE else "compute"


def key(field: str) -> str:
    """The annotation key of a term, without the prefix."""
    return data_name(field).removesuffix("_us").replace("_", "-")
