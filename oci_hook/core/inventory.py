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

    uuid: str
    index: int
    minor: int
    memory_mib: int
    name: str = ""
    pci: str = ""
    numa: int = -1
    simulated: bool = False
    context_mib: int = 0
    time_scale: int = 1
    parent: str = ""
    instance: int = -1
    file: str = ""

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

    path: str
    kind: str
    capability: str
    names: tuple[str, ...] = ()


class DeviceFile(Value):
    """A control node every GPU container needs (nvidiactl, nvidia-uvm, ...): character device numbers, 0666."""

    path: str
    major: int
    minor: int


class GpuNode(Value):
    """A device node beside /dev/nvidiaN that containers with whole GPUs and this capability get, mode 0666; those of
    capability MIG, every container with the GPU.

    uuid: of the GPU that it belongs to, "" for every GPU.
    """

    uuid: str
    capability: str
    path: str
    major: int
    minor: int


class Inventory(Value):
    """The node's GPUs and driver.

    links: (uuid, uuid, distance) per pair of GPUs, smaller is nearer; absent pairs are far.
    libcuda / libnvml: host paths of the real libraries. stamp: (path, inode, size, mtime_ns) of files whose change
    makes the inventory stale; boot_id likewise. imex_major: of the IMEX channels' nodes, -1 where there are none.
    """

    boot_id: str
    driver_version: str
    driver_root: str
    simulated: bool
    gpus: tuple[Gpu, ...]
    control: tuple[DeviceFile, ...]
    files: tuple[DriverFile, ...]
    libcuda: str
    libnvml: str
    links: tuple[tuple[str, str, int], ...] = ()
    stamp: tuple[tuple[str, int, int, int], ...] = ()
    nodes: tuple[GpuNode, ...] = ()
    imex_major: int = -1

    def gpu(self, uuid: str) -> Gpu:
        """The GPU with this UUID; KeyError when the node has none."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise KeyError(uuid)
