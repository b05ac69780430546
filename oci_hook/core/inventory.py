"""What exists on the node: GPUs and driver files, as values. Discovery and the cache are in node/."""

from oci_hook.core.value import Value

WHOLE = "+whole"  # behind a driver file's capability
MIG = "mig"  # a GpuNode's capability: the nodes that open a MIG device, which every container with it gets


class Gpu(Value):
    """One GPU. memory_mib: total memory in MiB. minor: N of /dev/nvidiaN. numa: node or -1. simulated: no real GPU.

    context_mib: what one process's context takes of it in MiB, rounded up; 0 not known. time_scale: how many times as
    long as it says a simulated GPU takes for everything; 1 for real ones.
    A MIG device is a GPU as well: parent is the UUID of the GPU that it is part of, "" for a GPU; index, minor, pci
    and numa are the parent's, instance its number there, -1 for a GPU. file: the host file that is a simulated GPU,
    which containers get at layout.SIM_GPUS/<its name>; "" for real ones.
    """

    __slots__ = (
        "uuid",
        "index",
        "minor",
        "memory_mib",
        "name",
        "pci",
        "numa",
        "simulated",
        "context_mib",
        "time_scale",
        "parent",
        "instance",
        "file",
    )

    def __init__(
        self,
        uuid: str,
        index: int,
        minor: int,
        memory_mib: int,
        name: str = "",
        pci: str = "",
        numa: int = -1,
        simulated: bool = False,
        context_mib: int = 0,
        time_scale: int = 1,
        parent: str = "",
        instance: int = -1,
        file: str = "",
    ) -> None:
        self.uuid = uuid
        self.index = index
        self.minor = minor
        self.memory_mib = memory_mib
        self.name = name
        self.pci = pci
        self.numa = numa
        self.simulated = simulated
        self.context_mib = context_mib
        self.time_scale = time_scale
        self.parent = parent
        self.instance = instance
        self.file = file

    @property
    def address(self) -> str:
        """As people name it: 0, or 0:1 for a MIG device."""
        return f"{self.index}:{self.instance}" if self.parent else str(self.index)


class DriverFile(Value):
    """One file of the driver, as found in the driver root.

    path: absolute host path. kind: "library" | "binary" | "data" | "firmware" | "socket" | "proc". capability: see
    request; with WHOLE behind it, only for containers whose GPUs are whole: it reaches a GPU past libcuda.
    names: for a library, the file names it must have in the container (versioned name and soname; an absolute one is a
    path of its own); for data, its path in the container; else ().
    """

    __slots__ = ("path", "kind", "capability", "names")

    def __init__(self, path: str, kind: str, capability: str, names: tuple[str, ...] = ()) -> None:
        self.path = path
        self.kind = kind
        self.capability = capability
        self.names = names


class DeviceFile(Value):
    """A control node every GPU container needs (nvidiactl, nvidia-uvm, ...): character device numbers, 0666."""

    __slots__ = ("path", "major", "minor")

    def __init__(self, path: str, major: int, minor: int) -> None:
        self.path = path
        self.major = major
        self.minor = minor


class GpuNode(Value):
    """A device node beside /dev/nvidiaN that containers with whole GPUs and this capability get, mode 0666; those of
    capability MIG, every container with the GPU.

    uuid: of the GPU that it belongs to, "" for every GPU.
    """

    __slots__ = ("uuid", "capability", "path", "major", "minor")

    def __init__(self, uuid: str, capability: str, path: str, major: int, minor: int) -> None:
        self.uuid = uuid
        self.capability = capability
        self.path = path
        self.major = major
        self.minor = minor


class Inventory(Value):
    """The node's GPUs and driver.

    links: (uuid, uuid, distance) per pair of GPUs, smaller is nearer; absent pairs are far.
    libcuda / libnvml: host paths of the real libraries. stamp: (path, inode, size, mtime_ns) of files whose change
    makes the inventory stale; boot_id likewise. imex_major: of the IMEX channels' nodes, -1 where there are none.
    """

    __slots__ = (
        "boot_id",
        "driver_version",
        "driver_root",
        "simulated",
        "gpus",
        "control",
        "files",
        "libcuda",
        "libnvml",
        "links",
        "stamp",
        "nodes",
        "imex_major",
    )

    def __init__(
        self,
        boot_id: str,
        driver_version: str,
        driver_root: str,
        simulated: bool,
        gpus: tuple[Gpu, ...],
        control: tuple[DeviceFile, ...],
        files: tuple[DriverFile, ...],
        libcuda: str,
        libnvml: str,
        links: tuple[tuple[str, str, int], ...] = (),
        stamp: tuple[tuple[str, int, int, int], ...] = (),
        nodes: tuple[GpuNode, ...] = (),
        imex_major: int = -1,
    ) -> None:
        self.boot_id = boot_id
        self.driver_version = driver_version
        self.driver_root = driver_root
        self.simulated = simulated
        self.gpus = gpus
        self.control = control
        self.files = files
        self.libcuda = libcuda
        self.libnvml = libnvml
        self.links = links
        self.stamp = stamp
        self.nodes = nodes
        self.imex_major = imex_major

    def gpu(self, uuid: str) -> Gpu:
        """The GPU with this UUID; KeyError when the node has none."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise KeyError(uuid)
