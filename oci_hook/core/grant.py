"""Cards and shares given to one container, and what that gift lives by."""

from oci_hook.core.value import Value


class Share(Value):
    """One card's part of a grant.

    memory_mib: the limit in MiB. compute: guaranteed per cent (0: none). compute_limit: ceiling per cent.
    whole: no limits are enforced on this card.
    """

    __slots__ = ("uuid", "memory_mib", "compute", "compute_limit", "whole")

    def __init__(
        self, uuid: str, memory_mib: int, compute: int = 0, compute_limit: int = 100, whole: bool = False
    ) -> None:
        self.uuid = uuid
        self.memory_mib = memory_mib
        self.compute = compute
        self.compute_limit = compute_limit
        self.whole = whole


class Identity(Value):
    """Whose grant it is. (root, id) is the key: the runtime's state directory and the container's id.

    Where a front end cannot know the root (OCI hooks), root is "bundle:" + the bundle's path.
    pod_uid, namespace, pod, container: from the io.kubernetes.cri.* annotations, "" outside Kubernetes.
    """

    __slots__ = ("root", "id", "bundle", "engine", "pod_uid", "namespace", "pod", "container")

    def __init__(
        self,
        root: str,
        id: str,
        bundle: str,
        engine: str = "",
        pod_uid: str = "",
        namespace: str = "",
        pod: str = "",
        container: str = "",
    ) -> None:
        self.root = root
        self.id = id
        self.bundle = bundle
        self.engine = engine
        self.pod_uid = pod_uid
        self.namespace = namespace
        self.pod = pod
        self.container = container


class Life(Value):
    """What a grant lives by: it counts while any of these processes lives, in this boot.

    creator, init: (pid, start time in clock ticks since boot, field 22 of /proc/PID/stat) or None.
    cgroup: a cgroup directory of the container ("" unknown); a process in it keeps the grant alive as well.
    cgroup_inode: of that directory; another one under the same path is another container's (0: do not compare).
    deadline: seconds of the system's monotonic clock until which a grant without any of these counts: its container
    is about to be made, by nobody that we could watch (0: none).
    """

    __slots__ = ("boot_id", "creator", "init", "cgroup", "cgroup_inode", "deadline")

    def __init__(
        self,
        boot_id: str,
        creator: tuple[int, int] | None = None,
        init: tuple[int, int] | None = None,
        cgroup: str = "",
        cgroup_inode: int = 0,
        deadline: int = 0,
    ) -> None:
        self.boot_id = boot_id
        self.creator = creator
        self.init = init
        self.cgroup = cgroup
        self.cgroup_inode = cgroup_inode
        self.deadline = deadline


class Grant(Value):
    """The ledger's entry. shares is empty for a container that gets driver files but no card."""

    __slots__ = (
        "key",
        "who",
        "life",
        "shares",
        "policy",
        "priority_class",
        "exclusive",
        "capabilities",
        "driver_version",
        "created",
    )

    def __init__(
        self,
        key: str,
        who: Identity,
        life: Life,
        shares: tuple[Share, ...],
        policy: str = "burst-share",
        priority_class: str = "default",
        exclusive: bool = False,
        capabilities: tuple[str, ...] = ("compute", "utility"),
        driver_version: str = "",
        created: int = 0,
    ) -> None:
        self.key = key
        self.who = who
        self.life = life
        self.shares = shares
        self.policy = policy
        self.priority_class = priority_class
        self.exclusive = exclusive
        self.capabilities = capabilities
        self.driver_version = driver_version
        self.created = created
