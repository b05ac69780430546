"""A grant: the GPUs and shares of one container, whose it is, and how long it counts."""

from oci_hook.core.terms import OFFLINE, ONLINE, Terms
from oci_hook.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Share(Value):
    """A grant's part of one GPU.

    memory_mib: the limit in MiB. request_mib: how much of that is booked, and always there for it; 0: all of it. compute: booked
    per cent (0: none), which the policy guarantees, unless it is best-effort. compute_limit: the ceiling in per cent.
    whole: no limits are enforced on this GPU. slot: 1 + the number of the container's slot on the GPU page; 0 where the
    container has the GPU for itself, so that it is not time-shared.
    """

    uuid: str
    memory_mib: int
    compute: int = 0
    compute_limit: int = 100
    whole: bool = False
    slot: int = 0
    request_mib: int = 0

    @property
    def booked_mib(self) -> int:
        return self.request_mib or self.memory_mib


class Identity(Value):
    """The container of a grant. The grant's key is made from root, the runtime's state directory, and id, the container's.

    An OCI hook cannot know the runtime's state directory; its root is "bundle:" and the bundle's path.
    pod_uid, namespace, pod, container: from the annotations of containerd or CRI-O, "" outside Kubernetes.
    """

    root: str
    id: str
    bundle: str
    engine: str = ""
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


class Life(Value):
    """The life of a grant: it counts while any of these processes lives, in this boot.

    creator, init: (pid, start time in clock ticks since boot, field 22 of /proc/PID/stat) or None.
    cgroup: a cgroup directory of the container ("" unknown); a process in it keeps the grant alive as well.
    cgroup_inode: the directory's inode number (0: do not compare). A directory with another inode number under the same
    path belongs to another container.
    deadline: seconds of the system's monotonic clock until which the grant counts for a container that does not exist yet
    (0: none). Before that it ends with the creator, if that is known.
    space: the inode number of the pid namespace in which the pids are valid (0: the reader's own).
    """

    boot_id: str
    creator: tuple[int, int] | None = None
    init: tuple[int, int] | None = None
    cgroup: str = ""
    cgroup_inode: int = 0
    deadline: int = 0
    space: int = 0


class Grant(Value):
    """An entry of the ledger. shares is empty for a container that gets driver files but no GPU.

    created: seconds since 1970. born: nanoseconds of the system's monotonic clock; different for every grant that ever
    had a slot. linger: how long the container still counts as busy after its work, in nanoseconds; 0: the gate adapts it
    to the container. frozen: when an administrator stopped its compute, in seconds since 1970; 0: it is not stopped.
    online_competes: whether containers of class online compete freely, as the setting online_compute said at its start.
    suspended: since when its memory is in the host's and its GPUs are free of it, in seconds since 1970; 0: it is not.
    moving: since when its memory is on the way from or to its GPUs, in seconds since 1970; 0: it is not. Then both are
    booked, so that each end of the way has room. host_mib: MiB of the host's memory that it holds for either. memory_wait:
    seconds that its allocations wait for room on a GPU whose memory is lent; 0: they fail at once. lent_to: the id of the
    container for which the agent suspended it; "": nobody, or a person did.
    """

    key: str
    who: Identity
    life: Life
    shares: tuple[Share, ...]
    terms: Terms = Terms()
    exclusive: bool = False
    online_competes: bool = False
    driver_version: str = ""
    created: int = 0
    born: int = 0
    linger: int = 0
    frozen: int = 0
    suspended: int = 0
    moving: int = 0
    host_mib: int = 0
    memory_wait: int = 0
    lent_to: str = ""

    def place(self, uuid: str) -> int:
        """The number of its share of this GPU, which it has."""
        return next(i for i, share in enumerate(self.shares) if share.uuid == uuid)

    @property
    def off_gpu(self) -> bool:
        """Its memory is not all on its GPUs, so its processes may take none there."""
        return bool(self.suspended or self.moving)

    @property
    def booked(self) -> bool:
        """Its shares are booked. A person who suspends it gives them up; the agent makes room for a while only."""
        return not self.suspended or bool(self.lent_to)

    @property
    def stopped(self) -> bool:
        """Its work on its GPUs is stopped: it was frozen or suspended."""
        return bool(self.frozen) or self.off_gpu

    @property
    def competes(self) -> bool:
        """Its compute is only booked in the ledger: it shares by competition with others of class online."""
        return self.online_competes and self.terms.priority_class == ONLINE


def booked_compute(uuid: str, grants: "Iterable[Grant]") -> tuple[int, int]:
    """The booked compute of a GPU, in per cent: by those of the classes online and default, and those of class offline, of 100
    each (core/allocate.py)."""
    found = [0, 0]
    for grant, share in _booked(uuid, grants):
        found[grant.terms.priority_class == OFFLINE] += share.compute
    return found[0], found[1]


def booked_memory(uuid: str, grants: "Iterable[Grant]") -> int:
    """The booked memory of a GPU, in MiB."""
    return sum(share.booked_mib for _, share in _booked(uuid, grants))


def memory_limits(uuid: str, grants: "Iterable[Grant]") -> int:
    """The limits of those who have booked memory of a GPU, together, in MiB: more than that where it is lent."""
    return sum(share.memory_mib for _, share in _booked(uuid, grants))


def _booked(uuid: str, grants: "Iterable[Grant]") -> "Iterator[tuple[Grant, Share]]":
    return ((grant, share) for grant in grants if grant.booked for share in grant.shares if share.uuid == uuid)
