"""GPUs and shares given to one container, and what that gift lives by."""

from oci_hook.core.terms import Terms
from oci_hook.core.value import Value


class Share(Value):
    """One GPU's part of a grant.

    memory_mib: the limit in MiB. compute: guaranteed per cent (0: none). compute_limit: ceiling per cent.
    whole: no limits are enforced on this GPU. slot: 1 + the container's slot on the GPU page, 0 where the GPU is the
    container's alone and not shared out in time.
    """

    uuid: str
    memory_mib: int
    compute: int = 0
    compute_limit: int = 100
    whole: bool = False
    slot: int = 0


class Identity(Value):
    """Whose grant it is. (root, id) is the key: the runtime's state directory and the container's id.

    Where a front end cannot know the root (OCI hooks), root is "bundle:" + the bundle's path.
    pod_uid, namespace, pod, container: from the io.kubernetes.cri.* annotations, "" outside Kubernetes.
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
    """What a grant lives by: it counts while any of these processes lives, in this boot.

    creator, init: (pid, start time in clock ticks since boot, field 22 of /proc/PID/stat) or None.
    cgroup: a cgroup directory of the container ("" unknown); a process in it keeps the grant alive as well.
    cgroup_inode: of that directory; another one under the same path is another container's (0: do not compare).
    deadline: seconds of the system's monotonic clock until which a grant without any of these counts: its container
    is about to be made, by nobody that we could watch (0: none).
    space: the inode number of the pid namespace that the pids are of (0: the reader's own).
    """

    boot_id: str
    creator: tuple[int, int] | None = None
    init: tuple[int, int] | None = None
    cgroup: str = ""
    cgroup_inode: int = 0
    deadline: int = 0
    space: int = 0


class Grant(Value):
    """The ledger's entry. shares is empty for a container that gets driver files but no GPU.

    created: in seconds since 1970. born: in nanoseconds of the system's monotonic clock; another one for every grant
    that ever had a slot. linger: how long the container still counts as busy after its work, in nanoseconds; 0: as long
    as suits it. frozen: since when an administrator stops its compute, in seconds since 1970; 0: not.
    """

    key: str
    who: Identity
    life: Life
    shares: tuple[Share, ...]
    terms: Terms = Terms()
    exclusive: bool = False
    driver_version: str = ""
    created: int = 0
    born: int = 0
    linger: int = 0
    frozen: int = 0
